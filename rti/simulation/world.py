"""One seed: a small configuration, its actors, a schedule of faults, and the lives of the driver until the run is finished.

Everything is drawn from the seed: sizes, paces, staleness bound, which fault strikes when. A synchronous run (staleness 0) is
run once more without faults, and both must leave the same records (invariant 7).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np

from rti.actors.controller import Actors, Controller
from rti.actors.episodes import EpisodeRunner
from rti.actors.fleet import Fleet
from rti.actors.keeper import keepers_of
from rti.actors.measure import Meter
from rti.actors.messages import TaskIndex, TaskName
from rti.actors.pool import Pool
from rti.actors.replay_buffer import ReplayBuffer
from rti.config.schema import Config
from rti.control.faults import ActorGone
from rti.control.journal import Journal, Kind
from rti.control.seeds import derive
from rti.learner.checkpoint import newest_whole
from rti.run import control, metrics
from rti.run.directory import LEDGER, METRICS, RunDirectory
from rti.run.files import read_lines, write_json
from rti.run.lock import DirectoryLock
from rti.simulation.actors import Buffer, EpisodeActor, Generator, Learner, Replica, Worker
from rti.simulation.invariants import Violation, Watch, at_most_lost, at_the_end
from rti.simulation.loop import Killed, VirtualLoop
from rti.simulation.network import Network, Process

FAULTS = {"kill": 6, "hang": 2, "node": 1, "learner": 2, "hung learner": 0.5, "driver": 1.5, "write": 1.5, "stop": 1, "slow": 1,
          "gone": 2, "scale": 2}
"""Kinds of faults, and how often each strikes in proportion. gone: an actor dies and does not come back; scale: somebody asks
for other numbers of actors."""

LIFE_S = 20_000.0


@dataclass
class Outcome:
    """What one seed came to. Counters are over all lives."""

    seed: int
    events: int = 0
    lives: int = 0
    simulated_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    staleness: int = 0
    voided: int = 0


@dataclass
class Sizes:
    """How large the world of a seed is, and what goes wrong in it."""

    nodes: int
    tasks: int
    episodes: int
    percent: int        # of episodes that succeed
    broken: float       # of episodes whose environment breaks
    faults: int
    between_s: float    # mean time between faults
    latency_s: float
    memory_mb: int
    places_s: float     # mean time until there is a place for an actor that is asked for while the run goes on


def draw(seed: int) -> tuple[Config, Sizes]:
    """Configuration and sizes of a seed."""
    rng = np.random.Generator(np.random.PCG64(derive(seed, "sizes")))
    config = Config(name="simulation", seed=seed, steps=int(rng.integers(2, 6)))
    config.rollout.group_size, config.rollout.groups_per_step = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    config.rollout.retries, config.rollout.timeout_s = 1000, 20.0
    config.intervention.attempts = int(rng.integers(1, 3))
    config.algo.dynamic_sampling = seed % 8 if seed % 4 == 1 else 0     # not drawn, so that other seeds stay what they were
    config.async_.max_staleness = int(rng.integers(0, 4))
    if seed % 4 == 3 and config.async_.max_staleness:       # not drawn, either
        config.buffer.reuse, config.steps = config.async_.max_staleness + 1, config.steps + 4
        config.intervention.attempts = 4
    config.checkpoint.every, config.checkpoint.keep = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    config.evaluation.before, config.evaluation.after = bool(rng.random() < 0.2), bool(rng.random() < 0.2)
    config.evaluation.samples, config.records.tensorboard = 1, False
    config.ray.call_timeout_s, config.ray.start_timeout_s, config.ray.restarts = 40.0, 600.0, 1000
    config.env_workers.count, config.interveners.min = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    config.generators.replicas = int(rng.integers(1, 4))
    sizes = Sizes(
        nodes=int(rng.integers(1, 4)), tasks=int(rng.integers(3, 8)), episodes=int(rng.integers(2, 9)),
        percent=int(rng.integers(10, 70)), broken=float(rng.choice([0.0, 0.05])), faults=int(rng.integers(0, 10)),
        between_s=float(rng.exponential(4.0)) + 0.2, latency_s=float(rng.choice([0.001, 0.02, 0.2])),
        memory_mb=int(rng.integers(0, 2)), places_s=float(rng.exponential(3.0)) + 0.1)
    config.env_workers.episodes = config.interveners.episodes = sizes.episodes
    config.generators.concurrency, config.ray.idle_s = int(rng.integers(1, 9)), float(rng.exponential(5.0))
    config.env_workers.max = int(rng.choice([0, config.env_workers.count + 2]))
    config.interveners.max = config.interveners.min + int(rng.integers(0, 3))
    config.generators.max = int(rng.choice([0, config.generators.replicas + 2]))
    return config, sizes


class World:
    """See the module's docstring. `path`: where the run directory will be."""

    def __init__(self, seed: int, path: Path, faults: bool = True):
        self.seed, self.path = seed, path
        self.config, self.sizes = draw(seed)
        self.config.run_dir = str(path)
        self.rng = np.random.Generator(np.random.PCG64(derive(seed, "faults" if faults else "calm")))
        self.faults_left = self.sizes.faults if faults else 0
        if not faults:
            self.sizes.broken = 0.0
        self.outcome = Outcome(seed)
        self.tasks = TaskIndex(train=[TaskName(f"train-{i}") for i in range(self.sizes.tasks)], test=[TaskName("test-0")])
        self.now, self.kill_at_write, self.asked = 0.0, False, 0
        self.loop: VirtualLoop

    def run(self) -> Outcome:
        """To the end of the run. Raises Violation, or whatever else should not have happened."""
        while True:
            self.outcome.lives += 1
            self.loop = VirtualLoop(self.now, LIFE_S, self._look)
            self.watch: Watch | None = None
            try:
                finished = self.loop.run(self._life())
            except Killed:
                finished = False
            finally:
                self._close()
                self.now = self.loop.time()
                self.outcome.events += self.loop.events
            if self.loop.complaints:
                raise Violation(f"an error that nobody waited for: {self.loop.complaints[0]}")
            if finished:
                self.outcome.simulated_s = self.now
                return self.outcome

    # --- a life of the driver ----------------------------------------------------------------------------------------
    async def _life(self) -> bool:
        lock = DirectoryLock(self.path)
        self.directory = Directory(self, lock, resumed=(self.path / METRICS).is_file())
        self.network = Network(self.rng, self.sizes.latency_s)
        self.network.on_death = self._on_death
        self.learner = Learner(self.rng, self.config.ray.call_timeout_s)
        control.restore(self.path, self.config)
        journal = str(self.path / "buffer.journal")
        self.network.start("replay-buffer", 0, lambda: ReplayBuffer(journal, self.sizes.memory_mb), serial=True)
        self.controller = Controller(
            self.config, self._actors(), self.tasks, self.directory, Quiet(), intervenes=True,
            meter=Meter(clock=self.loop.time), episodes=EpisodeRunner(self.config.rollout.retries))
        self.watch = Watch(self.controller, self.learner)
        self.begun = True
        chaos = asyncio.ensure_future(self._chaos())
        checkpoint = newest_whole(self.directory.checkpoints, lambda _: None) if self.directory.resumed else None
        try:
            finished = await self.controller.run(checkpoint)
        except ActorGone as gone:
            if "could not be saved" not in str(gone):
                raise
            return False
        finally:
            chaos.cancel()
        if finished:
            at_the_end(self.controller, self.config, self.path, self._live() or (), set(self.network.processes))
        return finished

    def _actors(self) -> Actors:
        config, self.begun = self.config, False
        self.fleet = fleet = Fleet([self.generator(i) for i in range(config.generators.replicas)], poll_s=5.0)
        workers = Pool([self.worker(i) for i in range(config.env_workers.count)])
        interveners = Pool([self.intervener(i) for i in range(config.interveners.min)])
        return Actors(
            workers=workers, interveners=interveners, generators=fleet, learner=self.learner,
            buffer=Buffer("replay-buffer", self.network, config.ray),
            keepers=keepers_of(config, workers, interveners, fleet, self, poll_s=2.0))

    # --- asking for actors; see rti.actors.keeper.Makers ---------------------------------------------------------------
    def worker(self, number: int) -> Worker:
        return self._episodes(f"env-worker-{number}")

    def intervener(self, number: int) -> Worker:
        return self._episodes(f"intervener-{number}")

    def generator(self, number: int) -> Replica:
        self._place(f"generator-{number}", lambda: Generator(self.rng, self._served))
        return self._find(f"generator-{number}")

    def _episodes(self, name: str) -> Worker:
        sizes = self.sizes
        self._place(name, lambda: EpisodeActor(self.rng, self._find, sizes.episodes, sizes.percent, sizes.broken))
        return Worker(name, self.network, self.config, sizes.episodes, lambda: self.fleet.roster)

    def _find(self, name: str) -> Replica:
        return Replica(name, self.network, self.config.ray)

    def _place(self, name: str, make: Callable[[], Any]) -> None:
        """The actors that a run begins with are there at once."""
        after_s = float(self.rng.exponential(self.sizes.places_s)) if self.begun else 0.0
        self.network.start(name, len(self.network.processes) % self.sizes.nodes, make, after_s=after_s)

    def _ask_for_another_scale(self) -> None:
        least = int(self.rng.integers(1, 4))
        least_key, most_key = [("interveners.min", "interveners.max"), ("env_workers.count", "env_workers.max"),
                               ("generators.replicas", "generators.max")][int(self.rng.integers(3))]
        values = {least_key: least, most_key: least + int(self.rng.integers(-1, 3))}     # some make no sense, and are refused
        self.asked += 1
        change = control.Change(id=f"{self.asked:04d}", at="then", who="somebody", values=values)
        write_json(self.path / control.REQUESTS / f"{change.id}.json", change)

    def _close(self) -> None:
        """What the system does for a process that ended."""
        buffer = self.network.processes["replay-buffer"]
        if buffer.up:
            buffer.actor._store.close()
        self.directory.close()

    # --- invariants --------------------------------------------------------------------------------------------------
    def _live(self) -> Any:
        buffer = self.network.processes["replay-buffer"]
        return buffer.actor._store._table._live if buffer.up else None

    def _look(self) -> None:
        if self.watch is not None:
            self.watch.look(self._live())

    def _served(self, version: int) -> None:
        if self.watch is not None:
            self.watch.served(version)

    # --- faults ------------------------------------------------------------------------------------------------------
    async def _chaos(self) -> None:
        kinds, weights = list(FAULTS), np.array(list(FAULTS.values()))
        while self.faults_left:
            await asyncio.sleep(float(self.rng.exponential(self.sizes.between_s)))
            self.faults_left -= 1
            kind = str(self.rng.choice(kinds, p=weights / weights.sum()))
            self.outcome.faults[kind] = self.outcome.faults.get(kind, 0) + 1
            self._strike(kind)

    def _strike(self, kind: str) -> None:
        network = self.network
        if kind in ("kill", "hang"):
            name = str(self.rng.choice(list(network.processes)))
            (network.kill if kind == "kill" else network.hang)(name)
        elif kind == "node":
            network.lose_node(int(self.rng.integers(self.sizes.nodes)))
        elif kind == "learner":
            self.learner.die()
        elif kind == "hung learner":
            self.learner.hung = True
        elif kind == "slow":
            network.slow = float(self.rng.choice([1.0, 5.0, 20.0]))
        elif kind == "gone":
            network.lose(str(self.rng.choice([name for name in network.processes if name != "replay-buffer"])))
        elif kind == "scale":
            self._ask_for_another_scale()
        elif kind == "stop":
            self.controller.stop()
        elif kind == "write":
            self.kill_at_write = True       # the driver dies in its next write
        else:
            self.loop.kill()

    def _on_death(self, process: Process) -> None:
        """The buffer's files are closed by the system; a record that it was writing is there in part."""
        if process.name != "replay-buffer":
            return
        process.actor._store.close()
        if self.rng.random() < 0.5:
            path = self.path / "buffer.journal"
            size = path.stat().st_size
            torn = Journal(path)
            torn.append(Kind.PUT, {"id": "torn"}, bytes(50))
            end = torn.size
            torn.close()
            with path.open("r+b") as file:
                file.truncate(int(self.rng.integers(size, end)))

    def killed_in_write(self, path: Path) -> None:
        """Called before and after each write of a record: the driver may die here, leaving part of a line."""
        if self.kill_at_write and self.rng.random() < 0.4:
            self.kill_at_write = False
            if self.rng.random() < 0.5:
                with path.open("ab") as file:
                    file.write(b'{"step":')
            self.loop.kill()
            raise Killed


class Directory(RunDirectory):
    """The run directory of production, in whose writes the driver may die. Opened without config.yaml, which is only slow."""

    def __init__(self, world: World, lock: DirectoryLock, resumed: bool):
        super().__init__(world.path, world.config, lock, resumed, world.loop.time)
        self._world = world

    def consume(self, entries: Any) -> None:
        self._world.killed_in_write(self.path / LEDGER)
        super().consume(entries)
        self._world.killed_in_write(self.path / LEDGER)

    def log(self, step: int, values: Any) -> dict[str, Any]:
        self._world.killed_in_write(self.path / METRICS)
        line = super().log(step, values)
        at_most_lost(step, self.checkpoints, self.config.checkpoint.every)
        self._world.killed_in_write(self.path / METRICS)
        if self._world.watch is not None:
            self._world.watch.step_end(self._world._live())
        return line


class Quiet:
    """A progress display that shows nothing."""

    def stage(self, text: str, done: int = 0, total: int = 0) -> None: ...

    def update(self, step: int, values: Any) -> None: ...

    def note(self, text: str) -> None: ...


def records(path: Path) -> tuple[list[dict[str, Any]], str]:
    """All that a synchronous run must repeat: metrics off the clock, and the ledger."""
    return [metrics.comparable(line.value) for line in read_lines(path / METRICS).lines], (path / LEDGER).read_text()


def simulate(seed: int) -> Outcome:
    """Run one seed. Raises Violation, or whatever else should not have happened."""
    with _scratch() as scratch, _silent():
        path = scratch / "run"
        path.mkdir()
        outcome = World(seed, path).run()
        ledger = [line.value for line in read_lines(path / LEDGER).lines]
        outcome.staleness = max(e["staleness"] for e in ledger if e["disposition"] in ("trained", "no_signal"))
        outcome.voided = sum(e["disposition"] == "voided" for e in ledger)
        config, sizes = draw(seed)
        if config.async_.max_staleness == 0 and sizes.faults:
            calm = scratch / "calm"
            calm.mkdir()
            World(seed, calm, faults=False).run()
            if records(path) != records(calm):
                raise Violation("a synchronous run with faults left other records than the same run without")
        return outcome


def run_one(seed: int) -> tuple[int, Outcome | None, str]:
    """The seed, what it came to, and the traceback of what went wrong instead."""
    try:
        return seed, simulate(seed), ""
    except Exception:
        return seed, None, traceback.format_exc()


@contextmanager
def _scratch() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rti-simulation-", dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@contextmanager
def _silent() -> Iterator[None]:
    """Losses are what is simulated: their warnings say nothing new."""
    ours = logging.getLogger("rti")
    before = ours.level
    ours.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.setLevel(before)
