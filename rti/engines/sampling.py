"""From logits to tokens and log-probabilities of the distribution sampled from.

Keeps batch invariance: a row's token depends on its logits and on its own random stream alone. The stream is a counter: the
number for the t-th new token of a request is a hash of (seed, t), so it is the same whenever and beside whatever it is drawn.
Transcendental functions are only used inside row-wise kernels (softmax, log_softmax): element-wise ones round differently in
the tail of a vector register, that is, depending on the number of rows. May import torch.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch

from rti.engines.base import SamplingParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """float64 in [0, 1): number `counters[i]` of the stream of `seeds[i]`. SplitMix64 from a mixed start."""
    with np.errstate(over="ignore"):
        start = _mix(seeds.astype(np.uint64) + _GOLDEN)
        bits = _mix(start + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)) * 2.0 ** -53


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], counters: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [n] and their log-probabilities float32 [n] for logits [n, V]; `counters` count the new tokens so far."""
    n, device = len(params), logits.device
    logits = scale(logits, [p.temperature for p in params])
    nucleus = [i for i, p in enumerate(params) if p.top_p < 1 and p.temperature > 0]
    if nucleus:
        index = torch.tensor(nucleus, device=device)
        logits[index] = keep_nucleus(logits[index], torch.tensor([params[i].top_p for i in nucleus], device=device))
    cumulative = torch.softmax(logits, -1).cumsum(-1, dtype=torch.float64)
    seeds = np.fromiter((p.seed & 0xFFFFFFFFFFFFFFFF for p in params), np.uint64, n)
    total = cumulative[:, -1]
    targets = torch.from_numpy(uniforms(seeds, counters)).to(device) * total
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))    # never a token of no probability
    tokens = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    tokens.clamp_(max=logits.shape[1] - 1)    # beyond only where the logits are NaN, which the log-probability will show
    greedy = [i for i, p in enumerate(params) if p.temperature == 0]
    if greedy:
        index = torch.tensor(greedy, device=device)
        tokens[index] = logits[index].argmax(-1)
    return tokens, logps_of(logits, tokens)


def scale(logits: torch.Tensor, temperatures: Sequence[float]) -> torch.Tensor:
    """float32 logits divided by each row's temperature; temperature 0 (greedy) leaves them."""
    divisors = np.fromiter((t or 1.0 for t in temperatures), np.float32, len(temperatures))
    return logits.float() / torch.from_numpy(divisors).to(logits.device)[:, None]


def keep_nucleus(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """-inf for all but the most likely tokens that together first reach `top_p` [n]; the best token always stays."""
    probabilities, order = torch.softmax(logits, -1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
    outside = before >= top_p[:, None]
    outside[:, 0] = False
    return logits.masked_fill(torch.zeros_like(outside).scatter_(1, order, outside), -torch.inf)


def logps_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log softmax(logits)[token], float32 [n]."""
    return torch.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0]
