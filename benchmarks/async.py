"""What overlapping the learner and the generators is worth: a short run with staleness 0 against one with staleness 1.

    python benchmarks/async.py [--config lab.yaml] [--steps 12] [--rounds 2] [key=value ...]

Prints one JSON object. Both kinds of run take turns. `sync_s` and `async_s` are wall seconds of a step, mean over the steps
after the first two (a mean, since in asynchronous mode steps that wait and steps that find their groups take turns); `ratio` is
async_s / sync_s. `bound` is the best that overlap allows where either side has a core of its own, from the phases of the
synchronous steps: (the longer of rollouts and the rest) / (the whole step), with publishing and records on the learner's side.
`pace` is how fast one thread computes while a second one computes beside it, against alone, measured before the runs: 1 on
two cores, less on two hyperthreads of one. `bound_here` is the bound where both sides are so slow while both work.
The idle shares are those that the runs logged. Each engine has one thread. The learning rate is 0, so that all runs sample from
one policy and have the same work to do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 2
SECONDS = 3.0


def run(config: str, staleness: int, steps: int, words: list[str], seed: int) -> list[dict[str, Any]]:
    """The metrics of the run's steps, the first WARM_UP left out."""
    with tempfile.TemporaryDirectory() as place:
        settings = {"async.max_staleness": staleness, "steps": steps, "run_dir": f"{place}/run", "seed": seed,
                    "evaluation.before": "false", "evaluation.after": "false", "checkpoint.every": 0,
                    "generators.threads": 1, "learner.threads": 1, "learner.lr": 0}
        command = [sys.executable, str(ROOT / "launch" / "rti.py"), "--config", config,
                   *(f"{key}={value}" for key, value in settings.items()), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"a run with staleness {staleness} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
    return [m for m in map(json.loads, lines) if m.get("step", 0) > WARM_UP]


def _work(counts: Any) -> None:
    """Multiply matrices for SECONDS; how often."""
    import torch
    torch.set_num_threads(1)
    a = torch.rand(384, 384)
    until, n = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        a @ a
        n += 1
    counts.put(n)


def pace() -> float:
    """Work that each of two processes gets done at once, over what one alone gets done."""
    context = multiprocessing.get_context("spawn")

    def rate(processes: int) -> float:
        counts = context.Queue()
        workers = [context.Process(target=_work, args=(counts,)) for _ in range(processes)]
        for worker in workers:
            worker.start()
        done = [counts.get() for _ in workers]
        for worker in workers:
            worker.join()
        return statistics.fmean(done)

    alone = rate(1)
    return rate(2) / alone


def mean(steps: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(m.get(key) or 0.0 for m in steps)


def overlapped(longer: float, shorter: float, pace: float) -> float:
    """Seconds for both phases side by side, where each goes at `pace` while the other works as well."""
    return max(longer, shorter / pace + longer - shorter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="lab.yaml")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("words", nargs="*", metavar="key=value")
    args = parser.parse_args()
    measured = pace()
    steps: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for seed in range(args.rounds):
        for staleness in steps:
            steps[staleness] += run(args.config, staleness, args.steps, args.words, seed)
    sync_s, async_s = (mean(steps[staleness], "time/step_s") for staleness in (0, 1))
    rollout_s = mean(steps[0], "time/rollout_s")
    longer, shorter = sorted((rollout_s, sync_s - rollout_s), reverse=True)
    figures: dict[str, Any] = {
        "sync_s": sync_s, "async_s": async_s, "ratio": async_s / sync_s, "bound": longer / sync_s,
        "bound_here": overlapped(longer, shorter, measured) / sync_s, "pace": measured,
        "staleness_mean": mean(steps[1], "staleness/mean"), "steps": len(steps[1])}
    figures |= {f"{key}_{name}": mean(steps[staleness], f"time/{key}_s")
                for key in ("rollout", "learner", "publish") for staleness, name in ((0, "sync"), (1, "async"))}
    figures |= {f"tokens_{name}": mean(steps[staleness], "episode/tokens") for staleness, name in ((0, "sync"), (1, "async"))}
    figures |= {f"{part}_idle_{name}": mean(steps[staleness], f"time/{part}_idle_share")
                for part in ("generator", "learner") for staleness, name in ((0, "sync"), (1, "async"))}
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
