"""Does memory stay flat over many updates? Object store and processes of a run through real Ray.

    python benchmarks/memory.py [--updates 200] [--work DIRECTORY]

Prints one JSON object. A tiny policy trains asynchronously on a cluster of its own; nothing is killed. After a quarter, a half,
three quarters and all of the updates it is read what the object store holds (as Ray counts it; one set of weights and what is
on its way is expected), and the anonymous memory of each process of the run (`Pss_Anon` of smaps_rollup: without the object
store and without files). `growth_kb` is what an update adds between a half and all of them, by kind of process; `weights_mb`
is the size of one set of weights, which would be added with each update if old ones were kept.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.end_to_end.nodes import Head  # noqa: E402
from tests.end_to_end.policy import write_policy  # noqa: E402
from tests.end_to_end.runs import Run, assert_clean, descendants, lines, write_config  # noqa: E402

CPUS = 4
LOOK_S = 0.5
DRIVER = "driver"


def updates(run: Run) -> int:
    """Published so far."""
    return int(max((line["learner/version"] for line in lines(run.directory)), default=0))


def anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("this system's smaps_rollup has no Pss_Anon: Linux 5.3 or newer is needed")


def processes_mb(head: Head, run: Run) -> dict[str, float]:
    """Anonymous memory by kind of process."""
    found: Counter[str] = Counter({DRIVER: anonymous_mb(run.process.pid)})
    for pid, title in descendants(head.process.pid):
        kind = title.removeprefix("ray::").partition(" ")[0].partition(".")[0]
        if title.startswith("ray::") and kind != "IDLE":
            found[kind] += anonymous_mb(pid)
    return {kind: round(mb, 2) for kind, mb in sorted(found.items())}


def measure(work: Path, count: int) -> dict[str, Any]:
    head = Head(work, CPUS)
    policy = write_policy(work / "policy")
    weights_mb = sum(p.stat().st_size for p in policy.glob("*.safetensors")) / 1e6
    read: list[dict[str, Any]] = []
    try:
        head.wait()
        config = write_config(work, policy, steps=1_000_000, rollout__groups_per_step=1, async__max_staleness=1,
                              checkpoint__every=50, ray__address=head.address)
        run = Run(config, ray=head.settings)
        try:
            for quarter in (1, 2, 3, 4):
                while (made := updates(run)) < count * quarter // 4:
                    if run.process.poll() is not None:
                        raise SystemExit(f"the run ended before its {count} updates:\n{run.text()}")
                    time.sleep(LOOK_S)
                read.append({"updates": made, "store_mb": head.store_mb(), "processes_mb": processes_mb(head, run)})
                print(json.dumps(read[-1]), flush=True)
            run.process.send_signal(signal.SIGTERM)
            run.finish()
        finally:
            run.process.kill()
    finally:
        head.end()
    assert_clean(run.directory)
    half, end = read[1], read[3]
    between = end["updates"] - half["updates"]
    growth = {kind: round((mb - half["processes_mb"][kind]) * 1e3 / between, 2) for kind, mb in end["processes_mb"].items()
              if kind in half["processes_mb"]}
    return {"updates": end["updates"], "weights_mb": round(weights_mb, 2), "store_mb": [r["store_mb"] for r in read],
            "processes_mb": [round(sum(r["processes_mb"].values()), 1) for r in read], "growth_kb": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--work", type=Path, help="an empty directory that is kept")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        work = words.work or Path(place)
        work.mkdir(parents=True, exist_ok=True)
        result = measure(work, words.updates)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
