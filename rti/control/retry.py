"""What each ending of an episode may be used for, and how often a lost one is run again.

Keeps invariant 5's second half: a lost rollout is run again and is never counted, and the statistics of a group are over
exactly the members that train. Failures are classified where they happen (rti.rollout); here is the one table that reads them.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rti.trajectory import Ending, Group


class Use(NamedTuple):
    """What an ending may be used for."""

    trained: bool       # its tokens get a gradient, its reward enters the group's mean and standard deviation
    counted: bool       # it enters rewards, pass rates and evaluations
    again: bool         # it is run again


_TABLE = {
    Ending.COMPLETED: Use(trained=True, counted=True, again=False),
    Ending.TURN_LIMIT: Use(trained=True, counted=True, again=False),
    Ending.TRUNCATED: Use(trained=True, counted=True, again=False),
    Ending.EMPTY_REPLY: Use(trained=True, counted=True, again=False),
    Ending.ENVIRONMENT: Use(trained=False, counted=False, again=True),
    Ending.INFRASTRUCTURE: Use(trained=False, counted=False, again=True),
}


def use_of(ending: Ending, train_truncated: bool = True) -> Use:
    """The truth table. With `train_truncated` False an episode cut by a length limit is a failure, but teaches nothing."""
    use = _TABLE[ending]
    if ending is Ending.TRUNCATED and not train_truncated:
        return use._replace(trained=False)
    return use


def teaches(group: Group, train_truncated: bool = True, distils: bool = False) -> bool:
    """Invariant 8 over exactly the members that train: False where all their rewards are equal, and for less than two.
    `distils`: a teacher judges every token, so that one that trains is enough."""
    if distils:
        return any(m.n_agent_tokens for m in group.members if use_of(m.ending, train_truncated).trained)
    return len({m.reward for m in group.members if use_of(m.ending, train_truncated).trained}) > 1


def idle(group: Group, train_truncated: bool = True, distils: bool = False) -> str:
    """Why a group teaches nothing, for people; empty where it teaches."""
    if teaches(group, train_truncated, distils):
        return ""
    rewards = [m.reward for m in group.members if use_of(m.ending, train_truncated).trained]
    tried = f"; intervened rollouts: {len(group.attempts)}, none succeeded" if group.attempts else ""
    return (f"every member that trains has reward {rewards[0]:g}" if rewards else "no member trains") + tried


class RetriesExhausted(RuntimeError):
    """An episode was lost more often than the configuration allows."""


class RetryBook:
    """Counts losses of one group's episodes."""

    def __init__(self, retries: int, what: str):
        self._retries = retries
        self._what = what
        self._losses: Counter[int] = Counter()

    @property
    def total(self) -> int:
        return sum(self._losses.values())

    def lost(self, members: list[int], reason: str) -> None:
        """Note that these episodes were lost. Raises RetriesExhausted where one may not run again."""
        self._losses.update(members)
        for member in members:
            if self._losses[member] > self._retries:
                raise RetriesExhausted(
                    f"{self._what}: episode {member} was lost {self._losses[member]} times, "
                    f"the last time because of: {reason}. "
                    f"It may run again {self._retries} times (rollout.retries); mend the cause, or raise the limit")
