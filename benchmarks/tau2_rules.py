"""How many τ²-Bench base tasks the rule-based roles carry to reward 1 over a do-nothing policy and the scripted user.

    python benchmarks/tau2_rules.py [--domain telecom] [--tasks 0] [--data-dir DIR]

Every draft of the policy is a useless sentence. Each task is run twice through the real rollout: plain, and with the
intervention pipeline (rule players of all three roles, guards on). Natural-language assertions are skipped (they count as met):
tasks that have them are counted apart. The last line is one JSON object; tasks that failed stand before it, with their ending.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from rti.envs.tau2.domain import load_domain  # noqa: E402
from rti.envs.tau2.taskset import rti_task  # noqa: E402
from tests.mas.tau2_useless import episode, outcomes  # noqa: E402


async def measure(domain: str, data_dir: str, count: int) -> dict[str, float]:
    loaded = load_domain(domain, data_dir)
    chosen = [rti_task(loaded, t) for t in loaded.tasks("base")[:count or None]]
    plain = [await episode(loaded, t, False) for t in chosen]
    intervened = [await episode(loaded, t, True) for t in chosen]
    for trajectory in intervened:
        if not trajectory.success:
            print(f"{domain} {trajectory.task_id}: {trajectory.info.get('termination')}, {trajectory.info.get('parts')}, "
                  f"{outcomes(trajectory)}", flush=True)
    judged = sum("NL_ASSERTION" in t.evidence["reward_basis"] and bool(t.evidence["nl_assertions"]) for t in chosen)
    return {"tasks": len(chosen), "plain": sum(t.success for t in plain), "intervened": sum(t.success for t in intervened),
            "share": round(sum(t.success for t in intervened) / len(chosen), 4), "with_nl_assertions": judged,
            "turns": round(sum(len(t.steps) for t in intervened) / len(chosen), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--domain", default="", help="telecom, retail or airline; all where not given")
    parser.add_argument("--tasks", type=int, default=0, help="only so many tasks; 0: the whole base split")
    parser.add_argument("--data-dir", default="", help="a folder in the official layout; else the package's own data")
    args = parser.parse_args()
    domains = [args.domain] if args.domain else ["telecom", "retail", "airline"]
    print(json.dumps({d: asyncio.run(measure(d, args.data_dir, args.tasks)) for d in domains}))


if __name__ == "__main__":
    main()
