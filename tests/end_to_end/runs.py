"""Starting runs as a user does, looking at what they leave behind, and killing their actors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Mapping

import yaml

from rti.run import metrics
from rti.run.audit import audit

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240.0


def write_config(directory: Path, policy: Path, **more: Any) -> Path:
    """A tiny run over luck.LuckTasks. `section__key=value` sets a key."""
    tree: dict[str, Any] = {
        "name": "tiny", "steps": 4, "seed": 3, "model": {"path": str(policy)},
        "env": {"class": "tests.end_to_end.luck.LuckTasks", "options": {"n_train": 10, "n_test": 4, "percent": 20}},
        "rollout": {"group_size": 4, "groups_per_step": 3, "max_tokens": 40, "max_context": 256},
        "intervention": {"attempts": 2, "prompts": "compact"}, "generators": {"concurrency": 16, "threads": 1},
        "learner": {"lr": 1e-3, "threads": 1, "pack_tokens": 512}, "checkpoint": {"every": 2},
        "evaluation": {"samples": 2, "before": False, "after": False}, "records": {"trajectories": -1, "report": False},
    }
    for key, value in more.items():
        *sections, name = key.split("__")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    path = directory / "tiny.yaml"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(tree))
    return path


class Run:
    """launch/rti.py as a process of its own, in a directory of its own. `ray`: Ray's settings in its environment."""

    def __init__(self, config: Path, *words: str, script: str = "rti.py", ray: Mapping[str, str] | None = None):
        self.directory = config.parent / "runs" / "tiny"
        self.out = config.parent / f"out-{time.monotonic_ns()}.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"OMP_NUM_THREADS": "1"} | (ray or {})
        with self.out.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, str(ROOT / "launch" / script), "--config", str(config), *words],
                                            cwd=config.parent, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def wait(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the run did not end within {LIMIT_S} s:\n{self.text()}") from None

    def finish(self) -> None:
        assert self.wait() == 0, self.text()

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {what} within {LIMIT_S} s:\n{self.text()}"
            time.sleep(0.02)

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: len(lines(self.directory)) >= step, f"step {step}")

    def actor(self, cls: str) -> int:
        """The pid of the actor of that class."""
        (pid,) = [pid for pid, title in descendants(self.process.pid) if title.startswith(f"ray::{cls}")]
        return pid

    def kill_actor(self, cls: str) -> int:
        """kill -9 of the actor of that class; its pid."""
        pid = self.actor(cls)
        os.kill(pid, signal.SIGKILL)
        return pid


def descendants(root: int) -> list[tuple[int, str]]:
    """(pid, command line) of the processes below one."""
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                titles[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (OSError, ValueError, IndexError):
                continue
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        below = [pid for pid, p in parents.items() if p == parent]
        found += [(pid, titles.get(pid, "")) for pid in below]
        todo += below
    return found


def lines(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.is_file() else ""
    return [json.loads(line) for line in whole.splitlines()]


def record(run: Path) -> tuple[list[dict[str, Any]], str, dict[str, bytes]]:
    """All that two equal synchronous runs have in common: metrics off the clock, ledger, weights of the last checkpoint."""
    last = max((run / "checkpoints").glob("step-*"))
    weights = {p.name: p.read_bytes() for p in (last / "hf").glob("*.safetensors")}
    numbers = [{k: v for k, v in metrics.comparable(line).items() if not k.startswith("rollouts/lost")} for line in lines(run)]
    return numbers, (run / "ledger.jsonl").read_text(), weights


def assert_clean(run: Path) -> None:
    breaches = {r.check.name: r.findings.breaches for r in audit(run) if r.findings.breaches}
    assert not breaches, breaches
