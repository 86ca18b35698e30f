"""What GRPO and its descendants share: settings of the clipped ratio, who trains, and the group-relative advantage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rti.algos.base import trains
from rti.algos.functional import group_advantages
from rti.trajectory import Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class GroupRelative:
    clip_low: float = 0.2
    clip_high: float = 0.2
    advantage_eps: float = 1e-6
    kl_coef: float = 0.0
    train_truncated: bool = True

    def trains(self, trajectory: Trajectory) -> bool:
        return trains(trajectory, self.train_truncated)

    def advantages(self, group: Group) -> np.ndarray:
        rewards = np.array([m.reward for m in group.members], dtype=np.float64)
        return group_advantages(rewards, np.array([self.trains(m) for m in group.members], dtype=bool), self.advantage_eps)
