"""Keeps a pool at the size that its work needs: asks for new actors, lets idle ones go, replaces those that are gone. No Ray.

A new actor is asked for with its resources, which is what an autoscaler sees; it joins once it answers. Until then nothing
waits for it, and where it is not needed any more it is asked for no longer. How many there should be, rti.control.scaling says.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Callable, Generic, Protocol, TypeVar

from rti.actors.fleet import Fleet
from rti.actors.pool import Pool
from rti.config.schema import Config
from rti.control.faults import ActorGone
from rti.control.scaling import Bounds, Scaler, needed

log = logging.getLogger(__name__)


class Recruit(Protocol):
    """A client of an actor that was asked for."""

    name: str

    async def arrive(self) -> None:
        """Return when the actor answers for the first time, however long its placement takes. Raises ActorGone."""
        ...

    def end(self) -> None: ...


M = TypeVar("M", bound=Recruit)


class Crew(Protocol[M]):
    """What has members: a pool, or the fleet of generators. See rti.actors.pool for the words."""

    size: int
    demand: int
    done: int
    gone: int
    last_gone: ActorGone | None
    kept: bool

    async def add(self, member: M) -> None: ...

    def retire(self, count: int) -> None: ...


class Keeper(Generic[M]):
    """`ask` asks for the actor of a number and returns its client at once; numbers are never used again. `bounds` are asked for
    anew each time, so that they may change. `losses`: members that may go for good one after the other while nothing gets done;
    `patience_s`: how long there may be none at all."""

    def __init__(self, kind: str, crew: Crew[M], ask: Callable[[int], M], bounds: Callable[[], Bounds], *, first: int,
                 capacity: int, losses: int, patience_s: float, poll_s: float = 1.0):
        self._kind, self._crew, self._ask, self._bounds = kind, crew, ask, bounds
        self._next, self._capacity = first, capacity
        self._losses, self._patience_s, self._poll_s = losses, patience_s, poll_s
        self._scaler = Scaler()
        self._coming: dict[M, asyncio.Task[None]] = {}      # the oldest first
        self._lost = 0              # members that went, and recruits that never came, since something was done
        self._seen = (0, 0)         # done and gone, at the last look
        self._none_since: float | None = None
        self._why: ActorGone | None = None
        self._failure: Exception | None = None
        crew.kept = True

    @property
    def coming(self) -> int:
        """Actors that were asked for and are not there yet."""
        return len(self._coming)

    async def tend(self) -> None:
        """To be run in the background; its errors end the run."""
        try:
            while True:
                self.look()
                await asyncio.sleep(self._poll_s)
        finally:
            for task in self._coming.values():
                task.cancel()
            await asyncio.gather(*self._coming.values(), return_exceptions=True)

    def look(self) -> None:
        """Ask for members, or let some go."""
        now = asyncio.get_running_loop().time()
        bounds = self._bounds()
        want = self._scaler.want(now, needed(self._crew.demand, self._capacity), bounds)
        self._check(now)
        surplus = self._crew.size + self.coming - want
        for _ in range(-surplus):
            self._ask_for_one()
        for member in list(reversed(self._coming))[:max(0, surplus)]:
            self._coming[member].cancel()
            surplus -= 1
        if surplus > 0:
            log.info("%s: %d are enough, %d leave", self._kind, want, surplus)
            self._crew.retire(surplus)

    def _ask_for_one(self) -> None:
        member = self._ask(self._next)
        self._next += 1
        log.info("%s is asked for", member.name)
        self._coming[member] = asyncio.create_task(self._welcome(member))

    async def _welcome(self, member: M) -> None:
        joined = False
        try:
            await member.arrive()
            await self._crew.add(member)
            joined = True
            log.info("%s joins", member.name)
        except ActorGone as gone:
            self._lost, self._why = self._lost + 1, gone
            log.warning("%s did not come: %s", member.name, gone)
        except Exception as failure:        # what its set-up raised would be raised by any other's as well
            self._failure = failure
        finally:
            del self._coming[member]
            if not joined:
                member.end()

    def _check(self, now: float) -> None:
        """Raises ActorGone where members go one after the other and nothing gets done, or where none is there for too long,
        and whatever a new member's set-up raised."""
        if self._failure is not None:
            raise self._failure
        done, gone = self._crew.done, self._crew.gone
        self._lost = 0 if done > self._seen[0] else self._lost + gone - self._seen[1]
        self._seen = (done, gone)
        why = self._crew.last_gone or self._why
        if self._lost > self._losses:
            raise ActorGone(f"{self._lost} actors of the kind {self._kind} were lost for good one after the other, and nothing "
                            f"was done in between (as many as ray.restarts = {self._losses} may be); the last: {why}")
        if self._crew.size:
            self._none_since = None
            return
        self._none_since = now if self._none_since is None else self._none_since
        if now - self._none_since > self._patience_s:
            raise ActorGone(f"for {self._patience_s:g} s (ray.start_timeout_s) there has been no actor of the kind "
                            f"{self._kind}, and {self.coming} that were asked for have no place. Add nodes, or raise the "
                            f"limit; the last that was there: {why}")


# --- the pools of a run ------------------------------------------------------------------------------------------------
class Makers(Protocol):
    """Asks for one actor of a kind, by number."""

    def worker(self, number: int) -> Any: ...

    def intervener(self, number: int) -> Any: ...

    def generator(self, number: int) -> Any: ...


def worker_bounds(config: Config) -> Bounds:
    section = config.env_workers
    return Bounds(section.count, max(section.count, section.max), config.ray.idle_s)


def intervener_bounds(config: Config) -> Bounds:
    return Bounds(config.interveners.min, config.interveners.max, config.ray.idle_s)


def generator_bounds(config: Config) -> Bounds:
    section = config.generators
    return Bounds(section.replicas, max(section.replicas, section.max), config.ray.idle_s)


def keepers_of(config: Config, workers: Pool[Any], interveners: Pool[Any], fleet: Fleet, makers: Makers,
               poll_s: float = 1.0) -> list[Keeper[Any]]:
    """The keepers of a run's pools, which go by what `config` says at any time."""
    def keeper(kind: str, crew: Crew[Any], ask: Callable[[int], Any], bounds: Callable[[Config], Bounds],
               capacity: int) -> Keeper[Any]:
        return Keeper(kind, crew, ask, lambda: bounds(config), first=crew.size, capacity=capacity, losses=config.ray.restarts,
                      patience_s=config.ray.start_timeout_s, poll_s=poll_s)

    return [keeper("env worker", workers, makers.worker, worker_bounds, config.env_workers.episodes),
            keeper("intervener", interveners, makers.intervener, intervener_bounds, config.interveners.episodes),
            keeper("generator", fleet, makers.generator, generator_bounds, config.generators.concurrency)]
