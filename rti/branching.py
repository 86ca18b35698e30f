"""A branch of an episode: the first turns of another one taken over token by token, by replaying them in a fresh environment.

Keeps invariants 1 and 2: what is taken over are the very tokens of the other episode with their own log-probabilities and
versions. A replay counts only where the environment gives the same messages again; else the branch is dropped. Needs nothing
of an environment beyond its protocol: one that answers alike (offline navigation, a scripted user) can be branched in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rti.envs.base import Environment, StepResult
from rti.trajectory import Message, Sample, Source, Trajectory


@dataclass(frozen=True)
class Root:
    """Where a branch begins: before turn `turn` of `parent`."""

    parent: Trajectory
    turn: int


class Records(Protocol):
    """An episode in the making (rti.rollout)."""

    prompt: list[Message]

    def add_recorded(self, message: Message, finish_reason: str, sample: Sample, at: np.ndarray) -> None:
        """A turn whose tokens stand at `at` in `sample`."""
        ...

    def add_replies(self, messages: list[Message]) -> None: ...


async def replay(episode: Records, env: Environment, root: Root) -> str:
    """Take the parent's turns before the root. Why it cannot be done; empty where it was."""
    if episode.prompt != root.parent.prompt:
        return "the environment begins with other messages"
    for number, past in enumerate(root.parent.steps[:root.turn]):
        found = _tokens_of(root.parent, number)
        if found is None:
            return f"turn {number}: not all its tokens are known"
        came: StepResult = await env.step(past.message)
        if came.done or list(came.messages) != past.observations:
            return f"turn {number}: the environment answers otherwise"
        episode.add_recorded(past.message, past.finish_reason, *found)
        episode.add_replies(list(came.messages))
    return ""


def _tokens_of(parent: Trajectory, turn: int) -> tuple[Sample, np.ndarray] | None:
    """The sample that holds a turn's tokens and where; None where some are missing or not the policy's own."""
    for sample in parent.samples:
        at = np.flatnonzero(sample.turns == turn)
        if len(at) and len(at) == parent.steps[turn].n_tokens and (sample.sources[at] == Source.POLICY).all():
            return sample, at
    return None
