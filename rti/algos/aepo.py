"""AEPO: agentic entropy-balanced policy optimisation (arXiv 2510.14545, its section 3.3): GRPO that spares uncertain tokens.

    z_t = (H_t - mean(H)) / std(H)                          over the trained tokens of a sequence; 0 where they are equal
    A_t = A_i (1 + alpha z_t)                               A_i is GRPO's
    J   = 1/G sum_i 1/|tau_i| sum_t min(rho_t A_t, F_t A_t)
    F_t = (1 + clip_high) rho_t / sg(rho_t)                 where rho_t > 1 + clip_high and z_t > high_entropy
          clip(rho_t, 1 - clip_low, 1 + clip_high)          elsewhere

sg stops the gradient: a token at which the policy was uncertain and that the upper bound clips counts as much as the bound
allows, and still pulls. H_t is the entropy of the policy that is being trained, in nats, and carries no gradient. It is
normalised within a sequence, and not over the step, so that the loss does not depend on how a step is cut into micro-batches.
Only the loss is here; the other half of the method, which rollouts of a group are branches of others, is rti.control.branching.
Branches are whole trajectories: a token that several of them share counts in each, with the advantage of each (its gradient
follows the sum of their advantages; the "soft" estimate of arXiv 2507.19849).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rti.algos.base import LossOutput, Metrics, TokenBatch
from rti.algos.functional import log_ratio, masked, policy_loss, sequence_mean
from rti.algos.group_relative import GroupRelative


@dataclass(frozen=True, kw_only=True)
class AEPO(GroupRelative):
    alpha: float = 0.2
    high_entropy: float = 1.0
    name: str = "aepo"
    intervenes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio != "behaviour":
            raise ValueError("AEPO's clip is of the ratio to what sampled the token, which the proximal ratio never clips: "
                             "leave algo.ratio at behaviour, or use algo=grpo")

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        if entropy is None:
            raise ValueError("AEPO needs the policy's entropy at every token, and the learner gave none")
        z = normalised(batch, entropy)
        weighed = replace(batch, advantages=masked(batch.mask, batch.advantages) * (1 + self.alpha * z))
        gap, kept = log_ratio(batch, current_logps, batch.behaviour_logps), z > self.high_entropy
        out = policy_loss(weighed, current_logps, gap, torch.ones_like(batch.weights), clip_low=self.clip_low,
                          clip_high=self.clip_high, kl_coef=self.kl_coef, entropy=entropy, kept=kept)
        clipped = batch.mask & kept & (gap.detach().exp() > 1 + self.clip_high) & (weighed.advantages > 0)
        return LossOutput(out.loss, out.metrics.merge(Metrics({"clip_kept": clipped.sum(dtype=torch.float64)})))


def normalised(batch: TokenBatch, entropy: torch.Tensor) -> torch.Tensor:
    """z [N]: how many standard deviations (population) a token's entropy is above its sequence's mean; no gradient."""
    values = masked(batch.mask, entropy.detach().double())
    off = values - sequence_mean(batch, values)
    spread = sequence_mean(batch, off * off).sqrt()
    equal = ~batch.mask | (spread <= 1e-9 * values.abs())       # what rounding leaves of equal entropies is no spread
    z = off / torch.where(equal, torch.ones_like(spread), spread)
    return torch.where(equal, torch.zeros_like(z), z).float()
