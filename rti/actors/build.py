"""Makes the actors that a configuration asks for, on a cluster, and waits until all of them are there."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rti.actors.cluster import ActorClient, Cluster, Need
from rti.actors.env_worker import EnvWorker, EpisodeClient
from rti.actors.fleet import Fleet
from rti.actors.generator import Generator, GeneratorActor
from rti.actors.intervener import Intervener
from rti.actors.keeper import Keeper, generator_bounds, intervener_bounds, keepers_of, worker_bounds
from rti.actors.learner import LearnerGroup
from rti.actors.messages import TaskIndex
from rti.actors.pool import Pool
from rti.actors.replay_buffer import BufferActor, ReplayBuffer
from rti.config.keys import ConfigError
from rti.config.schema import Config
from rti.config.teacher import served, wanted
from rti.control.model_shape import ModelShape, shape_of
from rti.control.placement import plan
from rti.control.weights_path import NCCL, choose
from rti.pretrained import resolve

JOURNAL = "buffer.journal"


@dataclass
class Parts:
    """The clients of a run's actors. An evaluation has no interveners, buffer and learner."""

    fleet: Fleet
    workers: Pool[EpisodeClient]
    keepers: list[Keeper[Any]] = field(default_factory=list)
    interveners: Pool[EpisodeClient] | None = None
    teachers: Fleet | None = None
    buffer: BufferActor | None = None
    learner: LearnerGroup | None = None
    tasks: TaskIndex | None = None
    intervenes: bool = False


def cpus_of(config: Config, training: bool) -> float:
    """What all actors of a run ask for together where its pools are as large as they may become."""
    generators, workers, interveners = generator_bounds(config), worker_bounds(config), intervener_bounds(config)
    total = generators.most * config.generators.cpus + workers.most * config.env_workers.cpus
    if training:
        total += interveners.most * config.interveners.cpus + config.learner.world_size * config.learner.cpus
        total += config.teacher.generators.replicas * config.teacher.generators.cpus if wanted(config) else 0
    return total


async def build(cluster: Cluster, config: Config, run_dir: Path | None) -> Parts:
    """All actors, set up; with `run_dir` those of training as well. Raises ActorGone where they cannot be placed, or an actor's
    own error where it cannot be set up as configured. Pools are kept within the bounds that `config` names at any time."""
    frozen = copy.deepcopy(config)      # what the actors get: they may stand in another working directory
    frozen.run_dir = str(run_dir) if run_dir else ""
    training = run_dir is not None
    placed = plan(config, cluster.machines, training=training)
    makers = _Makers(cluster, frozen, Need(config.generators.cpus, placed.generator))
    count = config.teacher.generators.replicas if training and wanted(config) else 0
    teachers = [makers.teacher(i, Need(config.teacher.generators.cpus, placed.teacher)) for i in range(count)]
    generators = [makers.generator(i) for i in range(config.generators.replicas)]
    makers.fleet = fleet = Fleet(generators, address=cluster.full_name)
    parts = Parts(fleet, Pool([makers.worker(i) for i in range(config.env_workers.count)]))
    parts.teachers = Fleet(teachers) if teachers else None
    clients: dict[str, ActorClient] = {c.name: c for c in (*generators, *teachers, *parts.workers.members)}
    if training:
        parts.interveners = Pool([makers.intervener(i) for i in range(config.interveners.min)])
        stable = config.ray.stable_resource
        journal = cluster.actor(ReplayBuffer, "replay-buffer", Need(0, stable=stable), str(run_dir / JOURNAL),
                                config.buffer.memory_mb)
        parts.buffer = BufferActor("replay-buffer", journal, config.ray)
        way = choose(config, placed, _known_shape(config))
        parts.learner = LearnerGroup(cluster, frozen, Need(config.learner.cpus, placed.learner, stable), run_dir, way.kind)
        clients |= {c.name: c for c in (*parts.interveners.members, parts.buffer)} | parts.learner.place()
        parts.keepers = keepers_of(config, parts.workers, parts.interveners, fleet, makers)
    answers = await cluster.wait(clients)
    parts.tasks = answers[parts.workers.members[0].name]
    if training:
        parts.intervenes = answers["learner-0"].intervenes
        if way.kind == NCCL and choose(config, placed, nccl=answers["learner-0"].nccl).kind != NCCL:
            parts.learner.keep_to_object_store()
    return parts


def _known_shape(config: Config) -> ModelShape | None:
    """The policy's, where its directory or the table tells it."""
    try:
        return shape_of(resolve(config.model.path))
    except ConfigError:
        return None


class _Makers:
    """Ask for one actor each, by number. `fleet` is set once there is one."""

    fleet: Fleet

    def __init__(self, cluster: Cluster, config: Config, generator: Need):
        self._cluster, self._config, self._generator = cluster, config, generator
        self._teachers: list[str] = []

    def generator(self, number: int) -> GeneratorActor:
        name = f"generator-{number}"
        handle = self._cluster.actor(Generator, name, self._generator, self._config)
        return GeneratorActor(name, handle, self._config.ray, lambda: self._cluster.forget(name))

    def teacher(self, number: int, need: Need) -> GeneratorActor:
        """A generator of the teacher's model. To be asked for before those that go to it."""
        name = f"teacher-{number}"
        self._teachers.append(self._cluster.full_name(name))
        return GeneratorActor(name, self._cluster.actor(Generator, name, need, served(self._config)), self._config.ray)

    def worker(self, number: int) -> EpisodeClient:
        section = self._config.env_workers
        return self._episodes(EnvWorker, f"env-worker-{number}", section.cpus, section.episodes)

    def intervener(self, number: int) -> EpisodeClient:
        section = self._config.interveners
        return self._episodes(Intervener, f"intervener-{number}", section.cpus, section.episodes)

    def _episodes(self, cls: type, name: str, cpus: float, episodes: int) -> EpisodeClient:
        handle = self._cluster.actor(cls, name, Need(cpus), self._config, self._teachers)
        return EpisodeClient(name, handle, self._config, episodes, lambda: self.fleet.roster,
                             lambda: self._cluster.forget(name))
