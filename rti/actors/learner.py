"""The learner's actors, one a rank, and their client, which restarts all of them where one dies.

Keeps field bugs 24 and 27: weights leave rank 0 as one object that the driver owns, so that it goes when the next version
comes, and a rank that is lost takes the call down at once instead of leaving the others in a collective.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec
import ray

from rti.actors.cluster import ActorClient, Cluster, Need
from rti.actors.courier import Courier
from rti.actors.generator import available_cores, pack
from rti.actors.messages import StepReport
from rti.config.schema import Config
from rti.control.concurrency import all_of
from rti.control.faults import ActorGone, ActorLost, LearnerLost
from rti.control.weights_path import OBJECT_STORE
from rti.engines.transfer import TensorInfo, Transfer
from rti.trajectory import Group, decode

log = logging.getLogger(__name__)

SENDING = {"sending": 8, "giving_up": 1}
"""Threads of a rank beside its own, where weights are broadcast: generators that are sent to at once, others wait."""
CONTROL = {"control": 1}
"""The thread of a rank that hears an interrupt while its step runs."""


class LearnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller needs to know of the algorithm, which only the learner loads (it needs torch)."""

    intervenes: bool
    pid: int
    nccl: bool                  # whether torch has it there


class LearnerRank:
    """The actor: rti.learner.learner.Learner behind calls that Ray can carry. Not async: one call at a time, beside which the
    threads of its concurrency groups run."""

    def __init__(self, config: Config, rank: int, world_size: int, init_method: str | None):
        self._config, self._rank, self._world_size, self._init_method = config, rank, world_size, init_method
        self._learner: Any = None
        self._outbox: Any = None        # of rank 0, where weights are broadcast

    def ready(self) -> LearnerInfo:
        """Placed, with what takes long to import behind it."""
        import torch.distributed

        import rti.learner.learner  # noqa: F401
        from rti.algos import load_algorithm

        algorithm = load_algorithm(self._config.algo, self._config.intervention, self._config.rollout.train_truncated)
        return LearnerInfo(intervenes=algorithm.intervenes, pid=os.getpid(), nccl=torch.distributed.is_nccl_available())

    def start(self, checkpoint: str | None) -> tuple[int, dict[str, Any] | None]:
        from rti.learner.learner import Learner

        threads = self._config.learner.threads or max(1, available_cores() // self._world_size)
        self._config.learner.threads = threads
        self._learner = Learner(self._config, self._rank, self._world_size, init_method=self._init_method)
        self._learner.setup()
        extra = self._learner.load(checkpoint) if checkpoint else None
        return self._learner.version, extra

    def step(self, groups: list[bytes], step: int) -> StepReport:
        metrics = self._learner.step([decode(data, Group) for data in groups], step)
        return StepReport(version=self._learner.version, metrics=metrics)

    def interrupt(self, step: int) -> None:
        self._learner.interrupt(step)

    def weights(self) -> tuple[int, dict[str, Any]]:
        """The version, and the weights as arrays (empty on other ranks than 0). Two return values of the call."""
        return self._learner.version, pack(self._learner.state_dict_for_engine())

    def snapshot(self) -> tuple[int, tuple[TensorInfo, ...]]:
        """Keep a copy of the weights on rank 0's device, to send from while the learner goes on; the version, and what is in it
        (nothing on other ranks)."""
        from rti.engines.broadcast import Outbox

        if self._rank:
            for _ in self._learner.whole_weights():
                """Rank 0 takes them."""
            return self._learner.version, ()
        self._outbox = self._outbox or Outbox(self._learner.device)
        return self._learner.version, self._outbox.put(self._learner.whole_weights())

    def send(self, transfer: Transfer) -> None:
        self._outbox.send(transfer)

    def abandon(self, meeting: str) -> None:
        self._outbox.abandon(meeting)

    def stored(self) -> tuple[None, dict[str, Any]]:
        """The snapshot as arrays. Two return values of the call."""
        return None, pack(self._outbox.copy())

    def save(self, path: str, extra: dict[str, Any]) -> None:
        self._learner.save(path, extra)

    def wait_saved(self) -> None:
        self._learner.wait_saved()

    def export(self, path: str) -> None:
        self._learner.export_hf(path)


class LearnerGroup:
    """All ranks; see controller.LearnerClient."""

    def __init__(self, cluster: Cluster, config: Config, need: Need, meeting_place: Path, way: str = OBJECT_STORE):
        """`way`: how weights reach the generators, see rti.control.weights_path."""
        self._cluster, self._config, self._need = cluster, config, need
        self._courier: Courier | None = None
        if way != OBJECT_STORE:
            self._courier = Courier(self, way, config.generators.tensor_parallel, meeting_place)
        self._meeting_place = meeting_place     # a directory that all ranks see: they write their checkpoints beside it
        self._ranks: list[ActorClient] = []
        self._starts = 0

    def place(self) -> dict[str, ActorClient]:
        """Make new ranks; the clients by name, for waiting until they are there."""
        self._end_ranks()
        self._starts += 1
        n = self._config.learner.world_size
        self._meeting_file = self._meeting_place / f".ranks-{secrets.token_hex(8)}" if n > 1 else None
        init_method = f"file://{self._meeting_file}" if self._meeting_file else None
        names = [f"learner-{rank}" + (f"-{self._starts}" if self._starts > 1 else "") for rank in range(n)]
        groups = CONTROL | (SENDING if self._courier else {})
        self._ranks = [
            ActorClient(name, self._cluster.actor(LearnerRank, name, self._need, self._config, rank, n, init_method,
                                                  restart=False, groups=groups), self._config.ray)
            for rank, name in enumerate(names)]
        return {client.name: client for client in self._ranks}

    async def start(self, checkpoint: Path | None) -> tuple[int, dict[str, Any] | None]:
        if self._starts > self._config.ray.restarts + 1:
            raise ActorGone(f"the learner died {self._starts - 1} times; it may be restarted {self._config.ray.restarts} times "
                            "(ray.restarts)")
        if not self._ranks:
            await self._cluster.wait(self.place())
        answers = await self._all("start", str(checkpoint) if checkpoint else None)
        if self._meeting_file is not None:
            self._meeting_file.unlink(missing_ok=True)
        return answers[0]

    async def step(self, groups: list[bytes], step: int) -> StepReport:
        shared = ray.put(groups) if len(self._ranks) > 1 else groups       # once for all ranks
        return (await self._all("step", shared, step))[0]

    async def interrupt(self, step: int) -> None:
        """End the step that is under way; rank 0 tells the others. Its call raises StepInterrupted, unless it had ended."""
        for rank in self._ranks[:1]:
            heard = rank.handle.interrupt.options(concurrency_group="control").remote(step)
            await self._guard(rank.wait_for(heard, "interrupt"))

    def keep_to_object_store(self) -> None:
        """Before the first weights: it turns out that they cannot be broadcast."""
        self._courier = None

    async def weights(self) -> Any:
        """An object reference (the arrays themselves stay in the object store), or the courier with a new snapshot."""
        if self._courier is not None:
            await self._courier.hold()
            version, tensors = (await self._all("snapshot"))[0]
            self._courier.offer(version, tensors)
            return self._courier

        def ask(rank: ActorClient) -> Any:
            return rank.handle.weights.options(num_returns=2).remote()

        answers = [ask(rank) for rank in self._ranks]
        await self._guard(all_of(rank.wait_for(version, "weights") for rank, (version, _) in zip(self._ranks, answers)))
        return answers[0][1]

    # --- courier.Sender ------------------------------------------------------------------------------------------
    async def send(self, transfer: Transfer) -> None:
        await self._beside("sending", "send", transfer)

    async def abandon(self, meeting: str) -> None:
        await self._beside("giving_up", "abandon", meeting)

    async def stored(self) -> Any:
        return await self._beside("sending", "stored")

    async def _beside(self, group: str, method: str, *args: Any) -> Any:
        """A call of rank 0 that runs beside its step; of two return values the reference to the second."""
        if not self._ranks:
            raise LearnerLost("its ranks are not there")
        rank, two = self._ranks[0], method == "stored"
        reply = getattr(rank.handle, method).options(concurrency_group=group, num_returns=1 + two).remote(*args)
        first, second = reply if two else (reply, None)
        await self._guard(rank.wait_for(first, method))
        return second

    async def save(self, path: Path, extra: dict[str, Any]) -> None:
        await self._all("save", str(path), extra)

    async def wait_saved(self) -> None:
        await self._all("wait_saved")

    async def export(self, path: Path) -> None:
        await self._all("export", str(path))

    async def _all(self, method: str, *args: Any) -> list[Any]:
        if not self._ranks:
            raise LearnerLost("its ranks are not there")
        return await self._guard(all_of(rank.call(method, *args) for rank in self._ranks))

    async def _guard(self, calls: Any) -> Any:
        """A rank that is lost or hangs takes all of them down: the others wait for it in a collective."""
        try:
            return await calls
        except ActorLost as loss:
            self._end_ranks()
            raise LearnerLost(str(loss)) from None

    def _end_ranks(self) -> None:
        for rank in self._ranks:
            rank.kill(restart=False)
        self._ranks = []
        if self._courier is not None:
            self._courier.forget()
