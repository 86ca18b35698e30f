"""What stands in for engines, environments and the learner; and the clients of production, wired to the simulated network.

Tokens, rewards and weights are functions of seeds and of the weights served, as the real ones are. Each set of weights has a
print of its own, so that two of the same version from different pasts are told apart.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any, Callable

import numpy as np

from rti.actors.env_worker import EpisodeClient
from rti.actors.fleet import GeneratorStatus
from rti.actors.generator import GeneratorActor, GeneratorInfo, RemoteEngine
from rti.actors.messages import Order, Roster, StepReport
from rti.actors.replay_buffer import BufferActor
from rti.control.concurrency import all_of
from rti.control.faults import LearnerLost, StepInterrupted
from rti.engines.base import EngineError, Generation, SamplingParams
from rti.engines.usage import Usage
from rti.learner import checkpoint as checkpoints
from rti.simulation.invariants import Violation
from rti.trajectory import Ending, Group, Message, Sample, Step, Trajectory, decode, encode


class _Wired:
    """The only part of ActorClient that knows Ray, over the simulated network. `handle` is the network."""

    async def call(self, method: str, *args: Any, limit_s: float | None = None) -> Any:
        return await self.handle.call(self.name, method, args, limit_s or self._config.call_timeout_s)

    def kill(self, restart: bool) -> None:
        if restart:
            self.handle.kill(self.name)
        else:
            self.handle.end(self.name)


class Worker(_Wired, EpisodeClient):
    pass


class Replica(_Wired, GeneratorActor):
    pass


class Buffer(_Wired, BufferActor):
    pass


def _hash(*parts: Any) -> int:
    return zlib.crc32(repr(parts).encode())


class Generator:
    """`served` hears the version of every token that is sampled."""

    def __init__(self, rng: np.random.Generator, served: Callable[[int], None]):
        self._rng, self._served = rng, served
        self._weights: tuple[int, int] | None = None
        self._serving = asyncio.Event()
        self._sampled, self._busy_s, self._requests = 0, 0.0, 0

    async def ready(self) -> GeneratorInfo:
        return GeneratorInfo(max_context=1 << 20, pid=0)

    async def load(self, weights: tuple[int, int], version: int) -> None:
        await asyncio.sleep(float(self._rng.exponential(0.3)))
        if weights[0] != version:
            raise Violation(f"weights of version {weights[0]} are loaded as version {version}")
        self._weights = weights
        self._serving.set()

    async def status(self) -> GeneratorStatus:
        version = self._weights[0] if self._weights else None
        return GeneratorStatus(version=version, sampled=self._sampled, busy_s=self._busy_s, requests=self._requests)

    async def generate(self, prompt_ids: np.ndarray, params: SamplingParams) -> Generation:
        """Two tokens, with time for an update of the weights between them."""
        self._requests += 1
        try:
            await self._serving.wait()
            return await self._sample()
        finally:
            self._requests -= 1

    async def _sample(self) -> Generation:
        ids, versions = [], []
        for _ in range(2):
            took = float(self._rng.exponential(0.2))
            await asyncio.sleep(took)
            assert self._weights is not None
            version, mark = self._weights
            self._served(version)
            ids.append(mark)
            versions.append(version)
            self._sampled, self._busy_s = self._sampled + 1, self._busy_s + took
        return Generation(token_ids=np.array(ids, np.int32), logps=np.full(2, -0.5, np.float32),
                          versions=np.array(versions, np.int32), finish_reason="stop")


class EpisodeActor:
    """Env worker and intervener. Episodes fail as the environment does, at a rate of `broken`."""

    def __init__(self, rng: np.random.Generator, find: Callable[[str], Replica], episodes: int, percent: int, broken: float):
        self._rng, self._find, self._percent, self._broken = rng, find, percent, broken
        self._engine = RemoteEngine(60.0, clock=asyncio.get_running_loop().time)
        self._room = asyncio.Semaphore(episodes)

    async def ready(self) -> None:
        """There is nothing to set up."""

    async def usage(self) -> dict[str, Usage]:
        return {}

    async def run(self, order: Order, roster: Roster) -> list[bytes]:
        self._engine.follow(roster, self._find)
        return await all_of(self._episode(order, id, seed) for id, seed in zip(order.ids(), order.seeds))

    async def _episode(self, order: Order, id: str, seed: int) -> bytes:
        async with self._room:
            ending, samples, success = Ending.COMPLETED, [], False
            try:
                await asyncio.sleep(float(self._rng.exponential(0.3)))
                turns = [await self._engine.generate([seed % 97], SamplingParams(max_tokens=2, seed=seed))
                         for _ in range(1 + seed % 2)]
                samples = [_sample(turns)]
                success = _hash(seed, samples[0].token_ids.tolist()) % 100 < self._percent
            except EngineError:
                ending = Ending.INFRASTRUCTURE
            if self._rng.random() < self._broken:
                ending, samples, success = Ending.ENVIRONMENT, [], False
        return encode(Trajectory(
            id=id, group_id=order.group_id, task_id=order.task_id, intervened=order.intervened, ending=ending, samples=samples,
            steps=[Step(message=Message(role="assistant"), n_tokens=2)] * (1 + seed % 2 if samples else 0),
            temperature=order.temperature, reward=float(success), success=success, seed=seed))


def _sample(turns: list[Generation]) -> Sample:
    """One context token, then what was sampled. A token id is the print of the weights that gave it."""
    n = 1 + 2 * len(turns)
    agent = np.arange(n) > 0
    return Sample(
        token_ids=np.concatenate([[0], *(t.token_ids for t in turns)]).astype(np.int32), sources=agent.astype(np.uint8),
        behaviour_logps=np.where(agent, -0.5, 0).astype(np.float32), correction_logps=np.full(n, np.nan, np.float32),
        weights=agent.astype(np.float32), versions=np.concatenate([[-1], *(t.versions for t in turns)]).astype(np.int32),
        turns=((np.arange(n) + 1) // 2 - 1).astype(np.int16))


class Learner:
    """See controller.LearnerClient. Refuses groups with tokens of weights that were never in its past."""

    def __init__(self, rng: np.random.Generator, call_timeout_s: float):
        self._rng, self._limit_s = rng, call_timeout_s
        self.version, self.past = 0, [1]        # version -> print of the weights
        self.starts, self.hung = 0, False
        self._interrupted = asyncio.Event()
        self._dead: asyncio.Future[None] | None = None
        self._saving: asyncio.Task[None] | None = None

    async def start(self, checkpoint: Path | None) -> tuple[int, dict[str, Any] | None]:
        self.starts += 1
        self._dead, self.hung = asyncio.get_running_loop().create_future(), False
        await self._work(0.5)
        if checkpoint is None:
            self.version, self.past = 0, [1]
            return 0, None
        meta = checkpoints.read_record(checkpoint / "meta.msgpack")
        self.version, self.past = meta["version"], meta["past"]
        return self.version, checkpoints.read_record(checkpoint / "extra.msgpack")

    async def step(self, groups: list[bytes], step: int) -> StepReport:
        self._interrupted.clear()
        await self._work(1.0)
        if self._interrupted.is_set():
            raise StepInterrupted(f"step {step}")
        records = [decode(g, Group) for g in groups]
        for group in records:
            for member in group.members:
                for sample in member.samples:
                    self._check(group, sample)
        self.version += 1
        content = [(m.id, m.seed, m.reward, [s.token_ids.tolist() for s in m.samples]) for g in records for m in g.members]
        self.past.append(_hash(self.past[-1], content) >> 1)
        return StepReport(version=self.version, metrics={"learner/updated": 1.0, "policy/loss": self.past[-1] / 2**31})

    async def interrupt(self, step: int) -> None:
        self._interrupted.set()

    def _check(self, group: Group, sample: Sample) -> None:
        for mark, version in zip(sample.token_ids[1:].tolist(), sample.versions[1:].tolist()):
            if version >= len(self.past) or self.past[version] != mark:
                raise Violation(f"group {group.id} has a token of version {version} from weights that never were in this past")

    async def weights(self) -> tuple[int, int]:
        await self._work(0.05)
        return self.version, self.past[self.version]

    async def save(self, path: Path, extra: dict[str, Any]) -> None:
        await self.wait_saved()
        await self._work(0.05)
        work = checkpoints.temporary(path)
        work.mkdir(parents=True, exist_ok=True)
        checkpoints.write_record(work / "meta.msgpack", {"version": self.version, "past": self.past})
        checkpoints.write_record(work / "extra.msgpack", extra)
        self._saving = asyncio.ensure_future(self._complete(path))

    async def _complete(self, path: Path) -> None:
        await asyncio.sleep(float(self._rng.exponential(0.5)))
        checkpoints.complete(path)

    async def wait_saved(self) -> None:
        if self._saving is not None:
            await asyncio.wait({self._saving, self._dead}, return_when=asyncio.FIRST_COMPLETED)
            self._saving = None     # whole, or cancelled by the death
        await self._work(0.0)

    def die(self) -> None:
        if self._saving is not None:
            self._saving.cancel()       # half written: it stays under its temporary name
            self._saving = None
        if self._dead is not None and not self._dead.done():
            self._dead.set_result(None)

    async def _work(self, mean_s: float) -> None:
        """Take a while. Raises LearnerLost where a rank dies meanwhile, is dead, or hangs."""
        assert self._dead is not None
        took = self._limit_s if self.hung else float(self._rng.exponential(mean_s)) if mean_s else 0.0
        await asyncio.wait({self._dead}, timeout=took)
        if self.hung:
            self.die()
        if self._dead.done():
            raise LearnerLost("rank 0 is lost")
