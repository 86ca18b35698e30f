"""What an algorithm takes and gives: small dataclasses around pure tensor arithmetic, and the protocol that the learner calls.

Keeps the additivity of field bug 10: everything in `Metrics` is a sum, a count, a least or a greatest, so that merging the
metrics of micro-batches and ranks gives those of the step whatever the split. May import torch, numpy, rti.trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from rti.trajectory import Ending, Group, Trajectory


@dataclass(frozen=True)
class TokenBatch:
    """N tokens of one micro-batch, flat. Where `mask` is False the other fields may hold anything, NaN included."""

    mask: torch.Tensor                  # bool [N]: trained on
    behaviour_logps: torch.Tensor       # float32 [N], of the rollout prompt (logp_roll for intervened tokens)
    correction_logps: torch.Tensor      # float32 [N], of the correction prompt; read on intervened tokens only
    weights: torch.Tensor               # float32 [N], as stored on the sample
    intervened: torch.Tensor            # bool [N]: Source.CORRECTION
    advantages: torch.Tensor            # float32 [N], of the trajectory that a token belongs to
    scales: torch.Tensor                # float32 [N]: what the token's term is multiplied by (rti.learner.batch)
    sequence: torch.Tensor              # int64 [N]: which sequence of the micro-batch a token belongs to; whole ones only
    reference_logps: torch.Tensor | None = None     # float32 [N], of the reference policy; only with a KL term
    from_teacher: torch.Tensor | None = None        # bool [N]: Source.TEACHER; what LUFFY reads
    teacher_logps: torch.Tensor | None = None       # float32 [N], of the teacher on the policy's tokens; what OPD reads


@dataclass
class Metrics:
    """Additive measures of a step. Keys are the same on every rank and in every micro-batch."""

    sums: dict[str, torch.Tensor] = field(default_factory=dict)     # float64 scalars
    least: dict[str, torch.Tensor] = field(default_factory=dict)    # +inf where nothing was measured
    greatest: dict[str, torch.Tensor] = field(default_factory=dict)

    def merge(self, other: Metrics) -> Metrics:
        """Of both parts together. An empty Metrics is the neutral element."""
        return Metrics(_join(self.sums, other.sums, torch.add), _join(self.least, other.least, torch.minimum),
                       _join(self.greatest, other.greatest, torch.maximum))


@dataclass(frozen=True)
class LossOutput:
    """`loss` is this micro-batch's part of the step's loss: parts are summed over micro-batches and ranks."""

    loss: torch.Tensor
    metrics: Metrics


class Algorithm(Protocol):
    name: str
    intervenes: bool
    """Whether a failed group is run again, under intervention or by a teacher."""
    distils: bool
    """Whether samples must carry a teacher's log-probabilities; a group then teaches whatever its rewards are."""
    kl_coef: float
    """Where above 0 the batch must carry `reference_logps`."""
    aggregation: str
    """sequence: the step's mean over trajectories of each one's mean over its tokens; token: over all tokens of the step."""

    def trains(self, trajectory: Trajectory) -> bool:
        """Whether a member is trained on and part of its group's statistics."""
        ...

    def advantages(self, group: Group) -> np.ndarray:
        """float32 [G]; 0 for members that do not train and throughout a group that teaches nothing."""
        ...

    def loss(self, batch: TokenBatch, current_logps: torch.Tensor, entropy: torch.Tensor | None = None) -> LossOutput:
        """`current_logps` [N] carries the gradient; `entropy` [N] (nats, of the policy at the token) has none."""
        ...


def trains(trajectory: Trajectory, train_truncated: bool) -> bool:
    """The truth table of field bug 8: an episode lost to environment or infrastructure is never a reward, and one that a
    length limit cut is trained on only where the configuration says so (field bug 15)."""
    return trajectory.ending.is_agents and (train_truncated or trajectory.ending != Ending.TRUNCATED)


def finish(metrics: Metrics) -> dict[str, float]:
    """Sums and extremes of a whole step -> the documented keys (docs/records.md). Nothing measured: the key is left out."""
    sums = {k: float(v) for k, v in metrics.sums.items()}
    trained = sums.get("tokens", 0.0) + sums.get("teacher_tokens", 0.0)
    out = {"policy/trained_tokens": trained, "policy/loss": sums.get("loss", 0.0)}
    for key, (total, count) in _MEANS.items():
        if total in sums and sums.get(count, 0) > 0:
            out[key] = sums[total] / sums[count]
    for kind, extremes in (("min", metrics.least), ("max", metrics.greatest)):
        out |= {f"policy/{k}_{kind}": float(v) for k, v in extremes.items() if torch.isfinite(v)}
    if "intervened" in sums:
        out["policy/intervened_tokens"] = sums["intervened"]
    if "teacher_tokens" in sums:
        out["policy/teacher_tokens"] = sums["teacher_tokens"]
    if "reference_kl_term" in sums:
        out["policy/reference_kl_term"] = sums["reference_kl_term"]
    return out


_MEANS = {      # key: (sum, count)
    "policy/ratio_mean": ("ratio", "tokens"),
    "policy/clip_low": ("clip_low", "tokens"),
    "policy/clip_high": ("clip_high", "tokens"),
    "policy/approx_kl": ("approx_kl", "plain"),
    "policy/logp_gap": ("logp_gap", "plain"),
    "policy/entropy": ("entropy", "entropy_tokens"),
    "policy/reference_kl": ("reference_kl", "tokens"),
    "policy/clip_kept": ("clip_kept", "tokens"),
    "policy/importance_mean": ("importance", "tokens"),
    "policy/importance_capped": ("importance_capped", "tokens"),
    "policy/teacher_kl": ("teacher_kl", "tokens"),
    "policy/teacher_probability": ("teacher_probability", "teacher_tokens"),
    "policy/weight_mean": ("weight", "intervened"),
    "policy/weight_clipped": ("weight_clipped", "intervened"),
    "policy/intervened_ratio_mean": ("intervened_ratio", "intervened"),
    "policy/intervened_clip_high": ("intervened_clip_high", "intervened"),
}


def _join(a: dict, b: dict, how) -> dict:
    return {k: how(a[k], b[k]) if k in a and k in b else a.get(k, b.get(k)) for k in (*a, *(k for k in b if k not in a))}
