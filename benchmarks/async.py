"""What overlapping the learner and the generators is worth: a short run with staleness 0 against one with staleness 1.

    python benchmarks/async.py [--config lab.yaml] [--steps 12] [--rounds 2] [key=value ...]

Prints one JSON object. Both kinds of run take turns. `sync_s` and `async_s` are wall seconds of a step, median over the steps
after the first two; `ratio` is async_s / sync_s. `bound` is the best that overlap allows, from the phases of the synchronous
steps: (the longer of rollouts and learning) / (the whole step), with publishing, records and checkpoints on the learner's side.
The idle shares are those that the runs logged. Each engine has one thread, so that two cores can work at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 2


def run(config: str, staleness: int, steps: int, words: list[str], seed: int) -> list[dict[str, Any]]:
    """The metrics of the run's steps, the first WARM_UP left out."""
    with tempfile.TemporaryDirectory() as place:
        settings = {"async.max_staleness": staleness, "steps": steps, "run_dir": f"{place}/run", "seed": seed,
                    "evaluation.before": "false", "evaluation.after": "false", "checkpoint.every": 0,
                    "generators.threads": 1, "learner.threads": 1}
        command = [sys.executable, str(ROOT / "launch" / "rti.py"), "--config", config,
                   *(f"{key}={value}" for key, value in settings.items()), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"a run with staleness {staleness} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
    return [m for m in map(json.loads, lines) if m.get("step", 0) > WARM_UP]


def median(steps: list[dict[str, Any]], key: str) -> float:
    return statistics.median(m.get(key) or 0.0 for m in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="lab.yaml")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("words", nargs="*", metavar="key=value")
    args = parser.parse_args()
    steps: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for seed in range(args.rounds):
        for staleness in steps:
            steps[staleness] += run(args.config, staleness, args.steps, args.words, seed)
    sync_s, async_s = (median(steps[staleness], "time/step_s") for staleness in (0, 1))
    rollout_s = median(steps[0], "time/rollout_s")
    figures: dict[str, Any] = {
        "sync_s": sync_s, "async_s": async_s, "ratio": async_s / sync_s,
        "bound": max(rollout_s, sync_s - rollout_s) / sync_s,
        "staleness_mean": statistics.fmean(m["staleness/mean"] for m in steps[1]), "steps": len(steps[1])}
    figures |= {key: median(steps[0], f"time/{key}") for key in ("rollout_s", "learner_s", "publish_s")}
    figures |= {f"{part}_idle_{name}": median(steps[staleness], f"time/{part}_idle_share")
                for part in ("generator", "learner") for staleness, name in ((0, "sync"), (1, "async"))}
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
