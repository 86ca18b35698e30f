"""A world for tests of the whole system: two turns, and success is a coin thrown by what the agent wrote.

A random policy then succeeds at a known rate, so that groups teach, fail and are rescued; and the reward depends on the very
tokens, so that a run which sampled other tokens shows other rewards.
"""

from __future__ import annotations

import asyncio
import zlib

from rti.envs.base import EnvironmentFault, Outcome, StepResult, Task
from rti.trajectory import Message, ToolSchema


class LuckTasks:
    """See rti.envs.base.TaskSet. `faults`: one episode in so many breaks at its first try (its environment, not the agent)."""

    def __init__(self, n_train: int = 12, n_test: int = 4, percent: int = 30, delay_s: float = 0.0, faults: int = 0):
        self.train = [Task(id=f"train-{i}", cls="odd" if i % 2 else "even", data={"n": i}, evidence=_evidence(i))
                      for i in range(n_train)]
        self.test = [Task(id=f"test-{i}", cls="odd" if i % 2 else "even", data={"n": i}) for i in range(n_test)]
        self._percent, self._delay_s, self._faults = percent, delay_s, faults
        self._broken: set[int] = set()

    def make(self) -> Luck:
        return Luck(self._percent, self._delay_s, self._breaks)

    def _breaks(self, seed: int) -> bool:
        if not self._faults or seed % self._faults or seed in self._broken:
            return False
        self._broken.add(seed)
        return True

    async def close(self) -> None:
        pass


def _evidence(i: int) -> dict:
    """In the form that the compact prompts read."""
    return {"stops": [{"name": f"Stop {i}", "province": "P", "location": f"{100 + i}.000000,30.000000"}], "order": "free"}


class Luck:
    tools = [ToolSchema(name="guess", description="Guess.", parameters={"type": "object", "properties": {}})]
    max_turns = 2

    def __init__(self, percent: int, delay_s: float, breaks):
        self._percent, self._delay_s, self._breaks = percent, delay_s, breaks
        self._written = ""

    async def reset(self, task: Task, seed: int) -> list[Message]:
        self._turn = 0
        if self._breaks(seed):
            raise EnvironmentFault("a fuse blew")
        return [Message(role="user", content=f"Task {task.id}: write.")]

    async def step(self, message: Message) -> StepResult:
        await asyncio.sleep(self._delay_s)
        self._turn += 1
        self._written += f"|{message.content}|{message.reasoning}|" + "|".join(f"{c.name}{c.arguments}{c.error}"
                                                                              for c in message.tool_calls)
        answers = [Message(role="tool", content="noted", tool_call_id=c.id, name=c.name) for c in message.tool_calls]
        return StepResult(messages=answers or [Message(role="user", content="go on")], done=self._turn == self.max_turns)

    async def outcome(self) -> Outcome:
        success = zlib.crc32(self._written.encode()) % 100 < self._percent
        return Outcome(success=success, reward=float(success))

    async def close(self) -> None:
        pass
