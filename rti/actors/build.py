"""Makes the actors that a configuration asks for, on a cluster, and waits until all of them are there."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path

from rti.actors.cluster import ActorClient, Cluster, Need
from rti.actors.env_worker import EnvWorker, EpisodeClient
from rti.actors.fleet import Fleet
from rti.actors.generator import Generator, GeneratorActor
from rti.actors.intervener import Intervener
from rti.actors.learner import LearnerGroup
from rti.actors.messages import TaskIndex
from rti.actors.pool import Pool
from rti.actors.replay_buffer import BufferActor, ReplayBuffer
from rti.config.schema import Config
from rti.config.teacher import served, wanted
from rti.control.placement import plan

JOURNAL = "buffer.journal"


@dataclass
class Parts:
    """The clients of a run's actors. An evaluation has no interveners, buffer and learner."""

    generators: list[GeneratorActor]
    workers: list[EpisodeClient]
    interveners: list[EpisodeClient] = field(default_factory=list)
    teachers: list[GeneratorActor] = field(default_factory=list)
    buffer: BufferActor | None = None
    learner: LearnerGroup | None = None
    tasks: TaskIndex | None = None
    intervenes: bool = False

    def fleet(self) -> Fleet:
        return Fleet(self.generators)

    def pool(self) -> Pool[EpisodeClient]:
        return Pool(self.workers)


def cpus_of(config: Config, training: bool) -> float:
    """What all actors of a run ask for together."""
    total = config.generators.replicas * config.generators.cpus + config.env_workers.count * config.env_workers.cpus
    if training:
        total += config.interveners.max * config.interveners.cpus + config.learner.world_size * config.learner.cpus
        total += config.teacher.generators.replicas * config.teacher.generators.cpus if wanted(config) else 0
    return total


async def build(cluster: Cluster, config: Config, run_dir: Path | None) -> Parts:
    """All actors, set up; with `run_dir` those of training as well. Raises ActorGone where they cannot be placed, or an actor's
    own error where it cannot be set up as configured."""
    config = copy.deepcopy(config)      # what the actors get: they may stand in another working directory
    config.run_dir = str(run_dir) if run_dir else ""
    training = run_dir is not None
    placed = plan(config, cluster.machines, training=training)
    need = Need(config.generators.cpus, placed.generator)
    generators = [GeneratorActor(f"generator-{i}", cluster.actor(Generator, f"generator-{i}", need, config), config.ray)
                  for i in range(config.generators.replicas)]
    count = config.teacher.generators.replicas if training and wanted(config) else 0
    need = Need(config.teacher.generators.cpus, placed.teacher)
    teachers = [GeneratorActor(f"teacher-{i}", cluster.actor(Generator, f"teacher-{i}", need, served(config)), config.ray)
                for i in range(count)]
    parts = Parts(generators, _episode_actors(cluster, config, generators, teachers, EnvWorker, "env-worker",
                                              config.env_workers.count, config.env_workers.cpus, config.env_workers.episodes))
    parts.teachers = teachers
    clients: dict[str, ActorClient] = {c.name: c for c in (*generators, *teachers, *parts.workers)}
    if training:
        parts.interveners = _episode_actors(cluster, config, generators, teachers, Intervener, "intervener",
                                            config.interveners.min, config.interveners.cpus, config.interveners.episodes)
        journal = cluster.actor(ReplayBuffer, "replay-buffer", Need(0), str(run_dir / JOURNAL), config.buffer.memory_mb)
        parts.buffer = BufferActor("replay-buffer", journal, config.ray)
        parts.learner = LearnerGroup(cluster, config, Need(config.learner.cpus, placed.learner), run_dir)
        clients |= {c.name: c for c in (*parts.interveners, parts.buffer)} | parts.learner.place()
    answers = await cluster.wait(clients)
    parts.tasks = answers[parts.workers[0].name]
    parts.intervenes = training and answers["learner-0"].intervenes
    return parts


def _episode_actors(cluster: Cluster, config: Config, generators: list[GeneratorActor], teachers: list[GeneratorActor],
                    cls: type, name: str, count: int, cpus: float, episodes: int) -> list[EpisodeClient]:
    names = [[cluster.full_name(g.name) for g in engines] for engines in (generators, teachers)]
    return [EpisodeClient(f"{name}-{i}", cluster.actor(cls, f"{name}-{i}", Need(cpus), config, *names), config, episodes)
            for i in range(count)]
