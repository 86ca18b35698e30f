"""Makes, lists and selects Claw-Eval tasks: what `launch/data.py claw-eval` calls.

Keeps: a task set is written only after every task in it passed its check, and with an account of what was left out and why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any, Callable, Sequence

from rti.config.schema import ClawEvalConfig
from rti.envs.base import Task
from rti.envs.claw_eval.synthesis import SPLITS, problem_of, synthesise
from rti.envs.claw_eval.taskset import ClawEvalTaskSet, families_of
from rti.envs.task_files import CheckFailed, write_splits
from rti.run.profile import Profile, read_profile

Say = Callable[[str], None]
OUT, HARD = Path("build/claw-eval"), Path("build/claw-eval-hard")


def run(args: argparse.Namespace, say: Say = print) -> int:
    """`launch/data.py claw-eval synthesize`, `list` or `select`; the last thing said is the report."""
    if args.action == "list":
        from rti.envs.claw_eval.official import describe, list_tasks
        say(describe(list_tasks(args.home)))
    elif args.action == "synthesize":
        say(json.dumps(synthesize(families_of(args.families), args.variants, args.seed, args.out, say), indent=2))
    else:
        say(json.dumps(select(args.tasks, read_profile(args.profile), args.max_pass, args.out), indent=2))
    return 0


def synthesize(families: Sequence[str], variants: int, seed: int, out: Path, say: Say = print) -> dict[str, Any]:
    """Makes `variants` tasks of each family in train and as many others in test, checks every one, and writes them to `out`.

    Returns the report. Raises CheckFailed with every task that breaks a promise."""
    found, redrawn = synthesise(families, variants, seed)
    problems = [f"{task.id}: {why}" for split in SPLITS for task in found[split] if (why := asyncio.run(problem_of(task)))]
    if problems:
        raise CheckFailed(f"{len(problems)} problems:\n" + "\n".join(problems[:20]))
    write_splits(out, **found)
    say(f"{sum(map(len, found.values()))} tasks checked and written to {out}")
    return {"families": list(families), "seed": seed, "redrawn_as_near_duplicates": redrawn, "problems": 0,
            "directory": str(out), **{split: _counts(found[split]) for split in SPLITS}}


def select(tasks: str, profile: Profile, max_pass: Fraction, out: Path) -> dict[str, Any]:
    """Writes to `out` the tasks of a set of which at most `max_pass` of the rollouts passed; the report is by category.

    A task that the profile does not know, or of which every rollout was lost, is left out and counted as unmeasured. A split
    that was not profiled at all (an evaluation runs test tasks alone) stays as it is. Raises CheckFailed where none is left."""
    measured = {t.id: Fraction(t.passed, t.samples) for t in profile.tasks if t.samples}
    given = ClawEvalTaskSet(ClawEvalConfig(tasks=tasks))
    found = {split: list(getattr(given, split)) for split in SPLITS}
    kept, reports = dict(found), {}
    for split, all_tasks in found.items():
        if known := [t for t in all_tasks if t.id in measured]:
            kept[split] = [t for t in known if measured[t.id] <= max_pass]
            reports[split] = {"unmeasured": len(all_tasks) - len(known),
                              "by_category": _by_category(known, kept[split], measured)}
    if not any(kept[split] for split in reports):
        raise CheckFailed(_none_left(tasks, max_pass, profile, bool(reports)))
    write_splits(out, **kept)
    return {"model": profile.model, "max_pass": str(max_pass), "directory": str(out), **{s: len(kept[s]) for s in SPLITS},
            "profiled": reports}


def _none_left(tasks: str, max_pass: Fraction, profile: Profile, known: bool) -> str:
    if not known:
        return (f"the profile of {profile.model} knows no task of {tasks}; mend: profile that set "
                f"(launch/eval.py --profile env.claw_eval.tasks={tasks})")
    return f"{profile.model} passes every task of {tasks} more often than {max_pass}; mend: raise --max-pass"


def _by_category(known: Sequence[Task], kept: Sequence[Task], measured: dict[str, Fraction]) -> dict[str, dict[str, Any]]:
    """{category: tasks measured, tasks kept, mean share of rollouts that passed before and after}."""
    classes = sorted({t.cls for t in known})
    of = {cls: ([t for t in known if t.cls == cls], [t for t in kept if t.cls == cls]) for cls in classes}
    return {cls: {"tasks": len(all_), "kept": len(left), "passed": _mean(all_, measured), "kept_passed": _mean(left, measured)}
            for cls, (all_, left) in of.items()}


def _mean(tasks: Sequence[Task], measured: dict[str, Fraction]) -> float | None:
    return round(float(sum(measured[t.id] for t in tasks) / len(tasks)), 4) if tasks else None


def _counts(tasks: Sequence[Task]) -> dict[str, Any]:
    return {"tasks": len(tasks), "by_category": dict(Counter(t.cls for t in tasks))}
