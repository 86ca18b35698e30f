"""OPD: on-policy distillation: the policy's own tokens, judged one by one by a teacher (arXiv 2306.13649, 2306.08543).

    A_t = coef (logp_teacher(t) - logp_behaviour(t)) [+ A_i]
    J   = 1/G sum_i 1/|tau_i| sum_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)

logp_behaviour - logp_teacher is one sample of the reverse KL of the policy to the teacher at that token, so that the gradient
of J is that of -coef KL token by token: what a token does to later ones is left out. A_i is GRPO's, added only where
`with_reward`. Teacher and behaviour are taken at the temperature that the token was sampled at, both as constants; the
teacher's come with the sample (rti.teacher), so that a resumed run reproduces them. A group teaches whatever its rewards are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from rti.algos.base import LossOutput, Metrics, TokenBatch
from rti.algos.functional import masked
from rti.algos.group_relative import GroupRelative
from rti.trajectory import Group


@dataclass(frozen=True, kw_only=True)
class OPD(GroupRelative):
    coef: float = 1.0
    with_reward: bool = False
    name: str = "opd"
    intervenes: bool = False
    distils: bool = True

    def advantages(self, group: Group) -> np.ndarray:
        """Of the rewards; the teacher's part differs from token to token and is added in `loss`."""
        return super().advantages(group) if self.with_reward else np.zeros(len(group.members), np.float32)

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        gap = masked(batch.mask, batch.teacher_logps) - masked(batch.mask, batch.behaviour_logps)
        judged = replace(batch, advantages=masked(batch.mask, batch.advantages) + self.coef * gap)
        out = self.clipped(judged, current_logps, batch.behaviour_logps, torch.ones_like(batch.weights), entropy)
        return LossOutput(out.loss, out.metrics.merge(Metrics({"teacher_kl": -gap.double().sum()})))
