"""A whole run directory made of factory groups by the code that a real run uses: what the tests of records and audit break."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

from rti.config.schema import Config
from rti.run.directory import RunDirectory, summary
from rti.run.ledger import entry_for, voided
from rti.run.statistics import group_metrics, ledger_metrics
from rti.trajectory import Group
from tests.factories import make_group

EVIDENCE = {"stops": [{"name": "Qingshan", "province": "Hubei", "location": "114.380000,30.640000"}], "order_level": 3}
EVALUATION = {
    "p@1": 0.25, "pass@k": [0.25, 0.4, 0.5, 0.6], "pass^k": [0.25, 0.1, 0.05, 0.0], "avg_p@k": 0.4375, "avg_p^k": 0.1,
    "n_tasks": 20, "samples": 4, "lost_samples": 0, "incomplete": [],
    "ci": {"p@1": [0.2, 0.3], "pass@k": [[0.2, 0.3], [0.3, 0.5], [0.4, 0.6], [0.5, 0.7]],
           "pass^k": [[0.2, 0.3], [0.05, 0.2], [0.0, 0.1], [0.0, 0.0]], "avg_p@k": [0.35, 0.5], "avg_p^k": [0.05, 0.15]},
    "by": {"plain": {"p@1": 0.5, "n_tasks": 10, "ci": {"p@1": [0.4, 0.6]}},
           "ambiguous": {"p@1": 0.0, "n_tasks": 10, "ci": {"p@1": [0.0, 0.0]}}},
}


def make_config(**changes: object) -> Config:
    config = Config(name="made", steps=3)
    config.rollout.group_size, config.rollout.groups_per_step = 4, 3
    config.async_.max_staleness, config.intervention.attempts = 1, 2
    config.records.trajectories = -1
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def make_groups(step: int, version: int) -> list[Group]:
    """A group that teaches, one that was rescued after a failed attempt, and one that teaches nothing."""
    first = 3 * (step - 1)
    common = {"evidence": EVIDENCE, "version": version}
    return [
        make_group(100 * step, rewards=(1, 0, 0, 1), group_id=f"0-{first}", task_id=f"t{first}", task_class="plain", **common),
        make_group(100 * step + 1, rewards=(0, 0, 0, 0), rescued=2, attempts=1, group_id=f"0-{first + 1}",
                   task_id=f"t{first + 1}", task_class="ambiguous", **common),
        make_group(100 * step + 2, rewards=(0, 0, 0, 0), group_id=f"0-{first + 2}", task_id=f"t{first + 2}", **common),
    ]


def run_step(run: RunDirectory, step: int) -> list[Group]:
    """One step as the controller records it: weights of version step - 1 become version step."""
    version = step - 1
    groups = make_groups(step, max(0, version - 1))
    entries = [entry_for(g, step=step, learner_version=version) for g in groups]
    if step == 2:       # a group that got too old is voided once, and consumed later under the same id
        entries.insert(0, voided("0-3", "t3", step=step, learner_version=version, oldest_version=0, reason="too old"))
    run.consume(entries)
    run.save_trajectories(step, groups)
    measured = group_metrics(groups, learner_version=version, weight_eps=run.config.intervention.weight_eps)
    tokens = sum(m.n_agent_tokens for g in groups if g.teaches for m in g.members)
    learner = {"learner/version": version + 1, "learner/grad_norm": 0.5, "policy/trained_tokens": tokens}
    run.log(step, {**measured, **ledger_metrics(entries), **learner})
    return groups


def make_checkpoint(run: RunDirectory, step: int) -> Path:
    """A directory laid out as the learner lays out its checkpoints."""
    path = run.checkpoints / f"step-{step:06d}"
    files = {"dcp/.metadata": b"shards", "dcp/__0_0.distcp": np.random.default_rng(step).bytes(5000), "extra.msgpack": b"\x80"}
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    listed = {name: {"size": len(data), "crc32": zlib.crc32(data)} for name, data in files.items()}
    (path / "COMPLETE").write_text(json.dumps({"format": 1, "files": listed}))
    return path


def make_run(path: Path, steps: int = 3, config: Config | None = None) -> Path:
    """A finished run of `steps` steps with two checkpoints, evaluations and a summary."""
    with RunDirectory.open(path, config or make_config()) as run:
        run.save_evaluation(0, EVALUATION)
        for step in range(1, steps + 1):
            run_step(run, step)
            if step >= steps - 1:
                make_checkpoint(run, step)
        run.save_evaluation(steps, EVALUATION)
        run.write_summary(summary(run, before=EVALUATION, after=EVALUATION, peak_gb=1.5, restarts=0))
    return path
