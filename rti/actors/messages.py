"""What the controller says to the actors that run episodes. Plain structs: nothing here knows Ray.

An order names episodes of one task by member number and gives each its seed, so that what comes back depends on the order
alone and not on who carries it out (invariant 7). What comes back is the trajectories in their binary form.
"""

from __future__ import annotations

import msgspec


class RootOf(msgspec.Struct, frozen=True, kw_only=True):
    """Where a branch begins: before turn `turn` of an encoded trajectory."""

    parent: bytes
    turn: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes to run. `members` are numbers within the group; of an intervened order they are attempts."""

    group_id: str
    split: str                  # train | test
    task: int                   # index into the split
    task_id: str                # what must stand there: two machines with different task sets are an error
    members: tuple[int, ...]
    seeds: tuple[int, ...]
    temperature: float
    intervened: bool = False
    root: RootOf | None = None  # the episodes are branches from there

    @property
    def cost(self) -> int:
        """Episodes."""
        return len(self.members)

    def ids(self) -> list[str]:
        """Trajectory ids: "<group>/<member>", or "<group>/i<attempt>" of intervened ones."""
        return [f"{self.group_id}/{'i' if self.intervened else ''}{m}" for m in self.members]

    def only(self, members: set[int]) -> Order:
        """The same order for some of its members: what is run again after a loss."""
        keep = [i for i, m in enumerate(self.members) if m in members]
        return msgspec.structs.replace(self, members=tuple(self.members[i] for i in keep),
                                       seeds=tuple(self.seeds[i] for i in keep))


class Roster(msgspec.Struct, frozen=True, array_like=True):
    """The generators that serve, by their full names. Of two rosters the one with the larger number is the newer one."""

    number: int
    names: tuple[str, ...]


class TaskName(msgspec.Struct, frozen=True, array_like=True):
    """All that the controller needs to know of a task. Its evidence stays with those who run it (invariant 4)."""

    id: str
    cls: str = ""


class TaskIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The task set by name, as a worker loaded it."""

    train: list[TaskName]
    test: list[TaskName]

    def split(self, name: str) -> list[TaskName]:
        return self.train if name == "train" else self.test


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the learner says of one step."""

    version: int                    # of the weights after it
    metrics: dict[str, float]
