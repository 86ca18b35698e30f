"""The navigation environment: episodes in which an agent finds places and plans one route through them.

Keeps: evidence never enters a message (invariant 4); one episode's state lives in its own instance alone. The calls of a turn
run in parallel. The first direction call that the service answered ends the episode: that call is the agent's answer and cannot
be taken back; others of the same turn count for nothing, so that routes cannot be guessed by the dozen. A reply without tool
calls ends it too.
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Mapping, Sequence

from rti.envs.base import Outcome, StepResult, Task
from rti.envs.navigation import reward
from rti.envs.navigation.tools import TOOLS, NavigationTools, ToolResult
from rti.trajectory import Message, ToolSchema

MAX_CALLS = 32
"""Calls of one turn that are run; the rest are answered by an error."""

INSTRUCTIONS = """\
You plan trips in China with map tools. The user names places; find the coordinates of each, then call direction once with the
start, the stops between and the end. That call ends the task and cannot be repeated, so be sure of every place first.

- Never make up coordinates: use only those that a tool returned.
- Many places share a name. All places of one trip lie close together (within about 100 km of the start). Where a search returns
  a place far from the others, search again with the region of the others, or around one of them.
- Calls that do not depend on each other can be made in one turn. Coordinates are written 'longitude,latitude'.
- The user says how free the order is. Keep the fixed places fixed; the others may be visited in any order.
- Use mode driving unless the user asks for another. You have {turns} turns in all."""


class NavigationEnvironment:
    """See rti.envs.base.Environment. `ready` is awaited at each reset and gives the tools (it may start the offline server)."""

    tools: Sequence[ToolSchema] = TOOLS

    def __init__(self, ready: Callable[[], Awaitable[NavigationTools]], max_turns: int = 6) -> None:
        self.max_turns = max_turns
        self._ready = ready
        self._tools: NavigationTools | None = None
        self._begin(None)

    def _begin(self, task: Task | None) -> None:
        self._task = task
        self._returned: set[str] = set()
        self._success = False
        self._counts = {"turns": 0, "tool_calls": 0, "tool_errors": 0, "no_match": 0, "direction_calls": 0}

    async def reset(self, task: Task, seed: int) -> list[Message]:
        """The user's query, after a system message where the task asks for one. Nothing is random: `seed` is unused."""
        self._tools = await self._ready()
        self._begin(task)
        query = Message(role="user", content=task.data["query"])
        if not task.data.get("instructions", True):
            return [query]
        return [Message(role="system", content=INSTRUCTIONS.format(turns=self.max_turns)), query]

    async def step(self, message: Message) -> StepResult:
        if self._task is None or self._tools is None:
            raise RuntimeError("step before reset")
        self._counts["turns"] += 1
        if not message.tool_calls:
            return StepResult(messages=[], done=True)
        results = await asyncio.gather(*(self._tools.run(c) for c in message.tool_calls[:MAX_CALLS]))
        late = ToolResult(f"error: at most {MAX_CALLS} calls a turn are run")
        results = [*results, *(late for _ in message.tool_calls[MAX_CALLS:])]
        answers = [r.direction for r in results if r.direction is not None]
        self._success = bool(answers) and self._is_right(answers[0])
        for result in results:      # after the verdict: a call may use only what earlier turns returned
            self._returned.update(result.locations)
            self._count(result)
        replies = [Message(role="tool", content=r.text, tool_call_id=c.id, name=c.name)
                   for c, r in zip(message.tool_calls, results, strict=True)]
        return StepResult(messages=replies, done=bool(answers))

    def _is_right(self, call: Mapping[str, Any]) -> bool:
        return reward.is_right(self._task.evidence, call) and reward.all_returned(call, self._returned)

    def _count(self, result: ToolResult) -> None:
        self._counts["tool_calls"] += 1
        self._counts["tool_errors"] += result.text.startswith("error:")
        self._counts["no_match"] += result.text == "no match"
        self._counts["direction_calls"] += result.direction is not None

    async def outcome(self) -> Outcome:
        return Outcome(success=self._success, reward=float(self._success), info=dict(self._counts))

    async def close(self) -> None:
        self._begin(None)
