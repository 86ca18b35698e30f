"""GSPO: group sequence policy optimisation (arXiv 2507.18071): one ratio and one clip for a whole sequence.

    s_i = exp(1/|y_i| sum_t (logp_theta(t) - logp_behaviour(t)))        length-normalised, equation 7
    J   = 1/G sum_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

A_i is GRPO's. A sequence ratio varies far less than a token's, so the paper's clip is 3e-4 below and 4e-4 above (its section
5.1; configs/algo/gspo.yaml). A trajectory that forked into several sequences (DESIGN invariant 1) has one ratio in each,
weighed by its share of the trajectory's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rti.algos.base import LossOutput, TokenBatch
from rti.algos.functional import log_ratio, policy_loss, sequence_mean
from rti.algos.group_relative import GroupRelative


@dataclass(frozen=True, kw_only=True)
class GSPO(GroupRelative):
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    name: str = "gspo"
    intervenes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio != "behaviour" or self.aggregation != "sequence":
            raise ValueError("GSPO's ratio is that of whole sequences under the behaviour policy: leave algo.ratio at "
                             "behaviour and algo.aggregation at sequence, or use algo=grpo")

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        gap = log_ratio(batch, current_logps, batch.behaviour_logps)
        return policy_loss(batch, current_logps, sequence_mean(batch, gap), torch.ones_like(batch.weights), gap=gap,
                           clip_low=self.clip_low, clip_high=self.clip_high, kl_coef=self.kl_coef, entropy=entropy)
