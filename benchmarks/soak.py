"""A run that something is killed in every 20 seconds: does it go on, how soon, and is anything lost or counted twice?

    python benchmarks/soak.py [--minutes 5] [--every 20] [--seed 0] [--work DIRECTORY]

Prints a line a fault and, last, one JSON object. A tiny policy trains asynchronously (staleness at most 2) through real Ray on
a cluster of its own. Every `--every` seconds one process gets kill -9, drawn by the seed from those that are alive: generator,
env worker, intervener, replay buffer, learner rank, or the driver, which is started again by the same command. A fault is
survived when, without other help, the killed process has a successor and a further step is recorded after it; the seconds
from the kill until then are the time to recover (a later kill may fall into it). At the end SIGTERM must end the run with
exit code 0. `groups_lost`, `groups_doubled` and `breaches` are what `rti.run.audit` finds then. Object store: what Ray says
is in use while the run goes on. Exit code 1 where a fault was not survived or the audit finds a breach.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rti.run.audit import audit  # noqa: E402
from tests.end_to_end.nodes import Head  # noqa: E402
from tests.end_to_end.policy import write_policy  # noqa: E402
from tests.end_to_end.runs import Run, descendants, write_config  # noqa: E402

DRIVER = "driver"
PREY = ("Generator", "EnvWorker", "Intervener", "ReplayBuffer", "LearnerRank", DRIVER)
CPUS = 4
PATIENCE_S = 180.0
"""A fault from which a run has not recovered after so long is not survived."""
LOOK_S = 0.25


class Soak:
    """One run on one cluster, looked at from outside: processes by pid, progress by the growth of metrics.jsonl."""

    def __init__(self, work: Path, seed: int):
        self._random = random.Random(seed)
        self.head = Head(work, CPUS)
        self.head.wait()
        self._config = write_config(
            work, write_policy(work / "policy"), steps=1_000_000, async__max_staleness=2, checkpoint__every=5,
            checkpoint__keep=2, env__options__delay_s=0.05, ray={"address": self.head.address, "restarts": 1000})
        self.endings: list[str] = []    # of a driver that nobody had killed
        self.starts = self.steps = 0
        self._size = 0
        self.start()

    def start(self) -> None:
        self.run = Run(self._config, ray=self.head.settings)
        self.starts += 1

    def pids(self) -> dict[str, list[int]]:
        """Of each kind of prey, those that are alive."""
        found: dict[str, list[int]] = {kind: [] for kind in PREY}
        for pid, title in descendants(self.head.process.pid):
            kind = title.removeprefix("ray::").partition(" ")[0].partition(".")[0]
            if title.startswith("ray::") and kind in found:
                found[kind].append(pid)
        found[DRIVER] = [self.run.process.pid] if self.run.process.poll() is None else []
        return found

    def look(self) -> bool:
        """Whether a step was recorded since the last look; a run that ended by itself is noted and started again."""
        if self.run.process.poll() is not None:
            self.endings.append(f"exit code {self.run.process.returncode}: {self.run.text()[-500:]}")
            self.start()
        path = self.run.directory / "metrics.jsonl"
        size = path.stat().st_size if path.is_file() else 0
        grown, self._size = size > self._size, size
        self.steps += grown
        return grown

    def kill(self) -> tuple[str, set[int]]:
        """kill -9 of one process; its kind, and the pids of that kind before."""
        alive = self.pids()
        kind = self._random.choice([k for k in PREY if alive[k]])
        os.kill(self._random.choice(alive[kind]), signal.SIGKILL)
        if kind == DRIVER:
            self.run.process.wait()
            self.start()
        return kind, set(alive[kind])

    def recovered(self, kind: str, before: set[int]) -> bool:
        return bool(set(self.pids()[kind]) - before)


def wait_for_steps(soak: Soak, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count:
        if time.monotonic() > deadline:
            raise SystemExit(f"the run makes no steps:\n{soak.run.text()}")
        count -= soak.look()
        time.sleep(LOOK_S)


def torment(soak: Soak, seconds: float, every: float) -> list[dict[str, Any]]:
    """Faults, each with its kind, when it came and how long it took to recover (None: not within PATIENCE_S)."""
    begin = time.monotonic()
    faults: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], set[int], bool]] = []      # fault, pids before, whether a successor was seen
    while waiting or time.monotonic() < begin + seconds:
        now = time.monotonic()
        if now < begin + seconds and now >= begin + every * (len(faults) + 1):
            kind, before = soak.kill()
            faults.append({"kind": kind, "at": now, "recovered_s": None})
            waiting.append((faults[-1], before, False))
        stepped = soak.look()
        waiting = [(fault, before, there or soak.recovered(fault["kind"], before)) for fault, before, there in waiting
                   if not _over(fault, there and stepped)]
        time.sleep(LOOK_S)
    return faults


def _over(fault: dict[str, Any], recovered: bool) -> bool:
    seconds = time.monotonic() - fault["at"]
    if recovered:
        fault["recovered_s"] = round(seconds, 1)
        print(f"{fault['kind']}: a further step after {seconds:.1f} s", flush=True)
    return recovered or seconds > PATIENCE_S


def measure(work: Path, minutes: float, every: float, seed: int) -> dict[str, Any]:
    soak = Soak(work, seed)
    try:
        wait_for_steps(soak, 3)
        store = soak.head.store_mb()
        faults = torment(soak, minutes * 60, every)
        wait_for_steps(soak, 3)
        store_end = soak.head.store_mb()
        soak.run.process.send_signal(signal.SIGTERM)
        code = soak.run.wait()
    finally:
        soak.head.end()
        soak.run.process.kill()
    breaches = {r.check.name: len(r.findings.breaches) for r in audit(soak.run.directory) if not r.holds}
    times = [fault["recovered_s"] for fault in faults if fault["recovered_s"] is not None]
    return {
        "minutes": minutes, "every_s": every, "seed": seed, "faults": len(faults), "survived": len(times) - len(soak.endings),
        "by_kind": dict(Counter(fault["kind"] for fault in faults)), "starts": soak.starts, "steps_recorded": soak.steps,
        "recover_median_s": statistics.median(times) if times else None, "recover_worst_s": max(times, default=None),
        "worst_by_kind": {k: max(f["recovered_s"] or PATIENCE_S for f in faults if f["kind"] == k)
                          for k in sorted({f["kind"] for f in faults})},
        "groups_lost": breaches.get("nothing-skipped", 0), "groups_doubled": breaches.get("consumed-once", 0),
        "breaches": breaches, "store_mb_start": store, "store_mb_end": store_end, "exit_code": code, "endings": soak.endings}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="an empty directory that is kept")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        work = words.work or Path(place)
        work.mkdir(parents=True, exist_ok=True)
        result = measure(work, words.minutes, words.every, words.seed)
    print(json.dumps(result))
    return 0 if result["faults"] == result["survived"] and not result["breaches"] and not result["exit_code"] else 1


if __name__ == "__main__":
    sys.exit(main())
