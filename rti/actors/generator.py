"""The generator actor: one engine replica. And `RemoteEngine`, through which episodes use all replicas as if they were one.

A generator holds requests back until it was given weights, so that a restarted one never answers with old ones (field bugs 19
and 22 of a restart). A request is the same wherever it runs and whenever: one that is lost with its replica goes to another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Callable, Coroutine, Mapping, Sequence, TypeVar

import msgspec
import numpy as np

from rti.actors.cluster import ActorClient
from rti.actors.courier import Courier
from rti.actors.fleet import GeneratorStatus
from rti.actors.messages import Roster
from rti.config.schema import Config
from rti.control.concurrency import Door, all_of
from rti.control.faults import ActorLost
from rti.engines.base import EngineError, Generation, SamplingParams, Scores
from rti.engines.transfer import Transfer

log = logging.getLogger(__name__)
T = TypeVar("T")


class GeneratorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What users of a generator need to know of it."""

    max_context: int
    pid: int


class Generator:
    """The actor. Set up by its first `ready`, again after every restart."""

    def __init__(self, config: Config):
        self._config = config
        self._setup = asyncio.Lock()
        self._engine: Any = None
        self._loaded = False        # whether it was told what to serve
        self._door = Door()
        self._requests = 0          # under way, and waiting at the door

    async def ready(self) -> GeneratorInfo:
        async with self._setup:
            if self._engine is None:
                self._engine = await asyncio.to_thread(self._build)
        return GeneratorInfo(max_context=self._engine.max_context, pid=os.getpid())

    def _build(self) -> Any:
        from rti.engines import load_engine

        return load_engine(self._config.model, self._config.generators)

    async def load(self, state: Mapping[str, np.ndarray] | None, version: int) -> None:
        """Serve these weights from now on. None: those that the engine was built with (for an evaluation alone)."""
        await self.make_way(state is not None)
        if state is not None:
            await self._take_over(self._engine.load_weights(unpack(state), version))
        self._loaded = True
        self._door.open()

    async def make_way(self, updates: bool = True) -> None:
        """Returns when the engine is there and new weights may come: with `drain`, when the last request has ended."""
        await self.ready()
        if updates and self._config.generators.update == "drain":
            await self._door.shut()

    async def receive(self, transfer: Transfer, version: int) -> None:
        """As load, of weights that the learner sends meanwhile. After `make_way`. Raises TransferFailed; with `drain`, requests
        then wait for the next load."""
        await self._take_over(self._engine.receive(transfer, version))
        self._loaded = True
        self._door.open()

    async def _take_over(self, update: Coroutine[Any, Any, None]) -> None:
        """An update that has begun goes to its end, whoever asked for it: half of it would leave nothing to serve with."""
        await asyncio.shield(asyncio.ensure_future(self._or_die(update)))

    async def status(self) -> GeneratorStatus:
        if self._engine is None:
            return GeneratorStatus(version=None, requests=self._requests)
        stats = self._engine.stats()
        return GeneratorStatus(
            version=self._engine.version if self._loaded else None, sampled=int(stats["generated_tokens"]),
            scored=int(stats["scored_tokens"]), busy_s=stats["busy_s"], requests=self._requests)

    async def generate(self, prompt_ids: np.ndarray, params: SamplingParams) -> Generation:
        async with self._request():
            return await self._or_die(self._engine.generate(prompt_ids, params))

    async def score(self, prompt_ids: np.ndarray, response_ids: np.ndarray, temperature: float) -> Scores:
        async with self._request():
            return await self._or_die(self._engine.score(prompt_ids, response_ids, temperature))

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        self._requests += 1
        try:
            async with self._door.inside():
                yield
        finally:
            self._requests -= 1

    async def _or_die(self, request: Coroutine[Any, Any, T]) -> T:
        """An engine that fails stays down: the process ends, so that Ray starts it anew, and the request goes elsewhere."""
        try:
            return await request
        except EngineError as fault:
            log.error("the engine of this generator is down, restarting: %s", fault)
            os._exit(70)


class GeneratorActor(ActorClient):
    """The controller's client of a generator; see fleet.GeneratorClient."""

    async def load(self, weights: Any, version: int) -> None:
        """`weights`: a reference to them, or the courier that delivers them, under the version that it has."""
        if isinstance(weights, Courier):
            await weights.deliver(self)
        else:
            await self.call("load", weights, version)

    async def status(self) -> GeneratorStatus:
        # An engine at work answers at once: it steps in a thread of its own. One that is silent for so long hangs.
        return await self.call("status", limit_s=min(120.0, self._config.call_timeout_s))


class _Peer:
    """A generator as a user of it sees it."""

    def __init__(self, client: ActorClient):
        self.client, self.load = client, 0
        self.shunned = 0.0      # until when it is not asked, because it was lost


class RemoteEngine:
    """rti.engines.base.Engine over several generators: least loaded first, another one where a generator is lost. Which there
    are may change at any time: requests with one that leaves end there, or are made again elsewhere."""

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic):
        self._patience_s, self._clock = patience_s, clock
        self._version = 0
        self._peers: dict[str, _Peer] = {}
        self._number = -1       # of the roster that is followed
        self.max_context = 0    # of all of them, which serve one model alike; known once they were met

    async def connect(self, generators: Sequence[ActorClient]) -> None:
        """Go to these, and to no others ever."""
        self._peers = {g.name: _Peer(g) for g in generators}
        infos = await all_of(g.call("ready") for g in generators)
        self.max_context = min(info.max_context for info in infos)

    def follow(self, roster: Roster, find: Callable[[str], ActorClient]) -> None:
        """Go to the generators of this roster from now on, unless a newer one is known. `find` may raise ActorLost."""
        if roster.number <= self._number:
            return
        self._number = roster.number
        known, self._peers = self._peers, {}
        for name in roster.names:
            try:
                self._peers[name] = known.get(name) or _Peer(find(name))
            except ActorLost as left:
                log.info("%s", left)        # a newer roster is on its way

    @property
    def version(self) -> int:
        """The newest version that an answer came from."""
        return self._version

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        reply = await self._ask("generate", np.asarray(prompt_ids, np.int32), params)
        self._version = max(self._version, int(reply.versions.max(initial=0)))
        return reply

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float = 1.0) -> Scores:
        reply = await self._ask("score", np.asarray(prompt_ids, np.int32), np.asarray(response_ids, np.int32), temperature)
        self._version = max(self._version, reply.version)
        return reply

    async def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        raise EngineError("weights reach the generators from the controller, never from an episode")

    async def close(self) -> None:
        """Nothing: the generators are not this client's."""

    async def meet(self) -> None:
        """Learn how long a context they take, once: the roles' prompts must fit it, and a roster says nothing of it."""
        if not self.max_context:
            self.max_context = (await self._ask("ready")).max_context

    async def _ask(self, method: str, *args: Any) -> Any:
        deadline: float | None = None
        while True:
            try:
                return await self._ask_one(method, args)
            except ActorLost as loss:
                now = self._clock()
                deadline = now + self._patience_s if deadline is None else deadline
                if now > deadline:
                    raise EngineError(f"no generator answered for {self._patience_s:g} s; the last word was: {loss}") from None
            await asyncio.sleep(0.2)

    async def _ask_one(self, method: str, args: tuple[Any, ...]) -> Any:
        if not self._peers:
            raise ActorLost("there is no generator")
        now = self._clock()
        peer = min(self._peers.values(), key=lambda p: (p.shunned > now, p.load))
        peer.load += 1
        try:
            return await peer.client.call(method, *args)
        except ActorLost:
            peer.shunned = self._clock() + 1.0
            raise
        finally:
            peer.load -= 1


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pack(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tensors as arrays, which Ray moves between processes without copying. bfloat16, unknown to numpy, travels as uint16."""
    import torch

    return {name: (t.view(torch.uint16) if t.dtype is torch.bfloat16 else t).numpy() for name, t in state.items()}


def unpack(state: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The tensors again. They share Ray's read-only memory: the engine copies from them and writes to none."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensors = {name: torch.from_numpy(a) for name, a in state.items()}
    return {name: t.view(torch.bfloat16) if t.dtype is torch.uint16 else t for name, t in tensors.items()}
