"""What RTI does with a rescue: a successful intervened rollout takes the place of one failed member of its group. Pure.

The advantages are computed after the replacement, so the replaced member's reward is gone and the rescue's counts (field
bug 4). "Failed" reads the outcome bit, never a shaped reward (field bug 6).
"""

from __future__ import annotations

import random
from typing import Sequence

import msgspec
import numpy as np

from rti.trajectory import Group, Trajectory

REPLACES = ("random", "first")


def replace_failed(group: Group, attempts: Sequence[Trajectory], how: str, rng: random.Random | np.random.Generator) -> Group:
    """The group with its first successful attempt in place of a failed member: a new Group; `group` itself is not changed.

    `rng` is drawn from only where there is a choice to make (`how` = random and a rescue). Without a rescue the members stay
    as they are. Attempts that were not taken are kept on the group for the statistics.
    """
    if how not in REPLACES:
        raise ValueError(f"intervention.replace is {how!r}; it must be one of {', '.join(REPLACES)}")
    before = group.rewards_before or [float(m.success) for m in group.members]
    rescue = next((i for i, a in enumerate(attempts) if a.success and a.ending.is_agents), None)
    if rescue is None:
        kept = [*group.attempts, *attempts]
        return msgspec.structs.replace(group, rewards_before=before, attempts=kept)
    failed = [i for i, m in enumerate(group.members) if not m.success]
    if len(failed) != len(group.members):
        raise ValueError(f"group {group.id} has a member that succeeded: only a group that failed as a whole is rescued")
    place = failed[0] if how == "first" else int(rng.choice(failed))
    members = [attempts[rescue] if i == place else m for i, m in enumerate(group.members)]
    others = [*group.attempts, *(a for i, a in enumerate(attempts) if i != rescue)]
    return msgspec.structs.replace(group, members=members, rewards_before=before, replaced=place, attempts=others)
