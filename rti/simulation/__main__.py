"""`python -m rti.simulation --seeds N --first S`: simulate seeds one after the other. Exit code 1 where one fails.

Prints each seed that fails with what was violated and how to run it again, and one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from multiprocessing import get_context
from typing import Sequence

from rti.commands import guarded
from rti.simulation.world import run_one

SHOWN = 10


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rti.simulation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args(words)
    seeds = range(args.first, args.first + args.seeds)
    began = time.perf_counter()
    total: Counter[str] = Counter()
    failed: list[int] = []
    with get_context("spawn").Pool(args.processes) as pool:
        for seed, outcome, trouble in pool.imap_unordered(run_one, seeds, chunksize=20):
            if outcome is None:
                failed.append(seed)
                if len(failed) <= SHOWN:
                    again = f"python -m rti.simulation --seeds 1 --first {seed}"
                    print(f"seed {seed} fails:\n{trouble}again: {again}\n", flush=True)
                continue
            for key in ("events", "lives", "simulated_s", "voided"):
                total[key] += getattr(outcome, key)
            total.update({f"fault {kind}": n for kind, n in outcome.faults.items()})
    took = time.perf_counter() - began
    print(json.dumps({"seeds": args.seeds, "first": args.first, "failed": sorted(failed), "seconds": round(took, 1),
                      "ms_per_seed": round(1000 * took / args.seeds, 1), "processes": args.processes, "cores": os.cpu_count(),
                      **{k: round(v) for k, v in sorted(total.items())}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
