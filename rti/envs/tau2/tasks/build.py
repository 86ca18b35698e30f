"""Writes and checks the training tasks of τ²-Bench: what `launch/data.py tau2` calls.

Keeps: a file is written only after every task in it passed the check, which the official evaluator makes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Sequence

from rti.envs.task_files import CheckFailed
from rti.envs.tau2.domain import Domain, load_domain
from rti.envs.tau2.tasks import files
from rti.envs.tau2.tasks.check import problem_of
from rti.envs.tau2.tasks.effects import as_set
from rti.envs.tau2.tasks.files import TrainingTask
from rti.envs.tau2.tasks.generate import generate
from rti.envs.tau2.tasks.goal import kinds_of
from rti.envs.tau2.tasks.source import AUTO, training_tasks

Say = Callable[[str], None]
OUT = "build/tau2-{domain}.jsonl"


def run(args: argparse.Namespace, say: Say = print) -> int:
    """`launch/data.py tau2`: make, check and write; with --check, check a file (or what `auto` trains on) and write nothing."""
    domain = load_domain(args.domain, args.data_dir)
    if args.check or domain.name == "telecom":
        tasks = training_tasks(domain, AUTO) if args.check in ("", AUTO) else files.read(Path(args.check), domain.name)
        report = check(domain, tasks, args.data_dir, say)
    else:
        rows = generate(domain, args.count, args.seed)
        tasks = [TrainingTask(files.official_task(row)) for row in rows]
        report = check(domain, tasks, args.data_dir, say) | {"goals": dict(Counter(k for r in rows for k in kinds_of(r)))}
        out = args.out or Path(OUT.format(domain=domain.name))
        files.write(out, rows)
        report |= {"seed": args.seed, "file": str(out)}
    say(json.dumps(report, indent=2))
    return 0


def check(domain: Domain, tasks: Sequence[TrainingTask], data_dir: str = "", say: Say = print) -> dict[str, Any]:
    """Every task against every promise; the report. Raises CheckFailed. Tasks of a snapshot are judged over that snapshot.

    Promises: the reference scores 1 and doing nothing 0 by the official evaluator; no two tasks of one database change it
    alike, and none as a base task does (telecom apart, whose tasks are the official ones); ids are unique."""
    ids = Counter(t.id for t, _ in tasks)
    problems = [f"{i}: the id occurs {n} times" for i, n in ids.items() if n > 1]
    if domain.name != "telecom":
        problems += _alike(domain, tasks, data_dir)
    for n, (task, db) in enumerate(tasks, 1):
        if why := problem_of(load_domain(domain.name, data_dir, db), task):
            problems.append(f"{task.id}: {why}")
        if n % 100 == 0 or n == len(tasks):
            say(f"{domain.name}: {n} of {len(tasks)} checked, {len(problems)} problems")
    if problems:
        raise CheckFailed(f"{len(problems)} problems in {len(tasks)} {domain.name} tasks:\n" + "\n".join(problems[:20]))
    actions = Counter(len(t.evaluation_criteria.actions or []) for t, _ in tasks)
    return {"domain": domain.name, "tasks": len(tasks), "checked": len(tasks), "problems": 0,
            "tasks_by_actions": dict(sorted(actions.items()))}


def _alike(domain: Domain, tasks: Sequence[TrainingTask], data_dir: str) -> list[str]:
    """Tasks whose change of their database is that of an earlier one, or of a base task."""
    seen = {(as_set(domain.gold(t)), ""): f"base task {t.id}" for t in domain.tasks("base")}
    problems = []
    for task, db in tasks:
        key = (as_set(load_domain(domain.name, data_dir, db).gold(task)), db)
        if key in seen:
            problems.append(f"{task.id}: it changes the database as {seen[key]} does")
        seen.setdefault(key, task.id)
    return problems
