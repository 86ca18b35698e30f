"""The tables of the report: evaluations before and after, totals of a run, what it survived."""

from __future__ import annotations

from typing import Any, Sequence

from rti.evaluation import rows
from rti.report.runs import Run

Cell = tuple[float | None, Sequence[float] | None]


def sides(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """The first and the last evaluation of each run, under the names of their columns."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        steps = sorted(run.evaluations)
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        for step in dict.fromkeys(steps[:1] + steps[-1:]):
            found[prefix + ("before" if step == 0 else f"step {step}")] = run.evaluations[step]
    return found


def result_table(runs: Sequence[Run]) -> dict[str, Any] | None:
    """{"heads", "rows": [(label, [text])], "classes": the same, "size"} in percent with 95 % intervals; None without any."""
    columns = sides(runs)
    if not columns:
        return None
    measures, classes = rows(columns)
    first = next(iter(columns.values()))
    size = f"{first['n_tasks']} tasks, {first['samples']} samples each"
    lost = {name: side["lost_samples"] for name, side in columns.items() if side["lost_samples"]}
    shown, by_class = ([(label, [_cell(c) for c in cells]) for label, cells in part] for part in (measures, classes))
    return {"heads": list(columns), "rows": shown, "classes": by_class, "size": size, "lost": lost}


def _cell(cell: Cell) -> dict[str, str]:
    value, interval = cell
    if value is None:
        return {"value": "-", "interval": ""}
    around = f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else ""
    return {"value": f"{100 * value:.1f}", "interval": around}


def totals_table(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """What happened in each run as a whole."""
    table = [
        ("groups consumed", lambda r: _number(r.totals.consumed)),
        ("... of them trained on", lambda r: _number(r.totals.trained)),
        ("... failed as a whole", lambda r: _of(r.totals.failed, r.totals.consumed)),
        ("... rescued", lambda r: _of(r.totals.rescued, r.totals.failed, "of the failed")),
        ("... consumed once more", lambda r: _number(r.totals.reused)),
        ("intervened rollouts", lambda r: _number(r.totals.intervened)),
        ("steps flagged", lambda r: _of(r.total("intervention/flagged"), r.total("intervention/steps"), "of the steps")),
        ("corrections accepted", lambda r: _of(r.total("intervention/accepted"), r.total("intervention/flagged"), "of these")),
        ("... refused by the gate", lambda r: _number(r.total("intervention/refused/gate"))),
        ("tokens trained on", lambda r: _number(r.total("policy/trained_tokens"))),
        ("... written by the Corrector", lambda r: _of(r.total("policy/intervened_tokens"), r.total("policy/trained_tokens"))),
        ("time", lambda r: _seconds(max(r.curve("time/wall_s")[1], default=None))),
        ("generators idle", lambda r: _percent(r.mean("time/generator_idle_share"))),
        ("learner idle", lambda r: _percent(r.mean("time/learner_idle_share"))),
        ("most memory", lambda r: _gb(max(r.curve("system/peak_gb")[1], default=None))),
    ]
    return [(label, [text(run) for run in runs]) for label, text in table]


def survived(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Losses that the runs went on after, and updates that were left out."""
    table = [
        ("actors that died and came back", lambda r: r.total("system/restarts")),
        ("rollouts lost to the environment, run again", lambda r: r.total("rollouts/lost_environment")),
        ("rollouts lost to the infrastructure, run again", lambda r: r.total("rollouts/lost_infrastructure")),
        ("groups thrown away as too old", lambda r: r.totals.voided),
        ("updates left out: gradient not finite", lambda r: r.total("learner/skipped")),
        ("calls to endpoints that failed after all attempts", _endpoint_failures),
    ]
    return [(label, [_number(count(run)) for run in runs]) for label, count in table]


def _endpoint_failures(run: Run) -> float | None:
    keys = {k for line in run.records.metrics for k in line.value if k.startswith("endpoint/failures/")}
    return sum(run.total(k) or 0 for k in keys) if keys else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _of(part: float | None, whole: float | None, what: str = "") -> str:
    if part is None:
        return "-"
    return f"{part:,.0f}" + (f" ({100 * part / whole:.0f} %{' ' + what if what else ''})" if whole else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _gb(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} GB"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    hours, rest = divmod(int(value), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
