"""The order of the training tasks, and the tickets that groups are admitted with.

Keeps invariant 7: the order is a function of the seed and the number of tasks alone. Each epoch is its own permutation; the
k-th group of a run (its ordinal) is at position k mod n of epoch k div n. Nothing is stored, so nothing can be lost on resume.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from rti.control.seeds import derive, generator


class Ticket(NamedTuple):
    """What a group is admitted with. Tickets sort by ordinal, which is plan order."""

    ordinal: int
    epoch: int
    position: int       # in the epoch's order
    task: int           # index into the training tasks
    round: int = 0      # how often the group was voided before

    @property
    def group_id(self) -> str:
        return f"{self.epoch}-{self.position}"

    def seed(self, run_seed: int, kind: str, member: int) -> int:
        """The seed of one episode. A lost episode runs again under the *same* seed: it then gives the same tokens as if
        nothing had died, and no sampling bias towards episodes that are too short to be hit. A voided group is sampled anew."""
        return derive(run_seed, kind, self.epoch, self.position, self.round, member)


class TaskOrder:
    """Every task once an epoch, in an order of its own for each epoch."""

    def __init__(self, n_tasks: int, seed: int):
        if n_tasks < 1:
            raise ValueError("the task set has no training tasks")
        self.n_tasks = n_tasks
        self.seed = seed
        self._permutation = functools.lru_cache(maxsize=4)(self._shuffle)

    def _shuffle(self, epoch: int) -> tuple[int, ...]:
        return tuple(int(i) for i in generator(self.seed, "order", epoch).permutation(self.n_tasks))

    def ticket(self, ordinal: int, round: int = 0) -> Ticket:
        epoch, position = divmod(ordinal, self.n_tasks)
        return Ticket(ordinal, epoch, position, self._permutation(epoch)[position], round)

    def ordinal(self, group_id: str) -> int:
        """The ordinal of a group id; ValueError where it is none of this order."""
        epoch, _, position = group_id.partition("-")
        if not (epoch.isdecimal() and position.isdecimal() and int(position) < self.n_tasks):
            raise ValueError(f"{group_id!r} is not a group id of an order of {self.n_tasks} tasks")
        return int(epoch) * self.n_tasks + int(position)
