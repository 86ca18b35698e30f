"""LUFFY: GRPO whose failed groups hold one of the teacher's own episodes, learnt from with a shaped probability
(arXiv 2504.14945).

    J = sum_{t of the policy} s_t min(rho_t A_i, clip(rho_t, 1 - clip_low, 1 + clip_high) A_i)
      + sum_{t of the teacher} s_t f(pi_theta(t)) A_j         f(p) = p / (p + shaping), shaping = 0.1

A is GRPO's over the group after the replacement. The teacher's probability is taken to be 1, as the paper does in practice, so
the importance ratio of its tokens is pi_theta itself; there is no clip on them. f's slope gamma / (p + gamma)^2 lifts the
gradient of tokens that the policy would hardly write (d f / d log p = gamma p / (p + gamma)^2 is largest at p = gamma). s_t is
the step's mean: the paper's 1/Z over all tokens is algo.aggregation=token, and its advantage is not divided by the standard
deviation (configs/algo/luffy.yaml). The KL term is over the policy's own tokens: from another's it estimates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rti.algos.base import LossOutput, Metrics, TokenBatch
from rti.algos.functional import masked
from rti.algos.group_relative import GroupRelative


@dataclass(frozen=True, kw_only=True)
class LUFFY(GroupRelative):
    shaping: float = 0.1
    name: str = "luffy"
    intervenes: bool = True

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        own = replace(batch, mask=batch.mask & ~batch.from_teacher)
        out = self.clipped(own, current_logps, batch.behaviour_logps, torch.ones_like(batch.weights), entropy)
        shown = batch.mask & batch.from_teacher
        probability = torch.exp(masked(shown, current_logps.float()))
        shaped = probability / (probability + self.shaping)
        terms = masked(shown, batch.scales) * masked(shown, batch.advantages) * masked(shown, shaped)
        loss = -terms.double().sum()
        measured = Metrics({"loss": loss.detach(), "teacher_tokens": shown.sum(dtype=torch.float64),
                            "teacher_probability": masked(shown, probability.detach().double()).sum()})
        return LossOutput(out.loss + loss, out.metrics.merge(measured))
