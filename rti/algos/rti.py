"""RTI: GRPO's objective over groups in which a rescued rollout replaced a failed one (arXiv 2610.13438).

    J   = 1/G sum_i 1/|tau_i| sum_t w_t min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i)
    w_t = clip(exp(logp_correction(t) - logp_roll(t)), 1 - weight_eps, 1 + weight_eps), detached, on intervened tokens; else 1

A_i is GRPO's, over the group *after* the replacement. The ratio's denominator on intervened tokens is a setting: `roll`
(the paper: the rollout prompt's log-probability), `correction` (the correction prompt's: unbiased in principle, high
variance), `one` (rho_t = pi_theta(t), as LUFFY does). `reweight` False makes every w_t 1. The weights are those stored on
the sample (rti.mas.gate made them); they are clipped here once more, which changes nothing where they were made right.
Invariant 9: with no intervened token in the batch the arithmetic is GRPO's, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rti.algos.base import LossOutput, TokenBatch
from rti.algos.functional import log_ratio, masked, measure_weights
from rti.algos.group_relative import GroupRelative

DENOMINATORS = ("roll", "correction", "one")


@dataclass(frozen=True, kw_only=True)
class RTI(GroupRelative):
    weight_eps: float = 0.2
    reweight: bool = True
    denominator: str = "roll"
    name: str = "rti"
    intervenes: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.denominator not in DENOMINATORS:
            raise ValueError(f"intervention.denominator is {self.denominator!r}; it must be one of {', '.join(DENOMINATORS)}")

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        old, weights = self.old_logps(batch), self.weights(batch)
        out = self.clipped(batch, current_logps, old, weights, entropy)
        ratios = log_ratio(batch, current_logps.detach(), old)
        measured = measure_weights(batch, weights, ratios, 1 - self.weight_eps, 1 + self.weight_eps, self.clip_high)
        return LossOutput(out.loss, out.metrics.merge(measured))

    def old_logps(self, batch: TokenBatch) -> torch.Tensor:
        """The ratio's denominator, as a log-probability."""
        if self.denominator == "roll":
            return batch.behaviour_logps
        if self.denominator == "correction":
            return torch.where(batch.intervened, batch.correction_logps, batch.behaviour_logps)
        return masked(~batch.intervened, batch.behaviour_logps)     # log 1 = 0

    def weights(self, batch: TokenBatch) -> torch.Tensor:
        """Detached; exactly 1 on every token that is not intervened."""
        ones = torch.ones_like(batch.weights)
        if not self.reweight:
            return ones
        clipped = batch.weights.detach().clamp(1 - self.weight_eps, 1 + self.weight_eps)
        return torch.where(batch.intervened, clipped, ones)
