"""The official turn rules over one world: who speaks, what reaches whom, what counts as a step, what ends the conversation.

Keeps: the record is what the official loop would have recorded (its own message objects), so that the official evaluator can
score it. A step is a message of the agent, one of the user, or the batch of results of one message's calls. Text beside a call
reaches nobody. Reaching a limit ends the conversation without a reward even where the user stops on that very step.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

import msgspec

from rti.envs.base import EnvironmentFault
from rti.envs.tau2 import official
from rti.envs.tau2.user import User, UserFault
from rti.envs.tau2.world import World
from rti.trajectory import Message, ToolCall

_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`turns`: messages of the agent. `steps` and `errors` (tool errors of both sides): as in the official loop; 0: none."""

    turns: int = 30
    steps: int = 200
    errors: int = 0


class Counts(msgspec.Struct):
    """What happened, for the outcome's info."""

    turns: int = 0
    steps: int = 0
    tool_calls: int = 0             # the agent's
    tool_errors: int = 0
    user_tool_calls: int = 0
    user_tool_errors: int = 0
    user_tools_by_agent: int = 0    # calls of the agent to tools that are the user's
    unreadable_calls: int = 0       # of either side
    user_as_agent: int = 0          # messages of the user that speak as the agent


class Dialogue:
    """One conversation. `termination` is "" while it goes on, then the official reason; `messages` is the official record."""

    def __init__(self, world: World, user: User, limits: Limits, user_tools: Sequence[str]) -> None:
        self.world, self._user, self._limits, self._user_tools = world, user, limits, frozenset(user_tools)
        self._official = official.load().message
        self.messages: list[Any] = []
        self.counts = Counts()
        self.termination = ""

    async def open(self) -> tuple[Message, Message]:
        """The greeting and the user's first text; the greeting is no step. A user may end here: `termination` says so."""
        greeting = official.load().orchestrator.DEFAULT_FIRST_AGENT_MESSAGE.model_copy(deep=True)
        self.messages.append(greeting)
        said = await self._users_turn(greeting.content)
        return Message(role="assistant", content=greeting.content), Message(role="user", content=said)

    async def agent(self, message: Message) -> list[Message]:
        """Take the agent's turn; what it sees next (nothing where that ended the conversation before anybody answered)."""
        self.counts.turns += 1
        text = _THINKING.sub("", message.content).strip()
        calls = [self._call(c, "assistant") for c in message.tool_calls]
        self.messages.append(self._official.AssistantMessage(role="assistant", content=text or None, tool_calls=calls or None))
        if not text and not calls:
            self.termination = "agent_error"        # the official loop refuses an empty message
            return []
        if calls:
            self._step(waits_for_tools=True)
            self.counts.tool_calls += len(calls)
            self.counts.user_tools_by_agent += sum(c.name in self._user_tools for c in calls)
            return self._run(calls, message.tool_calls)
        self._step()
        if self.termination:
            return []
        said = await self._users_turn(text)
        return [Message(role="user", content=said)] if said else []

    async def _users_turn(self, agents_text: str) -> str:
        """The user speaks, after any calls of its own; its text, "" where a limit came first."""
        heard = [Message(role="assistant", content=agents_text)]
        while not self.termination:
            try:
                message = await self._user.reply(heard)
            except UserFault as fault:
                raise EnvironmentFault(f"the user gave no usable message: {fault}") from fault
            calls = [self._call(c, "user") for c in message.tool_calls]
            said = self._official.UserMessage(role="user", content=message.content or None, tool_calls=calls or None)
            if not calls and not said.has_text_content():
                raise EnvironmentFault("the user gave an empty message")
            self.messages.append(said)
            if not calls:
                self.counts.user_as_agent += speaks_as_agent(message.content, agents_text)
                if official.load().user.UserSimulator.is_stop(said):
                    self.termination = "user_stop"
                self._step()
                return message.content
            self._step(waits_for_tools=True)
            self.counts.user_tool_calls += len(calls)
            heard = self._run(calls, message.tool_calls)
        return ""

    def _call(self, call: ToolCall, side: str) -> Any:
        """The official call. One that could not be read goes under a name that says why, and no tool has that name: whoever
        made it reads the reason in the official answer, and a replay of the record gives the same."""
        self.counts.unreadable_calls += bool(call.error)
        name = f"{call.name} ({call.error})" if call.error else call.name
        serial = sum(len(m.tool_calls or ()) for m in self.messages if hasattr(m, "tool_calls"))
        return self._official.ToolCall(id=call.id or f"{side}_{serial}", name=name,
                                       arguments={} if call.error else call.arguments, requestor=side)

    def _run(self, calls: Sequence[Any], asked: Sequence[ToolCall]) -> list[Message]:
        results = [self.world.call(c) for c in calls]
        self.messages += results
        failed = sum(r.error for r in results)
        if calls[0].requestor == "user":
            self.counts.user_tool_errors += failed
        else:
            self.counts.tool_errors += failed
        self._step()
        return [Message(role="tool", content=r.content, tool_call_id=c.id, name=c.name) for c, r in zip(asked, results)]

    def _step(self, waits_for_tools: bool = False) -> None:
        """Count a step; the limits are looked at except where tools are to run first. They override a stop."""
        self.counts.steps += 1
        self.world.sync()
        if waits_for_tools:
            return
        if self._limits.steps and self.counts.steps >= self._limits.steps:
            self.termination = "max_steps"
        if self._limits.errors and self.counts.tool_errors + self.counts.user_tool_errors >= self._limits.errors:
            self.termination = "too_many_errors"


def speaks_as_agent(text: str, agents_text: str) -> bool:
    """Whether a user's text is the agent's part: its greeting, its own last words, or a line under its name."""
    greeting = official.load().orchestrator.DEFAULT_FIRST_AGENT_MESSAGE.content
    said = text.strip().lower()
    return (said.startswith(("agent:", "assistant:")) or "how can i help you" in said or greeting.lower() in said
            or len(said) > 20 and said == agents_text.strip().lower())
