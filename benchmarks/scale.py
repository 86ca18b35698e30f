"""How many env workers one controller can serve: `python benchmarks/scale.py [--workers 250 500 1000 2000]`

Prints one JSON object. The controller of production (plan, admission, pools, fleet, keepers, retries, records) and the replay
buffer's store run under the simulation's clock against clients that take realistic times; what these compute is left out of
the account, and everything else is CPU time measured while it runs. For 1,000 env workers there are 256 generators and 64
interveners, for other numbers in proportion. Times are CPU seconds; a share is of one core, in seconds a simulated second.

`operations` is CPU milliseconds a consumed group in the controller, by operation, and the groups a second at which that one
alone would fill a core. What Ray itself takes for a call is not in it. `saturates_at_workers` is where the line through the two
largest numbers of workers reaches one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import sys
import tempfile
import time
import zlib
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any, Callable, Sequence

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.buffer import make_trajectory
from rti.actors import controller as controllers
from rti.actors import episodes as runners
from rti.actors import groups as makers
from rti.actors.controller import Actors, Controller
from rti.actors.fleet import Fleet, GeneratorStatus
from rti.actors.keeper import Keeper, keepers_of
from rti.actors.measure import Meter
from rti.actors.messages import Order, StepReport, TaskIndex, TaskName
from rti.actors.pool import Pool
from rti.config.schema import Config
from rti.control.plan import Plan
from rti.control.store import GroupStore
from rti.run.directory import RunDirectory
from rti.run.lock import DirectoryLock
from rti.simulation.loop import VirtualLoop
from rti.simulation.world import Quiet
from rti.trajectory import encode

NETWORK_S = 0.001       # one way, in one data centre
EPISODE_S = 45.0        # mean: 10 turns of 120 tokens at 30 tokens a second (8B model, 32 requests at once), 0.5 s a tool
SPREAD = 0.5            # sigma of its logarithm: the longest of eight takes about twice the mean
INTERVENED = 3.0        # times as long: Validator, Corrector and Verifier speak as well
LOAD_S = 3.0            # 16 GB of weights over a network of 50 Gbit/s
LEARN_S = 20.0          # a step; with max_staleness 4 the workers seldom wait for it
TOKENS, TURNS = 3000, 10
SIZE, EPISODES = 8, 8   # of a group; at once on a worker, so that it has one group
STEPS, WARM = 8, 3      # the run is stopped after so many steps; how many of them pass before the account begins
OPERATIONS: dict[str, list[tuple[Any, str]]] = {
    "decode episodes": [(runners, "decode")],
    "encode groups": [(controllers, "encode")],
    "decode groups of a step": [(controllers, "decode")],
    "place orders (pools)": [(Pool, "_serve")],
    "orders and seeds": [(makers.GroupMaker, "_order")],
    "admission and plan": [(Plan, name) for name in (
        "admit", "ready", "lease", "pass_over", "sweep", "commit", "published", "count")],
    "facts of a group": [(controllers, "facts_of"), (Controller, "_idle")],
    "scaling (keepers)": [(Keeper, "look")],
    "records of a step": [(controllers, "group_metrics"), (controllers, "entry_for"), (controllers, "ledger_metrics"),
                          *((RunDirectory, name) for name in ("consume", "save_trajectories", "log"))],
}


class Account:
    """CPU seconds by name. What is measured inside of something else is taken off that, so that nothing counts twice."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.longest = 0.0
        self._inner = [0.0]

    def measured(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def run(*args: Any, **more: Any) -> Any:
            began = time.thread_time()
            self._inner.append(0.0)
            try:
                return work(*args, **more)
            finally:
                took = time.thread_time() - began
                self.spent[name] += took - self._inner.pop()
                self._inner[-1] += took

        return run

    def send(self, kind: str, *sizes: int) -> None:
        self.messages[kind] += 1
        self.sizes[kind] += sum(sizes)

    def clear(self) -> None:
        for counter in (self.spent, self.messages, self.sizes):
            counter.clear()
        self.longest = 0.0


class TimedLoop(VirtualLoop):
    """Knows the longest time for which the controller answered nobody."""

    account: Account

    def _call(self, handle: Any) -> None:
        before, began = self.account.spent["aside"], time.thread_time()
        super()._call(handle)
        aside = self.account.spent["aside"] - before
        self.account.longest = max(self.account.longest, time.thread_time() - began - aside)


class Client:
    """What all actors' clients have in common here: nothing is lost."""

    def __init__(self, cluster: Cluster, name: str):
        self.cluster, self.name = cluster, name

    async def ask(self, kind: str, seconds: float, *sizes: int) -> None:
        self.cluster.account.send(kind, *sizes)
        await asyncio.sleep(2 * NETWORK_S + seconds)


class Worker(Client):
    capacity = EPISODES

    async def run(self, order: Order) -> list[bytes]:
        seconds, answer = self.cluster.episodes(order)
        sent = self.cluster.order_size(order, self.cluster.fleet.roster)
        await self.ask("orders", seconds, sent, sum(map(len, answer)))
        return answer

    async def usage(self) -> dict[str, Any]:
        await self.ask("usage", 0.0, 2)
        return {}


class Generator(Client):
    version: int | None = None

    async def load(self, weights: Any, version: int) -> None:
        await self.ask("loads", LOAD_S, 100)
        self.version = version

    async def status(self) -> GeneratorStatus:
        status = GeneratorStatus(version=self.version, sampled=1000, busy_s=1.0, requests=32)
        await self.ask("status", 0.0, self.cluster.status_size)
        return status


class Buffer(Client):
    restarts = 0

    def __init__(self, cluster: Cluster, path: Path):
        super().__init__(cluster, "buffer")
        self._store = GroupStore(path, 256 << 20)

    async def put(self, facts, data):
        await self.ask("puts", 0.0, len(data))
        return self._store.put(facts, data)

    async def lease(self, step, group_ids):
        data = self._store.lease(step, group_ids)
        await self.ask("leases", 0.0, sum(map(len, data)))
        return data

    async def commit(self, step, group_ids):
        await self.ask("commits", 0.0, len(pickle.dumps(group_ids)))
        self._store.commit(step, group_ids)

    async def void(self, group_ids):
        self._store.void(group_ids)

    async def resume(self, step, version):
        return self._store.resume(step, version)

    async def stats(self):
        return self._store.stats()


class Learner(Client):
    version = 0

    async def start(self, checkpoint: Path | None) -> tuple[int, None]:
        return 0, None

    async def step(self, groups: list[bytes], step: int) -> StepReport:
        await self.ask("steps", LEARN_S, sum(map(len, groups)))
        self.version += 1
        return StepReport(version=self.version, metrics={"learner/updated": 1.0})

    async def weights(self) -> int:
        return self.version

    async def save(self, path: Path, extra: dict[str, Any]) -> None: ...

    async def wait_saved(self) -> None: ...


class Cluster:
    """Everything around one controller, with `workers` env workers."""

    def __init__(self, workers: int, path: Path, account: Account):
        self.account = account
        self.rng = np.random.default_rng(0)
        self.plain = make_trajectory(self.rng, "0-0/0", TOKENS, TURNS)
        self.episodes = account.measured("aside", self._episodes)
        self.order_size = account.measured("aside", lambda *parts: len(pickle.dumps(parts, protocol=5)))
        self.status_size = len(pickle.dumps(GeneratorStatus(version=1, sampled=1000, busy_s=1.0, requests=32), protocol=5))
        self.config = config = Config(name="scale", steps=1000 * STEPS, run_dir=str(path))
        config.rollout.group_size, config.rollout.groups_per_step = SIZE, max(1, workers // 4)
        config.async_.max_staleness, config.records.tensorboard = 4, False
        config.env_workers.count, config.env_workers.episodes = workers, EPISODES
        config.generators.replicas = max(1, round(0.256 * workers))
        config.interveners.min = config.interveners.max = max(1, round(0.064 * workers))
        config.evaluation.before = config.evaluation.after = False
        config.checkpoint.every = 0
        tasks = TaskIndex(train=[TaskName(f"task-{i}") for i in range(5000)], test=[])
        self.fleet = Fleet([Generator(self, f"generator-{i}") for i in range(config.generators.replicas)])
        pool = Pool([Worker(self, f"env-worker-{i}") for i in range(workers)])
        others = Pool([Worker(self, f"intervener-{i}") for i in range(config.interveners.min)])
        actors = Actors(workers=pool, interveners=others, generators=self.fleet, buffer=Buffer(self, path / "buffer.journal"),
                        learner=Learner(self, "learner"), keepers=keepers_of(config, pool, others, self.fleet, self))
        self.directory = Directory(path, config, DirectoryLock(path), False, asyncio.get_running_loop().time)
        self.directory.cluster = self
        meter = Meter(clock=asyncio.get_running_loop().time)
        self.controller = Controller(config, actors, tasks, self.directory, Quiet(), intervenes=True, meter=meter)
        self.began = self.ended = (0.0, 0.0)

    def fixed(self, number: int) -> Any:
        raise AssertionError(f"actor {number} is asked for, and their numbers do not change here")

    worker = intervener = generator = fixed

    def _episodes(self, order: Order) -> tuple[float, list[bytes]]:
        """How long the longest takes, and all of them. Half of the tasks are hard."""
        seconds = EPISODE_S * float(self.rng.lognormal(-SPREAD ** 2 / 2, SPREAD, order.cost).max())
        percent = (50, 5)[zlib.crc32(order.task_id.encode()) % 2]
        answer = []
        for id, seed in zip(order.ids(), order.seeds):
            success = seed % 100 < (50 if order.intervened else percent)
            answer.append(encode(msgspec.structs.replace(
                self.plain, id=id, group_id=order.group_id, task_id=order.task_id, intervened=order.intervened, seed=seed,
                success=success, reward=float(success))))
        return seconds * (INTERVENED if order.intervened else 1.0), answer


class Directory(RunDirectory):
    cluster: Cluster

    def log(self, step: int, values: Any) -> dict[str, Any]:
        line = super().log(step, values)
        cluster, now = self.cluster, (asyncio.get_running_loop().time(), time.thread_time())
        if step == WARM:
            cluster.account.clear()
            cluster.began = now
        if step == STEPS:       # in the middle of the run: towards its end fewer and fewer groups are under way
            cluster.ended, cluster.spent = now, cluster.account.spent.copy()
            cluster.controller.stop()
        return line


def run(workers: int) -> dict[str, Any]:
    """One number of workers; see the module's docstring for what comes out."""
    account = Account()
    watched = {**OPERATIONS, "buffer": [(GroupStore, name) for name in ("put", "lease", "commit")]}
    honest = [(owner, name, getattr(owner, name)) for parts in watched.values() for owner, name in parts]
    for kind, parts in watched.items():
        for owner, name in parts:
            setattr(owner, name, account.measured(kind, getattr(owner, name)))
    loop = TimedLoop(limit_s=1e6)
    loop.account = account
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "run"
            path.mkdir()
            return loop.run(_life(workers, path, account))
    finally:
        for owner, name, value in honest:
            setattr(owner, name, value)


async def _life(workers: int, path: Path, account: Account) -> dict[str, Any]:
    cluster = Cluster(workers, path, account)
    try:
        assert not await cluster.controller.run(None)
    finally:
        cluster.directory.close()
    (simulated, cpu), spent = (b - a for a, b in zip(cluster.began, cluster.ended)), cluster.spent
    spent["event loop and coroutines"] = cpu - sum(spent.values())
    aside, buffer = spent.pop("aside"), spent.pop("buffer")
    groups = (STEPS - WARM) * cluster.config.rollout.groups_per_step
    return {"workers": workers, "groups": groups, "simulated_s": simulated, "cpu_s": cpu - aside - buffer, "buffer_s": buffer,
            "spent": dict(spent), "messages": dict(account.messages), "bytes": dict(account.sizes), "pause_s": account.longest}


# --- figures -------------------------------------------------------------------------------------------------------------
def figures(result: dict[str, Any]) -> dict[str, Any]:
    """A group and a second."""
    spent, groups, seconds = result["spent"], result["groups"], result["simulated_s"]
    per_group = {name: s / groups for name, s in sorted(spent.items(), key=lambda item: -item[1])}
    total = sum(per_group.values())
    return {
        "workers": result["workers"], "groups_per_s": round(groups / seconds, 2),
        "controller_share": round(total * groups / seconds, 4), "buffer_share": round(result["buffer_s"] / seconds, 4),
        "longest_pause_s": round(result["pause_s"], 3), "ms_per_group": round(1000 * total, 3),
        "messages_per_s": {k: round(n / seconds, 2) for k, n in result["messages"].items()},
        "mb_per_s": {k: round(n / seconds / 1e6, 3) for k, n in result["bytes"].items()},
        "operations": {name: {"ms_per_group": round(1000 * s, 4), "fills_a_core_at_groups_per_s": round(1 / s) if s else None}
                       for name, s in per_group.items()},
    }


def saturation(rows: list[dict[str, Any]]) -> int | None:
    """Workers at which the controller fills one core. None with one row."""
    if len(rows) < 2:
        return None
    (n0, s0), (n1, s1) = ((r["workers"], r["controller_share"]) for r in rows[-2:])
    return round(n1 + (1 - s1) * (n1 - n0) / (s1 - s0)) if s1 > s0 else None


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[250, 500, 1000, 2000])
    args = parser.parse_args(words)
    rows = [figures(run(n)) for n in sorted(args.workers)]
    first = next(iter(rows[-1]["operations"]))
    print(json.dumps({
        "rows": rows, "saturates_first": first, "saturates_at_workers": saturation(rows), "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
