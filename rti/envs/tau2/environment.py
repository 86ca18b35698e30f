"""The τ²-Bench environment: an agent that serves a user, with tools over a database, under the official rules.

Keeps: evidence never enters a message (invariant 4); one episode's world and user live in its own instance alone. The reward is
binary: the official one, 0 for a conversation that a limit ended.
"""

from __future__ import annotations

import datetime
from typing import Any, Callable, Sequence

import msgspec

from rti.envs.base import Outcome, StepResult, Task
from rti.envs.tau2 import official, reward
from rti.envs.tau2.dialogue import Dialogue, Limits
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.judge import Judge
from rti.envs.tau2.user import UserMaker
from rti.trajectory import Message, ToolSchema


class Tau2Environment:
    """See rti.envs.base.Environment. `domain_of` gives a task's domain; all domains of one environment have the same tools."""

    def __init__(self, domain_of: Callable[[Task], Domain], tools: Sequence[ToolSchema], users: UserMaker, limits: Limits,
                 judge: Judge | None = None) -> None:
        self.tools, self.max_turns = tools, limits.turns
        self._domain_of, self._users, self._limits, self._judge = domain_of, users, limits, judge
        self._dialogue: Dialogue | None = None

    async def reset(self, task: Task, seed: int) -> list[Message]:
        """The policy as the official agent's system prompt, the greeting, the user's first text."""
        self._task, self._seed, self._outcome = task, seed, None
        self._domain = self._domain_of(task)
        self._official_task = official_task(task)
        self._world = self._domain.world(self._official_task)
        user = self._users(self._official_task, self._domain.user_tools, seed)
        self._started = datetime.datetime.now()
        self._dialogue = Dialogue(self._world, user, self._limits, [t.name for t in self._domain.user_tools])
        greeting, first = await self._dialogue.open()
        return [Message(role="system", content=agent_prompt(self._domain.policy)), greeting, first]

    async def step(self, message: Message) -> StepResult:
        if self._dialogue is None:
            raise RuntimeError("step before reset")
        if self._dialogue.termination:      # the user ended it before the agent spoke: nobody hears this turn
            return StepResult(messages=[], done=True)
        seen = await self._dialogue.agent(message)
        return StepResult(messages=seen, done=bool(self._dialogue.termination))

    async def outcome(self) -> Outcome:
        """The official reward; `info` holds counts, the ending and the reward's parts, and for test tasks the official record
        (`simulation`). A conversation that nobody has ended counts as one that reached its limit."""
        if self._outcome is None:
            self._outcome = await self._evaluate()
        return self._outcome

    async def _evaluate(self) -> Outcome:
        dialogue = self._dialogue
        if dialogue is None:
            raise RuntimeError("outcome before reset")
        ending = dialogue.termination or "max_steps"
        result = await reward.evaluate(self._domain, self._official_task, dialogue.messages, self._world, ending, self._judge)
        info: dict[str, Any] = {"termination": ending, **msgspec.to_builtins(dialogue.counts),
                                "parts": {k.value: v for k, v in (result.reward_breakdown or {}).items()}}
        if self._task.data.get("split") == "test":
            info["simulation"] = self._record(result, ending)
        return Outcome(success=result.reward == 1.0, reward=result.reward, info=info)

    def _record(self, result: Any, ending: str) -> dict[str, Any]:
        """An official SimulationRun as JSON."""
        ended = datetime.datetime.now()
        messages = [m.model_copy(update={"turn_idx": i}) for i, m in enumerate(self._dialogue.messages)]
        run = official.load().simulation.SimulationRun(
            id=f"{self._official_task.id}-{self._seed}", task_id=self._official_task.id, start_time=self._started.isoformat(),
            end_time=ended.isoformat(), duration=(ended - self._started).total_seconds(), termination_reason=ending,
            reward_info=result, messages=messages, seed=self._seed)
        return run.model_dump(mode="json", exclude_none=True)

    async def close(self) -> None:
        self._dialogue = None


def agent_prompt(policy: str) -> str:
    """The official agent's system prompt over a domain's policy."""
    return official.load().agent.LLMAgent(tools=[], domain_policy=policy, llm="served elsewhere").system_prompt


def official_task(task: Task) -> Any:
    """The official Task that an RTI task carries."""
    return official.load().tasks.Task.model_validate(task.data["task"])
