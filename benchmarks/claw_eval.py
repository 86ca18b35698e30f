"""Tool calls a second of Claw-Eval's own families, against bare calls of the same Python methods in the same run.

    python benchmarks/claw_eval.py [--variants 4] [--rounds 20]

The calls are those of the reference solutions. `tool_calls_per_s`: through the environment (reset, checks of arguments, faults,
log, JSON, grade). `bare_per_s`: the services' methods with the same arguments, on worlds that were made before the clock
started; planned faults are left out there. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Sequence

sys.path[0] = str(Path(__file__).resolve().parents[1])

from rti.envs.base import Task  # noqa: E402
from rti.envs.claw_eval import agents, evidence  # noqa: E402
from rti.envs.claw_eval.families import FAMILIES  # noqa: E402
from rti.envs.claw_eval.services import SERVICES, TOOLS  # noqa: E402
from rti.envs.claw_eval.synthesis import synthesise  # noqa: E402


async def through_environment(tasks: Sequence[Task], rounds: int) -> float:
    """Calls a second over whole episodes, reset and grade included."""
    calls, started = 0, time.perf_counter()
    for _ in range(rounds):
        for task in tasks:
            calls += (await agents.play(task, agents.reference(task))).info["tool_calls"]
    return calls / (time.perf_counter() - started)


def bare(tasks: Sequence[Task], rounds: int) -> float:
    """Calls a second of the methods alone."""
    calls, spent = 0, 0.0
    for _ in range(rounds):
        for task in tasks:
            data, known = task.data, evidence.read(task.evidence)
            services = {n: SERVICES[n](data["fixtures"].get(n, {}), data["now"]) for n in data["services"]}
            planned = [(getattr(services[TOOLS[c.name].service], TOOLS[c.name].method), c.arguments)
                       for turn in known.reference for c in turn if not c.fails]
            started = time.perf_counter()
            for method, arguments in planned:
                method(**arguments)
            spent += time.perf_counter() - started
            calls += len(planned)
    return calls / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variants", type=int, default=4, help="tasks of each family in train, and as many in test")
    parser.add_argument("--rounds", type=int, default=20, help="how often each task is played")
    args = parser.parse_args()
    found, _ = synthesise(list(FAMILIES), args.variants)
    tasks = [*found["train"], *found["test"]]
    whole, alone = asyncio.run(through_environment(tasks, args.rounds)), bare(tasks, args.rounds)
    print(json.dumps({"tool_calls_per_s": round(whole), "bare_per_s": round(alone), "ratio": round(whole / alone, 3),
                      "tasks": len(tasks)}))


if __name__ == "__main__":
    main()
