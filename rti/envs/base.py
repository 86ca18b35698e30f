"""The protocol between an environment and the code that runs episodes in it.

Keeps invariant 4: evidence leaves an environment only through `Task.evidence`, never through a message.
"""

from __future__ import annotations

from typing import Any, Protocol, Sequence

import msgspec

from rti.trajectory import Message, ToolSchema


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task. `cls` is the class that results are broken down by ("" where the environment has none).

    `evidence` is privileged (reference, criteria, ground truth): only the Validator, Corrector and Verifier may see it.
    `data` is the environment's own description, opaque to everybody else.
    """

    id: str
    cls: str = ""
    data: dict[str, Any]
    evidence: dict[str, Any] = {}

    def __repr__(self) -> str:
        # a task that ends up in a log line or a traceback must not carry the evidence there
        return f"Task({self.id})"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`success` is the outcome bit; `reward` equals float(success) unless an environment shapes it."""

    success: bool
    reward: float
    info: dict[str, Any] = {}


class EnvironmentFault(RuntimeError):
    """The environment broke (a dead service, a quota): the episode is run again and never rewarded."""


class FatalEnvironmentError(RuntimeError):
    """The environment cannot work at all as configured (a wrong key): the run stops with this message."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` are appended to the history (one tool message per call, in order, or a user message)."""

    messages: list[Message]
    done: bool


class Environment(Protocol):
    """One instance serves one episode at a time; making an instance is cheap. A tool call that the agent got wrong
    (unknown tool, bad arguments, `ToolCall.error`) is answered by a tool message that says so, never by an exception."""

    tools: Sequence[ToolSchema]
    max_turns: int

    async def reset(self, task: Task, seed: int) -> list[Message]:
        """Begin an episode: the messages before the first agent turn (system, user)."""
        ...

    async def step(self, message: Message) -> StepResult: ...

    async def outcome(self) -> Outcome:
        """The reward of the episode so far. Also called when the turn limit ended it."""
        ...

    async def close(self) -> None: ...


class TaskSet(Protocol):
    """What an environment package offers: `train` and `test` tasks, and new environments."""

    train: Sequence[Task]
    test: Sequence[Task]

    def make(self) -> Environment: ...

    async def close(self) -> None: ...
