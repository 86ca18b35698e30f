"""GRPO: group-relative policy optimisation (arXiv 2402.03300), with the sequence-mean aggregation of its equation 3.

    A_i   = (r_i - mean(r)) / (std(r) + eps)               over the members of a group that train, population std
    rho_t = exp(logp_theta(t) - logp_behaviour(t))
    J     = 1/G sum_i 1/|tau_i| sum_t min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef k3_t
    k3_t  = exp(logp_ref(t) - logp_theta(t)) - (logp_ref(t) - logp_theta(t)) - 1

|tau_i| counts the agent tokens of all samples of a trajectory; the mean is over the trajectories of the whole step. The KL
term is off by default. There is no intervention; a batch without intervened tokens gives the bits that RTI gives. The known
variants are settings: no division by the standard deviation, the mean over all tokens of the step, clip-higher, the decoupled
(proximal) ratio with truncated importance weights (group_relative.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rti.algos.base import LossOutput, TokenBatch
from rti.algos.group_relative import GroupRelative


@dataclass(frozen=True, kw_only=True)
class GRPO(GroupRelative):
    name: str = "grpo"
    intervenes: bool = False

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        return self.clipped(batch, current_logps, batch.behaviour_logps, torch.ones_like(batch.weights), entropy)
