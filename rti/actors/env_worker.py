"""The env worker actor: many episodes at once, against the generators. The intervener is its sibling with another policy.

Trajectories depend on the order alone: tasks by index and name, seeds from the order, G episodes in any interleaving. Faults
that an episode survives are its ending (rti.rollout); what escapes here ends the run, or died with the process.
"""

from __future__ import annotations

import asyncio
import math
import os
from typing import Callable, Sequence

from rti.actors.cluster import ActorClient, named_actor
from rti.actors.generator import RemoteEngine
from rti.actors.messages import Order, Roster, TaskIndex, TaskName
from rti.actors.services import connect
from rti.branching import Root
from rti.chat import load_chat_format
from rti.chat.base import ChatFormat
from rti.config.schema import Config
from rti.config.teacher import judges
from rti.control.concurrency import all_of
from rti.engines.base import EngineError, SamplingParams
from rti.engines.usage import BOOK, Usage
from rti.envs import load_task_set
from rti.envs.base import FatalEnvironmentError, Task, TaskSet
from rti.rollout import PlainPolicy, StepPolicy, lose, run_episode
from rti.teacher import judge
from rti.trajectory import Ending, Trajectory, decode, encode


class EpisodeActor:
    """What env worker and intervener have in common. `ready` sets it up, again after every restart."""

    episodes: int       # at once

    def __init__(self, config: Config, teachers: Sequence[str] = ()):
        self._config, self._teachers = config, teachers     # by name: a restarted actor finds them again
        self._engine, self._teacher = RemoteEngine(config.ray.start_timeout_s), RemoteEngine(config.ray.start_timeout_s)
        self._setup = asyncio.Lock()
        self._tasks: TaskSet | None = None
        self._chat: ChatFormat | None = None
        self._room: asyncio.Semaphore | None = None

    async def ready(self) -> TaskIndex:
        """The task set by name."""
        async with self._setup:
            if self._tasks is None:
                tasks, self._chat = await asyncio.to_thread(self._load)
                if self._teachers:
                    await self._teacher.connect([named_actor(name, self._config.ray) for name in self._teachers])
                self._room = asyncio.Semaphore(self.episodes)
                self._tasks = tasks
        return TaskIndex(train=[TaskName(t.id, t.cls) for t in self._tasks.train],
                         test=[TaskName(t.id, t.cls) for t in self._tasks.test])

    def _load(self) -> tuple[TaskSet, ChatFormat]:
        return (load_task_set(self._config.env, self._config.seed, connect),
                load_chat_format(self._config.model.chat, self._config.model.path))

    def policy(self, order: Order) -> StepPolicy:
        raise NotImplementedError

    async def run(self, order: Order, roster: Roster) -> list[bytes]:
        """The encoded trajectories of an order, in its order. `roster`: the generators to go to, from now on for all episodes
        of this actor, also those under way."""
        await self.ready()
        self._engine.follow(roster, lambda name: named_actor(name, self._config.ray))
        await self._engine.meet()
        task, policy = self._task(order), self.policy(order)
        episodes = (self._episode(order, task, policy, id, seed) for id, seed in zip(order.ids(), order.seeds))
        return [encode(trajectory) for trajectory in await all_of(episodes)]

    async def _episode(self, order: Order, task: Task, policy: StepPolicy, id: str, seed: int) -> Trajectory:
        root = Root(decode(order.root.parent, Trajectory), order.root.turn) if order.root else None
        async with self._room:
            return await run_episode(
                task, self._tasks.make(), policy, self._chat, id=id, group_id=order.group_id, seed=seed,
                limits=self._config.rollout, temperature=order.temperature, intervened=order.intervened, root=root)

    def _task(self, order: Order) -> Task:
        tasks = self._tasks.train if order.split == "train" else self._tasks.test
        if order.task >= len(tasks) or tasks[order.task].id != order.task_id:
            raise FatalEnvironmentError(
                f"{order.split} task {order.task} is not {order.task_id} here: this machine has another task set than the "
                "one that the run began with; give all nodes the same files")
        return tasks[order.task]

    async def pid(self) -> int:
        return os.getpid()

    async def usage(self) -> dict[str, Usage]:
        """What this process asked of endpoints since the last call, by role."""
        return BOOK.take()


class EnvWorker(EpisodeActor):
    """Plain rollouts, for training and for evaluation."""

    def __init__(self, config: Config, teachers: Sequence[str] = ()):
        super().__init__(config, teachers)
        self.episodes = config.env_workers.episodes

    def policy(self, order: Order) -> StepPolicy:
        rollout = self._config.rollout
        return PlainPolicy(self._engine, self._chat, SamplingParams(
            max_tokens=rollout.max_tokens, temperature=order.temperature, top_p=rollout.top_p))

    async def _episode(self, order: Order, task: Task, policy: StepPolicy, id: str, seed: int) -> Trajectory:
        trajectory = await super()._episode(order, task, policy, id, seed)
        if order.split == "train" and judges(self._config):
            try:
                await judge(trajectory, self._teacher)
            except EngineError as fault:
                lose(trajectory, Ending.INFRASTRUCTURE, fault)
        return trajectory


class EpisodeClient(ActorClient):
    """The controller's client of an env worker or intervener; see pool.Member. `roster`: the generators that serve now, which
    each order carries along."""

    def __init__(self, name: str, handle, config: Config, episodes: int, roster: Callable[[], Roster],
                 ended: Callable[[], None] = lambda: None):
        super().__init__(name, handle, config.ray, ended)
        self.capacity, self._roster = episodes, roster
        self._episode_s = config.rollout.timeout_s

    async def run(self, order: Order) -> list[bytes]:
        # Episodes end by themselves after rollout.timeout_s; the actor that says nothing for so much longer hangs.
        waves = math.ceil(order.cost / self.capacity)
        return await self.call("run", order, self._roster(), limit_s=waves * self._episode_s + 60.0)

    async def usage(self) -> dict[str, Usage]:
        return await self.call("usage")
