"""The audit's checks of what lies beside the ledger: figures within their ranges, one trajectory file a step, evaluations.

A check takes the records and its findings, nothing else. Ranges are those of the table in metrics.py.
"""

from __future__ import annotations

import math
import re
from typing import Any, Iterator, Mapping

from rti.config.schema import Config
from rti.run import metrics, trajectories
from rti.run.directory import EVALUATIONS, METRICS, SUMMARY, TRAJECTORIES, evaluation_metrics
from rti.run.files import RecordError, read_json
from rti.run.findings import Findings, Records

_SLACK = 1e-6
"""A weight is kept as float32, and a share may be a quotient of sums."""


def in_range(run: Records, found: Findings) -> None:
    """Every figure can be what its unit says."""
    unknown = set()
    for line in run.metrics:
        for key, value in line.value.items():
            metric = metrics.metric_of(key)
            if metric is None:
                unknown.add(key)
                continue
            found.checked += 1
            if problem := _problem(metric, value, run.config):
                found.breach(f"{METRICS}:{line.number}", f"{key} is {value}, {problem}")
    if unknown:
        found.notes.append(f"{METRICS} holds keys that this version does not know: {', '.join(sorted(unknown)[:5])}")


def _problem(metric: metrics.Metric, value: Any, config: Config) -> str:
    if value is None:
        return "" if metric.unit in metrics.MAY_BE_NULL else f"and a figure in {metric.unit} is always a number"
    low, high = metrics.bounds(metric, config)
    slack = _SLACK * max(1.0, abs(value))
    if low - slack <= value <= high + slack:
        return ""
    return f"and can be {low:g} or more" if math.isinf(high) else f"and can be {low:g} to {high:g}"


# --- trajectory files ------------------------------------------------------------------------------------------------
def stored_files(run: Records, found: Findings) -> None:
    """Each step has one file, with as many of its groups as records.trajectories says, none of them twice."""
    asked, steps = run.config.records.trajectories, run.steps()
    paths = run.trajectory_files()
    found.checked = len(paths)
    for name in _odd_names(run, paths):
        found.breach(f"{TRAJECTORIES}/{name}", "it is not the file of a step; a copy of one was put there: remove it")
    first = True        # a resume may have raised records.trajectories: the steps before it then hold fewer
    for step in range(1, run.last_step + 1):
        consumed = sum(e.consumed and e.use == 1 for e in steps.get(step, ()))
        due = consumed if asked < 0 else min(asked, consumed)
        short = _shortage(run, step, due, found) if due or step in paths else ""
        if short and first:
            found.notes.append(f"{short}, unless a resume raised it after this step")
        elif short:
            found.breach(f"{TRAJECTORIES} (step {step})", short)
        first = first and bool(short)


def _odd_names(run: Records, paths: Mapping[int, Any]) -> Iterator[str]:
    directory, known = run.path / TRAJECTORIES, {p.name for p in paths.values()}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        own = re.fullmatch(r"step-(\d{6,})\.rti", path.name)
        if path.suffix != ".partial" and (path.name not in known or own and trajectories.path_of(
                directory, int(own[1])).name != path.name):
            yield path.name


def _shortage(run: Records, step: int, due: int, found: Findings) -> str:
    """Where a step's file holds fewer groups than are due: what is missing. A group that stands twice is a breach at once."""
    path = trajectories.path_of(run.path / TRAJECTORIES, step)
    if not path.exists():
        return f"{path.name} is missing; {due} groups of its step were stored"
    try:
        ids = [group.id for group in trajectories.read(path)]
    except RecordError:
        return ""       # records-readable names it
    if len(set(ids)) != len(ids):
        found.breach(f"{TRAJECTORIES}/{path.name}", f"it holds group {next(i for i in ids if ids.count(i) > 1)} twice")
    return "" if len(set(ids)) >= due else (f"{path.name} holds {len(set(ids))} groups, and {due} of its step were stored: "
                                            f"records.trajectories is {run.config.records.trajectories}")


# --- evaluations -----------------------------------------------------------------------------------------------------
def evaluations(run: Records, found: Findings) -> None:
    """Summary and metrics say what the evaluations' files say."""
    files = sorted((run.path / EVALUATIONS).glob("step-*.json"))
    of_step: dict[int, dict[str, Any]] = {}
    for path in files:
        found.checked += 1
        try:
            value = read_json(path)
            of_step[int(path.stem.removeprefix("step-"))] = value
            for problem in _contradictions(value):
                found.breach(f"{EVALUATIONS}/{path.name}", problem)
        except (RecordError, TypeError, AttributeError, KeyError, ValueError) as e:
            found.breach(f"{EVALUATIONS}/{path.name}", f"it cannot be read as an evaluation ({type(e).__name__}: {e})")
    logged = {line.value["step"]: line for line in run.metrics}
    for step, value in of_step.items():
        if step in logged:
            for key, figure in evaluation_metrics(value).items():
                if (told := logged[step].value.get(key, figure)) != figure:
                    found.breach(f"{METRICS}:{logged[step].number}", f"{key} is {told}, the evaluation's file says {figure}")
    if run.summary is not None:
        for name, step in (("before", 0), ("after", max(of_step, default=0))):
            told, kept = run.summary.get(name), of_step.get(step)
            if told is not None and told != kept:
                found.breach(SUMMARY, f"{name} is not the evaluation of step {step}: its p@1 is {_p1(told)}, the file's "
                                      f"{_p1(kept)}")


def _contradictions(value: Mapping[str, Any]) -> Iterator[str]:
    """Shares outside 0 to 1, and a whole that is not the mean of its classes."""
    for key, figure in evaluation_metrics(value).items():
        if not 0 <= figure <= 1:
            yield f"{key} is {figure}, and can be 0 to 1"
    by = list(value.get("by", {}).values())
    n = sum(part["n_tasks"] for part in by)
    if by and not value.get("incomplete") and n == value["n_tasks"]:
        mean = sum(part["p@1"] * part["n_tasks"] for part in by) / n
        if not math.isclose(mean, value["p@1"], abs_tol=1e-6):
            yield f"p@1 is {value['p@1']}, its classes give {mean:.6g}"


def _p1(evaluation: Any) -> Any:
    return evaluation.get("p@1") if isinstance(evaluation, dict) else "missing"
