"""Builds and checks navigation task sets: what `launch/data.py navigation` calls.

Keeps: a set is written only after every task passed the check, and the check goes through the real environment over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from rti.config.schema import EndpointConfig, NavigationConfig
from rti.engines.endpoint import ChatEndpoint
from rti.envs.base import Task
from rti.envs.navigation import queries
from rti.envs.navigation.gazetteer import Gazetteer, fold
from rti.envs.navigation.taskset import NavigationTaskSet
from rti.envs.navigation.tasks import SIZES, TaskSplit, first, reference_turns, task_set
from rti.envs.task_files import CheckFailed, write_splits
from rti.envs.navigation.writer import Refusals, rewrite

CONCURRENCY = 32
Say = Callable[[str], None]


async def build(name: str, out: Path, seed: int, sizes: Mapping[str, int] = SIZES, endpoint: ChatEndpoint | None = None,
                say: Say = print) -> dict[str, Any]:
    """Draw, write queries, check, and write `out`/train.jsonl, test.jsonl and meta.json. Returns the report (meta.json)."""
    split = task_set(Gazetteer.load(), name, seed, sizes)
    report: dict[str, Any] = {"split": name, "seed": seed}
    if endpoint is not None:
        split, report["queries"] = await _write_queries(split, endpoint, say)
    with tempfile.TemporaryDirectory(prefix="rti-tasks-") as scratch:
        write_splits(Path(scratch), split.train, split.test)
        report |= await check(Path(scratch), say)
    write_splits(out, split.train, split.test)
    (out / "meta.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


async def _write_queries(split: TaskSplit, endpoint: ChatEndpoint, say: Say) -> tuple[TaskSplit, dict[str, Any]]:
    refusals, done, slots = Refusals(), 0, asyncio.Semaphore(CONCURRENCY)
    total = len(split.train) + len(split.test)

    async def one(task: Task) -> Task:
        nonlocal done
        async with slots:
            written = await rewrite(task, endpoint.complete, endpoint.model, refusals)
        done += 1
        if done % 50 == 0 or done == total:
            say(f"queries: {done} of {total}")
        return written

    try:
        async with asyncio.TaskGroup() as group:
            parts = [[group.create_task(one(t)) for t in tasks] for tasks in (split.train, split.test)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None      # the first says it all; the group has cancelled the others
    train, test = ([t.result() for t in tasks] for tasks in parts)
    kept = sum(t.data["written_by"] == "template" for t in train + test)
    return TaskSplit(train, test), {"model": endpoint.model, "template_kept": kept, "refused_by_filter": refusals.filter,
                                    "refused_by_level": refusals.level}


async def check(directory: Path, say: Say = print) -> dict[str, Any]:
    """Check the set in a directory against every promise; the report. Raises CheckFailed or TaskFileError."""
    tasks = NavigationTaskSet(NavigationConfig(tasks=str(directory), observation_chars=20_000))
    gazetteer = Gazetteer.load()
    problems = [f"{t.id}: {p}" for t in [*tasks.train, *tasks.test] if (p := _problem_of(gazetteer, t))]
    problems += _problems_of_split(tasks.train, tasks.test)
    try:
        for which in ("train", "test"):
            members = getattr(tasks, which)
            failed = await _failed_references(tasks, members)
            problems += [f"{task_id}: the reference solution scores 0" for task_id in failed]
            say(f"{which}: {len(members) - len(failed)} of {len(members)} reference solutions score 1")
    finally:
        await tasks.close()
    if problems:
        raise CheckFailed(f"{len(problems)} problems in {directory}:\n" + "\n".join(problems[:20]))
    return {which: describe(getattr(tasks, which)) for which in ("train", "test")}


def _problem_of(gazetteer: Gazetteer, task: Task) -> str:
    stops = task.evidence["stops"]
    wrong = any((p := first(gazetteer, s["name"])) is None or p.location != s["location"] for s in stops)
    if task.cls != ("ambiguous" if wrong else "plain"):
        return f"its class is '{task.cls}', but the plain search says otherwise"
    ordered = task.data.get("written_by", "template") == "template"
    return queries.problem_of(task.data["query"], [s["name"] for s in stops], stops[0]["province"], ordered)


def _problems_of_split(train: Sequence[Task], test: Sequence[Task]) -> list[str]:
    problems = []
    ids = Counter(t.id for t in [*train, *test])
    problems += [f"{i}: occurs {n} times" for i, n in ids.items() if n > 1]
    names = [{fold(s["name"]) for t in tasks for s in t.evidence["stops"]} for tasks in (train, test)]
    return problems + [f"the name {n} is in train and in test" for n in sorted(names[0] & names[1])]


async def _failed_references(tasks: NavigationTaskSet, members: Sequence[Task]) -> list[str]:
    """Ids of the tasks whose reference solution does not score 1."""
    failed: list[str] = []
    queue = list(reversed(members))

    async def worker() -> None:
        env = tasks.make()
        while queue:
            task = queue.pop()
            await env.reset(task, 0)
            results = [await env.step(turn) for turn in reference_turns(task)]
            outcome = await env.outcome()
            if not (outcome.success and outcome.reward == 1.0 and results[-1].done and len(results) <= env.max_turns):
                failed.append(task.id)
        await env.close()

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return failed


def describe(tasks: Sequence[Task]) -> dict[str, Any]:
    """Counts that a reader wants to know of a set."""
    n = max(1, len(tasks))
    levels = Counter(t.evidence["order_level"] for t in tasks)
    stops = Counter(len(t.evidence["stops"]) for t in tasks)
    return {
        "tasks": len(tasks), "ambiguous_share": round(sum(t.cls == "ambiguous" for t in tasks) / n, 4),
        "order_levels": {str(k): levels[k] for k in sorted(levels)}, "stops": {str(k): stops[k] for k in sorted(stops)},
        "longest_query": max((len(t.data["query"]) for t in tasks), default=0),
    }


def run(args: Any) -> int:
    """What the command line asked for. Returns the exit code."""
    out = args.out or Path("build") / f"navigation-{args.split}"
    if args.check:
        print(json.dumps(asyncio.run(check(out)), indent=2))
        return 0
    sizes = {"train": args.train, "test": args.test}
    report = asyncio.run(_build_with_endpoint(args, out, sizes))
    print(json.dumps(report, indent=2))
    print(f"written: {out}{os.sep}train.jsonl, test.jsonl, meta.json. Use it with env.navigation.tasks={out}")
    return 0


async def _build_with_endpoint(args: Any, out: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    if not args.endpoint:
        return await build(args.split, out, args.seed, sizes)
    endpoint = ChatEndpoint(EndpointConfig(base_url=args.endpoint, model=args.model, key_env=args.key_env), "writer")
    try:
        return await build(args.split, out, args.seed, sizes, endpoint)
    finally:
        await endpoint.close()
