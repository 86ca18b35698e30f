"""Reset and evaluation of τ²-Bench episodes, here and on the official path, side by side in one process; memory of 64.

    python benchmarks/tau2.py [--tasks 20] [--data-dir DIR]

The official path is what its runner does for an episode: construct the environment, set the initial state, and evaluate the
record with the official evaluator. Ours is Domain.world and reward.evaluate on the same record, the first visit of a task (its
initial and gold states) included. Playing the calls is in neither time, but it is part of the official evaluation, which
replays them. Times are CPU seconds of this process. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])      # not this folder: this file would be found as `tau2`

from rti.envs.tau2 import official, reward  # noqa: E402
from rti.envs.tau2.dialogue import Dialogue, Limits  # noqa: E402
from rti.envs.tau2.domain import Domain, load_domain  # noqa: E402
from rti.envs.tau2.judge import Unjudged  # noqa: E402
from rti.trajectory import Message, ToolCall  # noqa: E402

EPISODES = 64


class Obedient:
    """A user that makes the calls it is told to make, and then stops."""

    def __init__(self, calls):
        self._calls = list(calls)

    async def reply(self, heard):
        if heard[-1].content == "Go on." and self._calls:
            name, arguments = self._calls.pop(0)
            return Message(role="user", tool_calls=[ToolCall(name=name, arguments=arguments)])
        return Message(role="user", content="###STOP###" if heard[-1].content == "Bye." else "Yes.")


async def play(domain: Domain, task, world) -> Dialogue:
    """The reference actions as a conversation."""
    actions = task.evaluation_criteria.actions or []
    dialogue = Dialogue(world, Obedient((a.name, a.arguments) for a in actions if a.requestor == "user"),
                        Limits(turns=10 ** 6, steps=0), [])
    await dialogue.open()
    for action in actions:
        await dialogue.agent(Message(role="assistant", content="Go on.") if action.requestor == "user" else
                             Message(role="assistant", tool_calls=[ToolCall(name=action.name, arguments=action.arguments)]))
    for info in task.evaluation_criteria.communicate_info or []:
        await dialogue.agent(Message(role="assistant", content=f"It is {info}."))
    await dialogue.agent(Message(role="assistant", content="Bye."))
    return dialogue


def official_episode(name: str, task, messages) -> tuple[float, float]:
    """(CPU seconds of reset and evaluation, reward) of the official path."""
    o, registry = official.load(), official.member("registry.registry")
    begun = time.process_time()
    state = task.initial_state
    registry.get_env_constructor(name)().set_state(
        state.initialization_data if state else None, state.initialization_actions if state else None, [])
    run = o.simulation.SimulationRun(id="1", task_id=task.id, start_time="", end_time="", duration=0.0,
                                     termination_reason="user_stop", messages=messages)
    result = o.evaluator.evaluate_simulation(run, task, o.evaluator.EvaluationType.ALL, False, name)
    return time.process_time() - begun, result.reward


async def compare(name: str, tasks: int, data_dir: str) -> dict:
    domain = load_domain(name, data_dir)
    kinds = official.load().tasks.RewardType
    chosen = [t for t in domain.tasks("base") if kinds.NL_ASSERTION not in t.evaluation_criteria.reward_basis][:tasks]
    ours = theirs = 0.0
    for task in chosen:
        begun = time.process_time()
        world = domain.world(task)
        ours += time.process_time() - begun
        dialogue = await play(domain, task, world)
        begun = time.process_time()
        result = await reward.evaluate(domain, task, dialogue.messages, world, "user_stop", Unjudged())
        ours += time.process_time() - begun
        cost, expected = official_episode(name, task, dialogue.messages)
        theirs += cost
        if result.reward != expected:
            raise SystemExit(f"{name} {task.id}: reward {result.reward}, officially {expected}")
    n = max(1, len(chosen))
    return {"tasks": len(chosen), "ours_ms": 1e3 * ours / n, "official_ms": 1e3 * theirs / n, "ratio": theirs / max(ours, 1e-9)}


async def memory(name: str, data_dir: str) -> float:
    """MB that 64 episodes take, held at once after all their calls."""
    domain = load_domain(name, data_dir)
    tasks = domain.tasks("base")
    gc.collect()
    before = resident_mb()
    held = [await play(domain, task, domain.world(task)) for task in (tasks * 2)[:EPISODES]]
    taken = resident_mb() - before
    assert len(held) == EPISODES
    return taken


def resident_mb() -> float:
    """Resident memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, help="base tasks a domain (default: 20)")
    parser.add_argument("--data-dir", default="", help="our data; the official path reads the package's")
    args = parser.parse_args()
    taken = {name: await memory(name, args.data_dir) for name in ("airline", "retail", "telecom")}
    rss = resident_mb()
    result = {name: await compare(name, args.tasks, args.data_dir) for name in taken}
    for name, mb in taken.items():
        result[name]["episodes_64_mb"] = mb
    for name, row in result.items():
        print(f"{name:8} {row['tasks']:3} tasks: official {row['official_ms']:8.1f} ms, here {row['ours_ms']:6.2f} ms an "
              f"episode, {row['ratio']:6.0f} times faster; 64 episodes take {row['episodes_64_mb']:.0f} MB")
    print(f"the process with all three domains and their episodes: {rss:.0f} MB")
    print(json.dumps({**result, "process_mb": rss}))


if __name__ == "__main__":
    asyncio.run(main())
