"""Actors of this process, for tests of the controller and what it stands on: the same clients, no Ray, no model.

Trajectories are a function of the order and of the weights served (a version), as the real ones are.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any, Callable

import msgspec
import numpy as np

from rti.actors.controller import Actors, Controller
from rti.actors.episodes import EpisodeRunner
from rti.actors.fleet import Fleet, GeneratorStatus
from rti.actors.messages import Order, StepReport, TaskIndex, TaskName
from rti.actors.pool import Pool
from rti.config.schema import Config
from rti.control.faults import ActorGone, ActorLost, LearnerLost, StepInterrupted
from rti.control.store import GroupStore
from rti.engines.usage import Usage, UsageBook
from rti.learner import checkpoint as checkpoints
from rti.run.directory import RunDirectory
from rti.trajectory import Ending, Group, Message, Step, Trajectory, decode, encode
from tests.factories import make_sample

TASKS = TaskIndex(train=[TaskName(f"train-{i}", "odd" if i % 2 else "even") for i in range(10)],
                  test=[TaskName(f"test-{i}") for i in range(5)])


class World:
    """What the fakes share: the version the generators serve, and what the test wants to go wrong."""

    def __init__(self, percent: int = 30):
        self.percent = percent
        self.version = 0
        self.orders: list[Order] = []
        self.before_run: Callable[[Order], Any] = lambda order: None     # may raise, or return an awaitable
        self.ending: Callable[[str], Ending] = lambda id: Ending.COMPLETED

    def trajectory(self, order: Order, id: str, seed: int) -> Trajectory:
        ending = self.ending(id)
        success = ending is Ending.COMPLETED and zlib.crc32(f"{seed}-{self.version}".encode()) % 100 < self.percent
        sample = make_sample(np.random.default_rng(seed), version=self.version, prompt_ids=range(6))
        samples = [sample] if ending.is_agents else []
        turns = int(sample.turns.max()) + 1 if samples else 0
        return Trajectory(id=id, group_id=order.group_id, task_id=order.task_id, intervened=order.intervened, ending=ending,
                          temperature=order.temperature, reward=float(success), success=success, samples=samples, seed=seed,
                          steps=[Step(message=Message(role="assistant"))] * turns, info={"fault": "as asked"})


class FakeWorker:
    def __init__(self, world: World, name: str = "env-worker-0", capacity: int = 64):
        self.world, self.name, self.capacity = world, name, capacity
        self.busy = self.most_busy = self.revived = 0
        self.gone = self.ended = False
        self.placed = asyncio.Event()       # only one that is asked for while others work waits for it
        self.used = UsageBook()

    async def run(self, order: Order) -> list[bytes]:
        self.busy += order.cost
        self.most_busy = max(self.most_busy, self.busy)
        try:
            asked = self.world.before_run(order)
            if asked is not None:
                await asked
            await asyncio.sleep(0)
            self.world.orders.append(order)
            return [encode(self.world.trajectory(order, id, seed)) for id, seed in zip(order.ids(), order.seeds)]
        finally:
            self.busy -= order.cost

    async def usage(self) -> dict[str, Usage]:
        return self.used.take()

    async def revive(self, loss: ActorLost) -> None:
        await asyncio.sleep(0)
        if self.gone:
            raise ActorGone(f"{self.name} does not come back")
        self.revived += 1

    async def arrive(self) -> None:
        await self.placed.wait()

    def end(self) -> None:
        self.ended = True


class FakeGenerator:
    def __init__(self, world: World, name: str = "generator-0"):
        self.world, self.name = world, name
        self.version: int | None = None
        self.loads: list[int] = []
        self.dead = self.gone = self.ended = False
        self.requests = 0
        self.placed = asyncio.Event()

    async def load(self, weights: Any, version: int) -> None:
        if self.dead:
            raise ActorLost(f"{self.name} died")
        assert weights == f"weights {version}"
        self.loads.append(version)
        self.version = self.world.version = version

    async def status(self) -> GeneratorStatus:
        if self.dead:
            raise ActorLost(f"{self.name} died")
        return GeneratorStatus(version=self.version, sampled=10 * len(self.loads), busy_s=0.1 * len(self.loads),
                               requests=self.requests)

    async def revive(self, loss: ActorLost) -> None:
        if self.gone:
            raise ActorGone(f"{self.name} does not come back")
        self.dead, self.version, self.loads = False, None, []

    async def arrive(self) -> None:
        await self.placed.wait()

    def end(self) -> None:
        self.ended = True

    def die(self) -> None:
        self.dead = True


class FakeBuffer:
    """The real store in this process."""

    restarts = 0

    def __init__(self, path: Path):
        self.path = path
        self.store = GroupStore(path, 1 << 20)

    async def put(self, facts, data):
        return self.store.put(facts, data)

    async def lease(self, step, group_ids):
        return self.store.lease(step, group_ids)

    async def commit(self, step, group_ids):
        self.store.commit(step, group_ids)

    async def void(self, group_ids):
        self.store.void(group_ids)

    async def resume(self, step, version):
        return self.store.resume(step, version)

    async def stats(self):
        return self.store.stats()

    def die(self) -> None:
        self.store.close()
        self.store = GroupStore(self.path, 1 << 20)


class FakeLearner:
    """A number for a policy: each step folds its groups into it, so that another history gives another number."""

    def __init__(self) -> None:
        self.version, self.policy, self.alive = 0, 1, False
        self.starts = 0
        self.steps: list[list[str]] = []
        self.on_step: Callable[[int], Any] = lambda step: None
        self.interrupts = asyncio.Event()

    async def start(self, checkpoint: Path | None) -> tuple[int, dict[str, Any] | None]:
        self.starts += 1
        self.alive = True
        if checkpoint is None:
            self.version, self.policy = 0, 1
            return 0, None
        assert checkpoints.problem_of(checkpoint) is None
        meta = checkpoints.read_record(checkpoint / "meta.msgpack")
        self.version, self.policy = meta["version"], meta["policy"]
        return self.version, checkpoints.read_record(checkpoint / "extra.msgpack")

    async def step(self, groups: list[bytes], step: int) -> StepReport:
        asked = self.on_step(step)
        if asked is not None:
            work, interrupted = asyncio.ensure_future(asked), asyncio.ensure_future(self.interrupts.wait())
            await asyncio.wait({work, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            interrupted.cancel()
            if not work.done():
                work.cancel()
                raise StepInterrupted(f"step {step}")
            work.result()
        self._check()
        records = [decode(g, Group) for g in groups]
        self.steps.append([g.id for g in records])
        content = [msgspec.structs.astuple(msgspec.structs.replace(m, wall_s=0.0))[:8] for g in records for m in g.members]
        self.policy = zlib.crc32(repr((self.policy, content)).encode())
        self.version += 1
        return StepReport(version=self.version, metrics={"learner/updated": 1.0, "policy/loss": self.policy / 2**32})

    async def interrupt(self, step: int) -> None:
        self.interrupts.set()

    async def weights(self) -> str:
        self._check()
        return f"weights {self.version}"

    async def save(self, path: Path, extra: dict[str, Any]) -> None:
        self._check()
        work = checkpoints.temporary(path)
        work.mkdir(parents=True)
        checkpoints.write_record(work / "meta.msgpack", {"version": self.version, "policy": self.policy})
        checkpoints.write_record(work / "extra.msgpack", extra)
        checkpoints.complete(path)

    async def wait_saved(self) -> None:
        self._check()

    def die(self) -> None:
        self.alive = False

    def _check(self) -> None:
        if not self.alive:
            raise LearnerLost("rank 0 died")


class Quiet:
    """A progress display that only remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def stage(self, text, done=0, total=0):
        pass

    def update(self, step, metrics):
        pass

    def note(self, text):
        self.notes.append(text)


def make_config(*, max_staleness: int = 0, **more: Any) -> Config:
    """`section__key=value` sets a key of a section."""
    config = Config(name="fake", steps=4, seed=7)
    config.rollout.group_size, config.rollout.groups_per_step = 4, 3
    config.checkpoint.every = 2
    config.evaluation.samples = 2
    config.records.tensorboard = False
    config.async_.max_staleness = max_staleness
    for key, value in more.items():
        *section, name = key.split("__")
        setattr(getattr(config, section[0]) if section else config, name, value)
    return config


class FakeRun:
    """A controller over fakes, in a run directory of its own. Opening it twice on one path is a resume."""

    def __init__(self, path: Path, config: Config | None = None, world: World | None = None, intervenes: bool = True):
        self.path, self.config, self.world = path, config or make_config(), world or World()
        self.workers = [FakeWorker(self.world)]
        self.interveners = [FakeWorker(self.world, "intervener-0", 2)]
        self.generators = [FakeGenerator(self.world), FakeGenerator(self.world, "generator-1")]
        self.buffer = FakeBuffer(path / "buffer.journal") if path.exists() else None
        self.learner = FakeLearner()
        self.progress = Quiet()
        self._intervenes = intervenes

    async def run(self, checkpoint: Path | None | str = "newest", during: Callable[[Controller], Any] | None = None) -> bool:
        with RunDirectory.open(self.path, self.config) as run:
            self.buffer = self.buffer or FakeBuffer(self.path / "buffer.journal")
            actors = Actors(Pool(self.workers), Pool(self.interveners), Fleet(self.generators, poll_s=0.01), self.buffer,
                            self.learner)
            self.controller = Controller(
                self.config, actors, TASKS, run, self.progress, intervenes=self._intervenes,
                episodes=EpisodeRunner(self.config.rollout.retries, first_pause_s=0.0))
            if checkpoint == "newest":
                checkpoint = checkpoints.newest_whole(run.checkpoints) if run.resumed else None
            side = asyncio.ensure_future(during(self.controller)) if during else None
            try:
                return await self.controller.run(checkpoint)
            finally:
                if side is not None:
                    side.cancel()
                self.buffer.store.close()
