"""pass@k, pass^k and the averages over k, with bootstrap intervals over tasks. Pure; draws from a random stream of its own.

Keeps field bugs 8 and 35: a sample that was lost to environment or infrastructure is missing, never a failure, and is
reported; evaluating touches no stream that training reads.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

import msgspec
import numpy as np

KS = (1, 2, 3, 4)
RESAMPLES = 2000


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one task: an outcome for every sample that ended by the agent's doing, and how many were lost."""

    task_id: str
    cls: str = ""
    outcomes: list[bool]
    lost: int = 0


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k samples succeeds, unbiased from c successes in n: 1 - C(n-c, k) / C(n, k)."""
    _check(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all of k samples succeed, unbiased from c successes in n: C(c, k) / C(n, k)."""
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"{c} successes in {n} samples cannot be")
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} needs at least {max(k, 1)} samples and k >= 1; there are {n}")


def summarise(results: Sequence[TaskResult], ks: Sequence[int] = KS, *, samples: int | None = None, seed: int = 0,
              resamples: int = RESAMPLES) -> dict[str, Any]:
    """The evaluation as summary.json holds it.

    {"p@1", "pass@k": [..], "pass^k": [..], "avg_p@k", "avg_p^k", "n_tasks", "samples", "lost_samples", "incomplete": [ids],
    "ci": {the first five: 95 % bootstrap intervals over tasks}, "by": {class: the same but samples},
    "passed": {task id: successes}}

    `samples` is n as configured. A task that lost samples enters p@1 and every k up to the number it has left, and no other; it
    is listed under "incomplete". A value that no task can give (k above `samples`) is None, and out of the averages.
    """
    if not results:
        raise ValueError("no task was evaluated: the test set is empty (evaluation.tasks, env)")
    ids = [r.task_id for r in results]
    if len(set(ids)) != len(ids):
        raise ValueError(f"a task was evaluated twice: {next(i for i in ids if ids.count(i) > 1)}")
    n = samples if samples is not None else max(len(r.outcomes) + r.lost for r in results)
    rng = np.random.default_rng([seed, 0x6576616C])        # "eval": a stream that nothing else draws from
    out = _measures(results, n, ks, rng, resamples) | {"samples": n}
    classes = sorted({r.cls for r in results if r.cls})
    out["by"] = {cls: _measures([r for r in results if r.cls == cls], n, ks, rng, resamples) for cls in classes}
    out["passed"] = {r.task_id: sum(r.outcomes) for r in results}
    return out


def _measures(results: Sequence[TaskResult], n: int, ks: Sequence[int], rng: np.random.Generator,
              resamples: int) -> dict[str, Any]:
    at_k, hat_k = _values(results, ks, pass_at_k), _values(results, ks, pass_hat_k)
    one = np.array([[_share(r.outcomes)] for r in results])
    table = np.concatenate([one, at_k, hat_k], axis=1)                      # [tasks, 1 + 2 ks], NaN where undefined
    picks = rng.integers(0, len(results), (resamples, len(results)))
    low, high = _interval(table, picks, len(ks))
    return {
        **_named(_with_averages(_mean_known(table, axis=0)[None], len(ks))[0], len(ks)),
        "n_tasks": len(results), "lost_samples": sum(r.lost for r in results),
        "incomplete": [r.task_id for r in results if len(r.outcomes) < n],
        "ci": {k: _pair(a, b) for (k, a), b in zip(_named(low, len(ks)).items(), _named(high, len(ks)).values())},
    }


def _values(results: Sequence[TaskResult], ks: Sequence[int], formula) -> np.ndarray:
    """[tasks, ks]; NaN where a task has fewer than k samples."""
    return np.array([[formula(len(r.outcomes), sum(r.outcomes), k) if len(r.outcomes) >= k else math.nan for k in ks]
                     for r in results], dtype=np.float64).reshape(len(results), len(ks))


def _share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else math.nan


def _mean_known(values: np.ndarray, axis: int) -> np.ndarray:
    """Mean along an axis over what is not NaN; NaN where nothing is."""
    there = ~np.isnan(values)
    counts = there.sum(axis=axis)
    return np.where(counts > 0, np.where(there, values, 0).sum(axis=axis) / np.maximum(counts, 1), math.nan)


def _with_averages(means: np.ndarray, n_ks: int) -> np.ndarray:
    """[rows, 1 + 2 ks] -> [rows, 1 + 2 ks + 2]: the averages over k of pass@k and of pass^k are appended."""
    averages = [_mean_known(means[:, first:first + n_ks], axis=1) for first in (1, 1 + n_ks)]
    return np.column_stack([means, *averages])


def _interval(table: np.ndarray, picks: np.ndarray, n_ks: int) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap, 95 %: (low, high), each [1 + 2 ks + 2]."""
    parts = np.array_split(picks, max(1, picks.size // 500_000))            # bounds the memory of a large test set
    drawn = _with_averages(np.concatenate([_mean_known(table[p], axis=1) for p in parts]), n_ks)
    bounds = np.full((2, drawn.shape[1]), math.nan)
    for j, column in enumerate(drawn.T):
        known = column[~np.isnan(column)]
        if len(known):
            bounds[:, j] = np.percentile(known, (2.5, 97.5))
    return bounds[0], bounds[1]


def _named(row: np.ndarray, n_ks: int) -> dict[str, Any]:
    values = [None if math.isnan(v) else float(v) for v in row]
    return {"p@1": values[0], "pass@k": values[1:1 + n_ks], "pass^k": values[1 + n_ks:1 + 2 * n_ks],
            "avg_p@k": values[-2], "avg_p^k": values[-1]}


def _pair(low: Any, high: Any) -> Any:
    if isinstance(low, list):
        return [_pair(a, b) for a, b in zip(low, high)]
    return None if low is None else [low, high]


# --- for people --------------------------------------------------------------------------------------------------
Rows = list[tuple[str, list[tuple[float | None, Sequence[float] | None]]]]


def rows(sides: Mapping[str, Mapping[str, Any]]) -> tuple[Rows, Rows]:
    """What a table of evaluations shows, measures and then p@1 by class: (label, a (value, 95 % interval) for each side).
    Values are shares; None where a side has none. Measures that no side has are left out, p@1 is not."""
    first = next(iter(sides.values()))
    measures: Rows = [("p@1", [_of(s, "p@1") for s in sides.values()])]
    for label, key in (("pass@", "pass@k"), ("pass^", "pass^k")):
        for i in range(1, len(first[key])):     # k = 1 is p@1
            measures.append((f"{label}{i + 1}", [_of(s, key, i) for s in sides.values()]))
    measures += [(label, [_of(s, k) for s in sides.values()])
                 for label, k in (("avg pass@k", "avg_p@k"), ("avg pass^k", "avg_p^k"))]
    by: Rows = [(f"  {_clip(cls)} ({_count(first['by'][cls]['n_tasks'], 'task')})",
                 [_of(s["by"][cls], "p@1") if cls in s["by"] else (None, None) for s in sides.values()]) for cls in first["by"]]
    return [(label, cells) for label, cells in measures if any(value is not None for value, _ in cells) or label == "p@1"], by


def _of(side: Mapping[str, Any], key: str, i: int | None = None) -> tuple[float | None, Sequence[float] | None]:
    """A measure of an evaluation, or the i-th of it, and its interval."""
    pair = side[key], side["ci"][key]
    return pair if i is None else (pair[0][i], pair[1][i])


def table(evaluations: Mapping[str, Mapping[str, Any] | None]) -> str:
    """The evaluations side by side under their names (None: not made), with their difference where there are two.

    Plain text of at most 100 columns: a row a measure, with 95 % intervals in percent, and a row a class.
    """
    sides = {name: side for name, side in evaluations.items() if side}
    if not sides:
        return "No evaluation."
    first = next(iter(sides.values()))
    heads = list(sides) + (["change"] if len(sides) == 2 else [])
    measures, by = rows(sides)
    width = max(len(label) for label, _ in measures + by) + 2
    size = f"{_count(first['n_tasks'], 'task')}, {_count(first['samples'], 'sample')} each"
    lines = [f"{size}; percent, with 95 % intervals over tasks", "",
             " " * width + "".join(f"{h:>24}" if h != "change" else f"{h:>10}" for h in heads)]
    lines += [_row(width, *row) for row in measures]
    if by:
        lines += ["p@1 by class of task"] + [_row(width, *row) for row in by]
    for name, side in sides.items():
        lines += _losses(name, side)
    return "\n".join(lines)


def _row(width: int, label: str, cells: Sequence[tuple[float | None, Sequence[float] | None]]) -> str:
    text = f"{label:<{width}}" + "".join(f"{_cell(value, ci):>24}" for value, ci in cells)
    if len(cells) == 2:
        (a, _), (b, _) = cells
        text += f"{100 * (b - a):>+10.1f}" if a is not None and b is not None else f"{'-':>10}"
    return text


def _cell(value: float | None, ci: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:5.1f}" + (f" [{100 * ci[0]:5.1f}, {100 * ci[1]:5.1f}]" if ci else "")


def _clip(name: str, limit: int = 24) -> str:
    return name if len(name) <= limit else name[:limit - 1] + "…"


def _losses(name: str, side: Mapping[str, Any]) -> list[str]:
    """What was lost, in words; nothing where the evaluation is whole."""
    ids = side.get("incomplete", [])
    if not ids:
        return []
    shown = ", ".join(_clip(i) for i in ids[:2]) + (", ..." if len(ids) > 2 else "")
    return [f"{name}: {_count(side['lost_samples'], 'sample')} of {_count(len(ids), 'task')} lost to environment or "
            "infrastructure,", f"  counted nowhere ({shown})"]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")
