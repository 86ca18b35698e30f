"""The tensor arithmetic that the algorithms share: advantages, the clipped ratio, the k3 estimator, the sequence-mean loss.

Keeps field bugs 1 to 5: a masked slot is replaced *before* any exp or product, so that nothing in it can poison loss or
gradient, and a group's statistics are over exactly the members that train. Invariant 9 rests on `policy_loss` being one code
path for every algorithm: multiplying by weights that equal 1 changes no bit.
"""

from __future__ import annotations

import numpy as np
import torch

from rti.algos.base import LossOutput, Metrics, TokenBatch


def group_advantages(rewards: np.ndarray, trained: np.ndarray, eps: float, divide: bool = True) -> np.ndarray:
    """(r - mean) / (std + eps) over the members in `trained` (population std); 0 elsewhere. float32 [G]. `divide` False:
    r - mean.

    Exactly 0 for a group of one and for equal rewards, whatever rounding would make of them.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    out = np.zeros(len(rewards), dtype=np.float32)
    kept = rewards[trained]
    if not np.isfinite(kept).all():
        raise ValueError(f"a reward is not a finite number: {kept.tolist()}; an environment must return a finite reward")
    if len(kept) > 1 and (kept != kept[0]).any():
        out[trained] = (kept - kept.mean()) / (kept.std() + eps if divide else 1.0)
    return out


def masked(mask: torch.Tensor, values: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
    """`values` where `mask`, else `fill`: neither the value nor the gradient of a masked slot gets through, NaN or not."""
    return torch.where(mask, values, torch.full_like(values, fill))


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimator of KL(q || p) from tokens of q, log_ratio = log p - log q: exp(x) - x - 1 >= 0."""
    return torch.expm1(log_ratio) - log_ratio


def log_ratio(batch: TokenBatch, current_logps: torch.Tensor, old_logps: torch.Tensor) -> torch.Tensor:
    """log rho_t = current_t - old_t [N], 0 where masked."""
    return masked(batch.mask, current_logps.float()) - masked(batch.mask, old_logps)


def sequence_mean(batch: TokenBatch, values: torch.Tensor) -> torch.Tensor:
    """Each token's sequence's mean of `values` [N] over its trained tokens."""
    n = int(batch.sequence.max()) + 1 if len(batch.sequence) else 0
    total = values.new_zeros(n).index_add(0, batch.sequence, masked(batch.mask, values))
    count = values.new_zeros(n).index_add(0, batch.sequence, batch.mask.to(values.dtype))
    return (total / count.clamp(min=1))[batch.sequence]


def importance_weights(batch: TokenBatch, gap: torch.Tensor, cap: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """min(exp(gap), cap) [N], detached (truncated importance sampling), and the sums that are measured of it."""
    raw = torch.exp(gap.detach())
    weights = raw.clamp(max=cap)
    return weights, {"importance": _total(batch.mask, weights), "importance_capped": _count(batch.mask & (raw > cap))}


def policy_loss(batch: TokenBatch, current_logps: torch.Tensor, log_ratio: torch.Tensor, weights: torch.Tensor, *,
                clip_low: float, clip_high: float, kl_coef: float, entropy: torch.Tensor | None,
                gap: torch.Tensor | None = None, kept: torch.Tensor | None = None) -> LossOutput:
    """-sum_t scale_t w_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t) (+ kl_coef sum_t scale_t k3_t).

    rho_t = exp(log_ratio_t). With scale_t = 1 / (|tau_i| n) this is the mean over the step's n trajectories of each one's
    mean over its agent tokens. Sums are in float64, so that they hardly depend on how the step is cut into micro-batches.
    `gap` [N]: the token's own log pi_theta - log behaviour, where that is not what log_ratio is; it is only measured.
    `kept` bool [N]: where the upper bound clips such a token its value is the bound, and its gradient stays: the bound times
    rho_t / sg(rho_t).
    """
    mask = batch.mask
    current = masked(mask, current_logps.float())
    advantages, scales = masked(mask, batch.advantages), masked(mask, batch.scales)
    weights = masked(mask, weights.detach())
    ratio = torch.exp(log_ratio)
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    if kept is not None:
        with_gradient = (1 + clip_high) * torch.exp(log_ratio - log_ratio.detach())
        bounded = torch.where(kept & (ratio > 1 + clip_high), with_gradient, bounded)
    surrogate = torch.minimum(ratio * advantages, bounded * advantages)
    objective = (scales * masked(mask, weights * surrogate)).double().sum()
    loss = -objective
    sums = {}
    if kl_coef > 0:
        if batch.reference_logps is None:
            raise ValueError("kl_coef > 0 needs the log-probabilities of the reference policy in the batch")
        kl = k3(masked(mask, batch.reference_logps) - current)
        term = (scales * masked(mask, kl)).double().sum()
        loss = loss + kl_coef * term
        sums |= {"reference_kl_term": term.detach(), "reference_kl": _total(mask, kl)}
    gap = log_ratio if gap is None else gap
    metrics = _measure(batch, gap.detach(), ratio.detach(), clip_low, clip_high, entropy)
    return LossOutput(loss, Metrics({"loss": loss.detach()} | sums | metrics.sums, metrics.least, metrics.greatest))


def measure_weights(batch: TokenBatch, weights: torch.Tensor, log_ratio: torch.Tensor, low: float, high: float,
                    clip_high: float) -> Metrics:
    """Weights and ratios on the intervened tokens; a weight on a bound of its clip counts as clipped."""
    at = batch.mask & batch.intervened
    weights = weights.detach()
    ratio = torch.exp(masked(at, log_ratio.detach()))
    clipped = (weights <= low) | (weights >= high)
    sums = {"intervened": _count(at), "weight": _total(at, weights), "weight_clipped": _count(at & clipped),
            "intervened_ratio": _total(at, ratio),
            "intervened_clip_high": _count(at & (ratio > 1 + clip_high) & (batch.advantages > 0))}
    return Metrics(sums, {"weight": _least(at, weights)}, {"weight": _greatest(at, weights)})


def _measure(batch: TokenBatch, gap: torch.Tensor, ratio: torch.Tensor, clip_low: float, clip_high: float,
             entropy: torch.Tensor | None) -> Metrics:
    mask, advantages = batch.mask, batch.advantages
    plain = mask & ~batch.intervened
    sums = {
        "tokens": _count(mask), "ratio": _total(mask, ratio),
        "clip_low": _count(mask & (ratio < 1 - clip_low) & (advantages < 0)),
        "clip_high": _count(mask & (ratio > 1 + clip_high) & (advantages > 0)),
        "plain": _count(plain),                         # sampled by the policy itself: where both distributions are its own
        "approx_kl": _total(plain, k3(gap)),      # KL(behaviour || current)
        "logp_gap": _total(plain, gap.abs()),
    }
    if entropy is not None:
        sums |= {"entropy": _total(mask, entropy.detach()), "entropy_tokens": _count(mask)}
    return Metrics(sums, {"ratio": _least(mask, ratio)},
                   {"ratio": _greatest(mask, ratio), "logp_gap": _greatest(plain, gap.abs())})


def _total(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return masked(mask, values.detach().double()).sum()


def _count(mask: torch.Tensor) -> torch.Tensor:
    return mask.sum(dtype=torch.float64)


def _least(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    values = masked(mask, values.detach().double(), float("inf"))
    return torch.cat([values, values.new_full((1,), float("inf"))]).amin()


def _greatest(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    values = masked(mask, values.detach().double(), float("-inf"))
    return torch.cat([values, values.new_full((1,), float("-inf"))]).amax()
