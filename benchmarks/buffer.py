"""The replay buffer: groups per second, and bytes against pickle: `python benchmarks/buffer.py [--groups 200] [--actor] ...`

Prints one JSON object. The same groups go through the records' own binary form and through pickle (protocol 5), and through the
journalled store (put, lease, commit, and a rebuild from the journal; spilled: without memory, so that each lease reads from the
disk) and a plain list in memory, which loses all with its process. With --actor also through the Ray actor, as a run uses it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rti.actors.groups import facts_of
from rti.control.store import Facts, GroupStore
from rti.trajectory import Group, Message, Sample, Source, Step, ToolCall, Trajectory, decode, encode


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--size", type=int, default=8, help="members of a group")
    parser.add_argument("--tokens", type=int, default=300, help="of an episode")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--step", type=int, default=8, help="groups that one step leases and commits")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--actor", action="store_true", help="measure the Ray actor as well")
    args = parser.parse_args(words)
    rng = np.random.default_rng(0)
    groups = [make_group(rng, i, args.size, args.tokens, args.turns) for i in range(args.groups)]
    result = {**forms(groups, args.repeats), **store(groups, args.step, args.repeats)}
    if args.actor:
        result |= actor(groups, args.step)
    print(json.dumps({**result, "groups": args.groups, "size": args.size, "tokens": args.tokens, "turns": args.turns}))


def make_group(rng: np.random.Generator, number: int, size: int, tokens: int, turns: int) -> Group:
    """Like the lab's: each turn reasons, calls a tool and gets a line back."""
    members = [make_trajectory(rng, f"0-{number}/{m}", tokens, turns) for m in range(size)]
    return Group(id=f"0-{number}", task_id=f"task-{number}", task_class="ambiguous", members=members,
                 rewards_before=[m.reward for m in members])


def make_trajectory(rng: np.random.Generator, id: str, tokens: int, turns: int) -> Trajectory:
    agent = (np.arange(tokens) * 2 * turns // tokens) % 2 == 1      # context and agent take turns
    sample = Sample(
        token_ids=rng.integers(0, 1024, tokens).astype(np.int32),
        sources=np.where(agent, Source.POLICY, Source.CONTEXT).astype(np.uint8),
        behaviour_logps=np.where(agent, -rng.exponential(0.3, tokens), 0).astype(np.float32),
        correction_logps=np.full(tokens, np.nan, np.float32), weights=agent.astype(np.float32),
        versions=np.where(agent, 3, -1).astype(np.int32),
        turns=np.where(agent, np.arange(tokens) * turns // tokens, -1).astype(np.int16))
    steps = []
    for turn in range(turns):
        x, y = rng.uniform(100, 120), rng.uniform(20, 40)
        wanted = {"address": f"Place {rng.integers(16_000)}", "region": "Hebei"}
        call = ToolCall(name="poi_search", arguments=wanted, id=f"c{turn}")
        steps.append(Step(
            message=Message(role="assistant", reasoning="Find the places.", tool_calls=[call]), n_tokens=tokens // (2 * turns),
            observations=[Message(role="tool", tool_call_id=call.id, name=call.name, content=f"Place, Hebei {x:.6f},{y:.6f}")]))
    success = bool(rng.random() < 0.3)
    return Trajectory(id=id, group_id=id.partition("/")[0], task_id="task", samples=[sample], steps=steps, success=success,
                      prompt=[Message(role="user", content="Drive from A via B to C, in any order.")], reward=float(success),
                      tools=["poi_search", "around_search", "direction"], temperature=0.8, seed=int(rng.integers(2**62)))


def median_s(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def forms(groups: list[Group], repeats: int) -> dict[str, float]:
    """The binary form against pickle."""
    ours, pickled = [encode(g) for g in groups], [pickle.dumps(g, protocol=5) for g in groups]
    n = len(groups)
    return {
        "bytes_per_group": sum(map(len, ours)) / n, "pickle_bytes_per_group": sum(map(len, pickled)) / n,
        "bytes_ratio": round(sum(map(len, ours)) / sum(map(len, pickled)), 3),
        "encode_groups_s": round(n / median_s(lambda: [encode(g) for g in groups], repeats)),
        "pickle_groups_s": round(n / median_s(lambda: [pickle.dumps(g, protocol=5) for g in groups], repeats)),
        "decode_groups_s": round(n / median_s(lambda: [decode(d, Group) for d in ours], repeats)),
        "unpickle_groups_s": round(n / median_s(lambda: [pickle.loads(d) for d in pickled], repeats)),
    }


def store(groups: list[Group], step: int, repeats: int) -> dict[str, float]:
    """Encoded groups through the journalled store, and through a list."""
    records = [(facts_of(g), encode(g)) for g in groups]
    n = len(groups)
    with tempfile.TemporaryDirectory() as directory:
        numbers = iter(range(1_000_000))

        def through(memory_bytes: int) -> None:
            journalled(Path(directory) / f"journal-{next(numbers)}", records, step, memory_bytes)

        waiting = Path(directory) / "waiting"
        held = GroupStore(waiting, 1 << 30)
        for facts, data in records:
            held.put(facts, data)
        return {
            "journalled_groups_s": round(n / median_s(lambda: through(1 << 30), repeats)),
            "spilled_groups_s": round(n / median_s(lambda: through(0), repeats)),
            "list_groups_s": round(n / median_s(lambda: in_memory(records, step), repeats)),
            "rebuild_groups_s": round(n / median_s(lambda: GroupStore(waiting, 1 << 30).close(), repeats)),
        }


def journalled(path: Path, records: list[tuple[Facts, bytes]], step: int, memory_bytes: int) -> None:
    """Put all, lease and commit them step by step."""
    buffer = GroupStore(path, memory_bytes)
    for number, start in enumerate(range(0, len(records), step)):
        part = records[start:start + step]
        for facts, data in part:
            buffer.put(facts, data)
        ids = [facts.group_id for facts, _ in part]
        assert len(buffer.lease(number, ids)) == len(part)
        buffer.commit(number, ids)
    buffer.close()


def in_memory(records: list[tuple[Facts, bytes]], step: int) -> None:
    for start in range(0, len(records), step):
        buffer: dict[str, bytes] = {}
        for facts, data in records[start:start + step]:
            buffer[facts.group_id] = data
        assert [buffer.pop(g) for g in list(buffer)]


def actor(groups: list[Group], step: int) -> dict[str, float]:
    """Through the Ray actor: puts at once, as groups come in, then a lease and a commit."""
    from rti.actors.launching import prepare
    from rti.config.schema import RayConfig

    config = RayConfig()
    prepare(config)
    from rti.actors.cluster import Cluster, Need
    from rti.actors.replay_buffer import BufferActor, ReplayBuffer

    records = [(facts_of(g), encode(g)) for g in groups]
    cluster = Cluster.connect(config, 1)

    async def run(path: Path) -> float:
        buffer = BufferActor("buffer", cluster.actor(ReplayBuffer, "buffer", Need(0), str(path), 1024), config)
        await cluster.wait({"buffer": buffer})
        began = time.perf_counter()
        for number, start in enumerate(range(0, len(records), step)):
            part = records[start:start + step]
            await asyncio.gather(*(buffer.put(facts, data) for facts, data in part))
            ids = [facts.group_id for facts, _ in part]
            await buffer.lease(number, ids)
            await buffer.commit(number, ids)
        return time.perf_counter() - began

    try:
        with tempfile.TemporaryDirectory() as directory:
            return {"actor_groups_s": round(len(records) / asyncio.run(run(Path(directory) / "journal")))}
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
