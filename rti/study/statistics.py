"""Means and 95 % intervals over seeds and tasks at once. Pure; numpy; draws from a stream of its own.

A method's successes are an array [seeds, tasks] of counts out of n samples. An interval is a percentile bootstrap that draws
tasks and seeds anew. Of a difference it draws the same tasks on both sides, since both were tested on them, and seeds apart.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple, Sequence

import numpy as np

from rti.evaluation import pass_at_k, pass_hat_k

RESAMPLES = 2000
Formula = Callable[[int, int], float]       # (samples, successes) -> the measure of a task


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def p_at_1(n: int, c: int) -> float:
    return c / n


def avg(formula: Callable[[int, int, int], float]) -> Formula:
    """The average over k = 1..n of pass@k or pass^k."""
    return lambda n, c: sum(formula(n, c, k) for k in range(1, n + 1)) / n


def at(formula: Callable[[int, int, int], float], k: int) -> Formula:
    return lambda n, c: formula(n, c, k)


MEASURES: dict[str, Formula] = {"p@1": p_at_1, "avg p@k": avg(pass_at_k), "avg p^k": avg(pass_hat_k)}


def values(counts: np.ndarray, samples: int, formula: Formula) -> np.ndarray:
    """[seeds, tasks] of the measure."""
    by_count = np.array([formula(samples, c) for c in range(samples + 1)])
    return by_count[counts]


def mean(table: np.ndarray, seed: int = 0) -> Estimate:
    """Of a method's [seeds, tasks] values."""
    rng = _stream(seed)
    return Estimate(float(table.mean()), *_interval(_drawn(table, rng, _shares(table.shape[1], rng))))


def difference(a: np.ndarray, b: np.ndarray, seed: int = 0) -> Estimate:
    """a less b: [seeds, tasks] each, over the same tasks."""
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{a.shape[1]} and {b.shape[1]} tasks cannot be compared task by task")
    rng = _stream(seed)
    tasks = _shares(a.shape[1], rng)
    return Estimate(float(a.mean() - b.mean()), *_interval(_drawn(a, rng, tasks) - _drawn(b, rng, tasks)))


def of_parts(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Estimate:
    """Mean of a less mean of b, two samples without pairs."""
    rng = _stream(seed)
    one, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
    drawn = [_shares(len(x), rng) @ x for x in (one, other)]
    return Estimate(float(one.mean() - other.mean()), *_interval(drawn[0] - drawn[1]))


def entropy(counts: Sequence[int]) -> float:
    """Of a distribution given by counts, nats."""
    whole = sum(counts)
    return -sum(c / whole * math.log(c / whole) for c in counts if c)


def _stream(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 0x73747564])      # "stud"


def _shares(n: int, rng: np.random.Generator) -> np.ndarray:
    """[RESAMPLES, n]: what part of a draw of n out of n, with replacement, each one is."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) / n


def _drawn(table: np.ndarray, rng: np.random.Generator, tasks: np.ndarray) -> np.ndarray:
    """[RESAMPLES]: means of draws of seeds, and of tasks as given."""
    return ((_shares(table.shape[0], rng) @ table) * tasks).sum(1)


def _interval(drawn: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)
