"""Packing: which samples share a micro-batch and on which rank, and the one row [T] that a micro-batch is. Pure numpy.

Keeps field bug 26: every rank computes the same plan from the same lengths, each rank has equally many micro-batches (empty
ones where samples run out), so that no collective waits for a rank that has finished. A row holds samples back to back with
restarting position ids: no token is padding, except the one dummy token of an empty micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from rti.learner.batch import TrainSample

Plan = list[list[list[int]]]
"""[rank][micro-batch] -> indices of samples."""


def plan(lengths: Sequence[int], budget: int, ranks: int) -> Plan:
    """Fewest rounds of `ranks` micro-batches of at most `budget` tokens, about equally full. Deterministic."""
    longest = max(lengths, default=0)
    if longest > budget:
        raise ValueError(f"a sample of {longest} tokens does not fit a micro-batch of learner.pack_tokens={budget}; "
                         f"raise learner.pack_tokens to rollout.max_context or more")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    rounds = max(1, -(-sum(lengths) // (budget * ranks)))
    while (bins := _pack(lengths, order, budget, rounds * ranks)) is None:
        rounds += 1
    # Ranks wait for each other in every round, so a round gets micro-batches of like size; every other is dealt backwards.
    bins.sort(key=lambda b: (-sum(lengths[i] for i in b), b))
    dealt: Plan = [[] for _ in range(ranks)]
    for r in range(rounds):
        row = bins[r * ranks:(r + 1) * ranks]
        for rank, content in enumerate(row if r % 2 == 0 else reversed(row)):
            dealt[rank].append(content)
    return dealt


def _pack(lengths: Sequence[int], order: Sequence[int], budget: int, n: int) -> list[list[int]] | None:
    """n bins of at most `budget`: evenly where that works, else first-fit; None where n are too few."""
    return _even(lengths, order, budget, n) or _first_fit(lengths, order, budget, n)


def _even(lengths: Sequence[int], order: Sequence[int], budget: int, n: int) -> list[list[int]] | None:
    """Longest first, each into the emptiest of n bins; None where one would overflow."""
    bins, loads = [[] for _ in range(n)], [0] * n
    for i in order:
        at = min(range(n), key=lambda b: (loads[b], b))
        if loads[at] + lengths[i] > budget:
            return None
        bins[at].append(i)
        loads[at] += lengths[i]
    return [sorted(b) for b in bins]


def _first_fit(lengths: Sequence[int], order: Sequence[int], budget: int, n: int) -> list[list[int]] | None:
    """First-fit decreasing into n bins; None where they do not suffice."""
    bins, loads = [[] for _ in range(n)], [0] * n
    for i in order:
        at = next((b for b in range(n) if loads[b] + lengths[i] <= budget), None)
        if at is None:
            return None
        bins[at].append(i)
        loads[at] += lengths[i]
    return [sorted(b) for b in bins]


@dataclass(frozen=True)
class Row:
    """One micro-batch: T packed input tokens, of which n positions predict a trained token."""

    token_ids: np.ndarray           # int64 [T]
    position_ids: np.ndarray        # int64 [T], from 0 in each sample
    cu_seqlens: tuple[int, ...]     # 0, end of the first sample, ..., T
    select: np.ndarray              # int64 [n], positions of the row
    targets: np.ndarray             # int64 [n]
    temperatures: np.ndarray        # float32 [n]
    behaviour_logps: np.ndarray     # float32 [n]
    correction_logps: np.ndarray    # float32 [n]
    weights: np.ndarray             # float32 [n]
    intervened: np.ndarray          # bool [n]
    from_teacher: np.ndarray        # bool [n]
    teacher_logps: np.ndarray       # float32 [n]
    advantages: np.ndarray          # float32 [n]
    scales: np.ndarray              # float32 [n]
    sequence: np.ndarray            # int64 [n]: which sample a trained token is of
    padding: int                    # tokens of the row that belong to no sample


def collate(samples: Sequence[TrainSample]) -> Row:
    """The row of these samples; without any, a row of one token that predicts nothing."""
    inputs = [s.inputs for s in samples] or [np.zeros(1, np.int32)]
    ends = np.cumsum([len(x) for x in inputs])
    starts = ends - [len(x) for x in inputs]
    counts = [len(s.select) for s in samples]
    return Row(
        token_ids=np.concatenate(inputs).astype(np.int64),
        position_ids=np.concatenate([np.arange(len(x), dtype=np.int64) for x in inputs]),
        cu_seqlens=(0, *(int(e) for e in ends)),
        select=_cat([s.select + start for s, start in zip(samples, starts)], np.int64),
        targets=_cat([s.targets for s in samples], np.int64),
        temperatures=np.repeat(np.array([s.temperature for s in samples], np.float32), counts),
        behaviour_logps=_cat([s.behaviour_logps for s in samples], np.float32),
        correction_logps=_cat([s.correction_logps for s in samples], np.float32),
        weights=_cat([s.weights for s in samples], np.float32),
        intervened=_cat([s.intervened for s in samples], np.bool_),
        from_teacher=_cat([s.from_teacher for s in samples], np.bool_),
        teacher_logps=_cat([s.teacher_logps for s in samples], np.float32),
        advantages=np.repeat(np.array([s.advantage for s in samples], np.float32), counts),
        scales=np.repeat(np.array([s.scale for s in samples], np.float32), counts),
        sequence=np.repeat(np.arange(len(samples), dtype=np.int64), counts),
        padding=0 if samples else 1)


def _cat(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)
