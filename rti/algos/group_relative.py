"""What GRPO and its descendants share: settings of the clipped ratio, who trains, and the group-relative advantage.

    A_i = (r_i - mean(r)) / (std(r) + eps)      over the members of a group that train, population std;
                                                without the division where `advantage_std` is False (arXiv 2503.20783)

Two ratios can be clipped. `behaviour`: pi_theta over what sampled the token. `proximal` (decoupled: arXiv 2110.00641): pi_theta
over the learner's own weights at the start of the step, with the token's term multiplied by the detached importance weight
min(pi_proximal / pi_behaviour, importance_cap). A step makes one update, so the proximal policy is the current one: what was
sampled long ago is then corrected for, and not clipped away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rti.algos.base import LossOutput, Metrics, TokenBatch, trains
from rti.algos.functional import group_advantages, importance_weights, log_ratio, policy_loss
from rti.trajectory import Group, Trajectory

RATIOS = ("behaviour", "proximal")
AGGREGATIONS = ("sequence", "token")


@dataclass(frozen=True, kw_only=True)
class GroupRelative:
    clip_low: float = 0.2
    clip_high: float = 0.2
    advantage_eps: float = 1e-6
    advantage_std: bool = True
    aggregation: str = "sequence"       # the step's mean: over trajectories of their tokens' means, or over all tokens
    ratio: str = "behaviour"
    importance_cap: float = float("inf")
    kl_coef: float = 0.0
    train_truncated: bool = True
    distils: bool = False

    def __post_init__(self) -> None:
        for key, value, known in (("ratio", self.ratio, RATIOS), ("aggregation", self.aggregation, AGGREGATIONS)):
            if value not in known:
                raise ValueError(f"algo.{key} is {value!r}; it must be one of {', '.join(known)}")

    def trains(self, trajectory: Trajectory) -> bool:
        return trains(trajectory, self.train_truncated)

    def advantages(self, group: Group) -> np.ndarray:
        rewards = np.array([m.reward for m in group.members], dtype=np.float64)
        trained = np.array([self.trains(m) for m in group.members], dtype=bool)
        return group_advantages(rewards, trained, self.advantage_eps, self.advantage_std)

    def clipped(self, batch: TokenBatch, current_logps: torch.Tensor, old_logps: torch.Tensor, weights: torch.Tensor,
                entropy: torch.Tensor | None) -> LossOutput:
        """The clipped objective of the token ratio that the configuration names. `old_logps` [N]: what sampled the token."""
        gap = log_ratio(batch, current_logps, old_logps)
        settings = dict(clip_low=self.clip_low, clip_high=self.clip_high, kl_coef=self.kl_coef, entropy=entropy)
        if self.ratio == "behaviour":
            return policy_loss(batch, current_logps, gap, weights, **settings)
        importance, measured = importance_weights(batch, gap, self.importance_cap)
        out = policy_loss(batch, current_logps, gap - gap.detach(), weights * importance, gap=gap, **settings)
        return LossOutput(out.loss, out.metrics.merge(Metrics(measured)))
