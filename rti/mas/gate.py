"""The perplexity gate and the weights of intervened tokens. Pure numpy.

Formulas (DESIGN, section 4): PPL_roll(u) = exp(-mean_t logp_roll(u_t)), kept where PPL_roll <= delta; w_t = clip(exp(logp_cal -
logp_roll), 1 - eps, 1 + eps), a constant to the learner.
"""

from __future__ import annotations

import math

import numpy as np


def perplexity(logps: np.ndarray) -> float:
    """exp of the mean negative log-probability; inf where a token is impossible or the text is empty."""
    if len(logps) == 0:
        return math.inf
    mean = -float(np.mean(np.asarray(logps, np.float64)))
    if math.isnan(mean):
        return math.inf
    return math.exp(mean) if mean < 700.0 else math.inf     # exp overflows a double beyond 709


def keeps(ppl: float, delta: float) -> bool:
    """Whether the gate lets a rewrite pass. delta = 0 refuses all (a perplexity is at least 1), inf keeps all."""
    return ppl <= delta


def weights(correction_logps: np.ndarray, roll_logps: np.ndarray, eps: float) -> np.ndarray:
    """float32 weights in [1 - eps, 1 + eps]: how characteristic each token is of the correction."""
    with np.errstate(invalid="ignore"):     # -inf - -inf: says nothing either way
        difference = np.asarray(correction_logps, np.float64) - np.asarray(roll_logps, np.float64)
    difference = np.where(np.isnan(difference), 0.0, difference)
    return np.clip(np.exp(np.clip(difference, -50.0, 50.0)), 1.0 - eps, 1.0 + eps).astype(np.float32)
