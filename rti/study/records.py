"""What a study keeps of each run (study.json), and how it is read from the directory that the run left.

Keeps: what was not measured is absent, never 0; a run is kept only when it is complete; successes are kept task by task, so
that two methods are compared on the same tasks.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Iterable, Sequence

import msgspec
import numpy as np

from rti.run import trajectories
from rti.run.directory import LEDGER, METRICS, SUMMARY, TRAJECTORIES
from rti.run.files import RecordError, read_json, read_lines, write_json
from rti.run.ledger import read_ledger, totals
from rti.run.metrics import REFUSALS
from rti.trajectory import Group

EVALUATION = "evaluation.json"
"""What launch/eval.py said, in the directory of an evaluation."""
CURVES = ("pass@G/before", "pass@G/after", "reward/before_mean", "intervention/accepted", "ppl/accepted_mean", "groups/failed",
          "groups/rescued", "learner/updated")
COUNTED = ("intervention/rollouts", "intervention/steps", "intervention/flagged", "intervention/accepted",
           *(f"intervention/refused/{key}" for key in REFUSALS), "weight/tokens")
PER_ACCEPTED = ("intervention/calls_original", "intervention/calls_corrected", "intervention/chars_original",
                "intervention/chars_corrected", "ppl/accepted_mean")


class Account(msgspec.Struct, kw_only=True):
    """What a run spent. `plain` and `intervened` are rollouts (the teacher's own count as intervened)."""

    steps: int
    updates: int
    plain: int
    intervened: int
    failed: int             # groups in which every plain rollout failed
    rescued: int
    wall_s: float

    @property
    def rollouts(self) -> int:
        return self.plain + self.intervened


class Outcome(msgspec.Struct, kw_only=True):
    """A complete entry of the plan. `passed`: successes of each test task, in the order of Study.tasks; empty for a search."""

    name: str
    part: str
    method: str
    seed: int
    words: list[str]
    passed: dict[str, int] = {}
    samples: int = 0
    by: dict[str, float] = {}                       # class of task -> p@1
    account: Account | None = None                  # None where nothing was trained
    curves: dict[str, list[float | None]] = {}      # key of metrics.jsonl -> a value a step
    evaluations: dict[int, dict[str, Any]] = {}     # step -> {"p@1", "pass@k"}
    turns: dict[int, int] = {}                      # agent turns -> plain rollouts of the run's last quarter
    statistics: dict[str, float] = {}               # COUNTED as sums, PER_ACCEPTED as means over the accepted steps


class Study(msgspec.Struct, kw_only=True):
    """study.json. `missing`: names of the plan's entries that are not complete."""

    scale: dict[str, Any]
    rollouts_per_step: list[int]                    # [group_size, groups_per_step]
    classes: dict[str, str]                         # test task -> its class
    rates: dict[str, float]                         # algorithm -> learning rate as searched
    scores: dict[str, dict[str, float]]             # algorithm -> rate -> what the search saw
    outcomes: list[Outcome]
    missing: list[str]
    parameters: dict[str, int]                      # policy, teacher

    def of(self, method: str, part: str = "") -> list[Outcome]:
        """The outcomes of a method in order of their seeds, searches left out."""
        found = [o for o in self.outcomes if o.method == method and o.part != "search" and part in ("", o.part)]
        return sorted(found, key=lambda o: o.seed)


def read_outcome(directory: Path, *, name: str, part: str, method: str, seed: int, words: Sequence[str]) -> Outcome:
    """The outcome of an entry that is complete in `directory`. Raises RecordError where a record cannot be read."""
    known = dict(name=name, part=part, method=method, seed=seed, words=list(words))
    if (directory / EVALUATION).is_file():
        return Outcome(**known, **_evaluation(read_json(directory / EVALUATION)))
    summary = read_json(directory / SUMMARY)
    lines = [line.value for line in read_lines(directory / METRICS).lines]
    return Outcome(
        **known, **_evaluation(summary["after"] or {}), account=account(lines, summary), evaluations=_evaluations(directory),
        curves={key: [line.get(key) for line in lines] for key in CURVES if any(line.get(key) is not None for line in lines)},
        turns=turns_of(_groups(directory, len(lines))), statistics=statistics(lines))


def _evaluation(evaluation: dict[str, Any]) -> dict[str, Any]:
    if not evaluation:
        return {}
    return {"passed": evaluation["passed"], "samples": evaluation["samples"],
            "by": {cls: part["p@1"] for cls, part in evaluation["by"].items()}}


def _evaluations(directory: Path) -> dict[int, dict[str, Any]]:
    return {int(path.stem.removeprefix("step-")): {key: read_json(path)[key] for key in ("p@1", "pass@k")}
            for path in sorted((directory / "evaluations").glob("step-*.json"))}


def account(lines: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Account:
    """Every rollout that the run made for training, whether or not it taught; evaluations cost every method the same."""
    def total(key: str) -> int:
        return int(sum(line.get(key) or 0 for line in lines))
    return Account(
        steps=len(lines), updates=total("learner/updated"), plain=total("rollouts/plain"),
        intervened=total("intervention/rollouts"), failed=total("groups/failed"), rescued=total("groups/rescued"),
        wall_s=round(summary["wall_s"], 1))


def statistics(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What interventions did over the whole run; empty where there were none."""
    def total(key: str, weight: str = "") -> float:
        return sum((line.get(key) or 0) * (line.get(weight) or 0 if weight else 1) for line in lines)
    if not total("intervention/rollouts"):
        return {}
    accepted = total("intervention/accepted")
    found = {key: total(key) for key in COUNTED}
    found["successes"] = round(total("intervention/success_share", "intervention/rollouts"))
    found["with_accepted"] = round(total("intervention/accepted_trajectories_share", "intervention/rollouts"))
    return found | {key: total(key, "intervention/accepted") / accepted for key in PER_ACCEPTED if accepted}


def turns_of(groups: Iterable[Group]) -> dict[int, int]:
    """Agent turns -> how many plain rollouts took so many; a rescue is not one."""
    counts = Counter(len(m.steps) for g in groups for i, m in enumerate(g.members) if i != g.replaced)
    return dict(sorted(counts.items()))


def _groups(directory: Path, steps: int) -> Iterable[Group]:
    """The stored groups of the last quarter of the run."""
    for step, path in trajectories.files(directory / TRAJECTORIES).items():
        if step > steps - quarter(steps):
            yield from trajectories.read(path)


def quarter(steps: int) -> int:
    """How many steps the last quarter of a run is, which is what the run has become."""
    return max(1, steps // 4)


def quarters(curve: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """The values of the first and of the last quarter of the steps that have one."""
    known = [v for v in curve if v is not None]
    size = quarter(len(known))
    return known[:size], known[-size:]


def score(outcome: Outcome) -> float:
    """What the search compares: mean outcome of the plain rollouts in the last quarter of a run, on training tasks."""
    _, last = quarters(outcome.curves["reward/before_mean"])
    return float(np.mean(last))


def check_account(directory: Path, outcome: Outcome) -> None:
    """Raise RecordError where ledger and metrics disagree on what was spent."""
    by_ledger = totals(numbered.entry for numbered in read_ledger(directory / LEDGER))
    spent = outcome.account
    if spent is not None and (by_ledger.intervened, by_ledger.failed) != (spent.intervened, spent.failed):
        raise RecordError(f"{directory}: the ledger has {by_ledger.intervened} intervened rollouts in {by_ledger.failed} "
                          f"failed groups, the metrics {spent.intervened} in {spent.failed}; edited? Remove the run")


def write(path: Path, study: Study) -> None:
    write_json(path, msgspec.to_builtins(study, str_keys=True))


def read(path: Path) -> Study:
    """Raises RecordError where there is no study, or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except OSError as e:
        raise RecordError(f"{path}: {e.strerror}; `python launch/study.py` makes it") from e
    except msgspec.DecodeError as e:
        raise RecordError(f"{path}: not a study ({e}); `python launch/study.py --report` writes it again from its runs") from e
