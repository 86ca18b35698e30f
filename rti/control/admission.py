"""How many groups may be under way, so that none can get too old. Pure arithmetic.

Keeps invariant 6: a slot is charged when a group is admitted and freed when the step that consumes it has *published* its
weights. With (max_staleness + 1) * groups_per_step slots, the groups ahead of a newly admitted one fill at most max_staleness
steps, so a group that is consumed in order is at most max_staleness versions old. A group that is overtaken (a long-tail
episode) can still get too old: the plan's sweep voids it.
"""

from __future__ import annotations


def slots(groups_per_step: int, max_staleness: int) -> int:
    """The bound on charged slots: one step's groups in synchronous mode, one more step's worth per step of staleness."""
    if groups_per_step < 1:
        raise ValueError(f"rollout.groups_per_step is {groups_per_step}; a step consumes at least one group")
    if max_staleness < 0:
        raise ValueError(f"async.max_staleness is {max_staleness}; it is 0 (synchronous) or more")
    return (max_staleness + 1) * groups_per_step


def room(*, charged: int, waiting: int, steps_left: int, groups_per_step: int, max_staleness: int) -> int:
    """How many groups may be admitted now.

    `charged` counts every slot in use, `waiting` those of them whose step has not been taken yet: the groups that are waiting
    never exceed what the steps that are left will consume, so that the run's end leaves nothing half done.
    """
    return max(0, min(slots(groups_per_step, max_staleness) - charged, steps_left * groups_per_step - waiting))


def too_old(*, learner_version: int, oldest_version: int, max_staleness: int) -> bool:
    """True where a group may not be consumed by a step that the learner takes at `learner_version`."""
    return learner_version - oldest_version > max_staleness
