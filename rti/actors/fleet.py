"""The generators as the controller sees them: all of them serve the newest weights, whatever dies meanwhile. Knows no Ray.

A generator that was restarted comes up without weights to serve and holds its requests back until it is given the newest
ones: it counts as healthy only then. So does one that joins while the run goes on. Which generators there are, episodes learn
from a roster that goes with each order. One handle to the newest weights is kept here and the one before is let go, so that
old weights do not pile up in the object store (field bug 24).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Callable, Protocol, Sequence

import msgspec

from rti.actors.messages import Roster
from rti.control.concurrency import all_of
from rti.control.faults import ActorGone, ActorLost, LearnerLost

log = logging.getLogger(__name__)

MAX_LOADS = 20
"""Attempts to load one version into a generator that comes back each time: beyond it the weights themselves are the fault."""


class GeneratorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counters are since the actor's start."""

    version: int | None         # of the weights that are served; None: none yet
    sampled: int = 0            # tokens
    scored: int = 0
    busy_s: float = 0.0         # with at least one request
    requests: int = 0           # under way and waiting now, no counter


class GeneratorClient(Protocol):
    name: str

    async def load(self, weights: Any, version: int) -> None: ...

    async def status(self) -> GeneratorStatus: ...

    async def revive(self, loss: ActorLost) -> None:
        """Return when the actor answers again. Raises ActorGone where it never will."""
        ...

    def end(self) -> None: ...


class Work(msgspec.Struct, frozen=True):
    """What all generators did since the last question, and how many there are."""

    sampled: int
    scored: int
    busy_s: float
    count: int


class _Place:
    """A generator and what the fleet knows of it. `serves`: whether it was given weights since it joined."""

    def __init__(self, member: GeneratorClient):
        self.member = member
        self.lock = asyncio.Lock()
        self.serves = self.leaving = False
        self.status = self.counted = GeneratorStatus(version=None)


class Fleet:
    """See the module's docstring. `tend` runs in the background; its errors end the run. `restarts`, `gone`, `done` and `kept`
    are those of rti.actors.pool, `done` being tokens. `address` gives the name by which episodes find a generator."""

    def __init__(self, members: Sequence[GeneratorClient], poll_s: float = 1.0, address: Callable[[str], str] = str):
        if not members:
            raise ValueError("there must be at least one generator")
        self._places = [_Place(member) for member in members]
        self._poll_s, self._address = poll_s, address
        self._newest: tuple[Any, int] | None = None
        self._left = [0, 0, 0.0]            # work of those that left, not yet told
        self._leaving: dict[asyncio.Task[None], None] = {}      # the oldest first, so that they end in one order
        self.restarts = self.gone = self.done = 0
        self.last_gone: ActorGone | None = None
        self.kept = False
        self.roster = Roster(0, ())
        self._enrol()

    @property
    def members(self) -> list[GeneratorClient]:
        return [place.member for place in self._places]

    @property
    def size(self) -> int:
        return sum(not place.leaving for place in self._places)

    @property
    def demand(self) -> int:
        """Requests under way and waiting, when the generators were last asked."""
        return sum(place.status.requests for place in self._places)

    # --- weights -------------------------------------------------------------------------------------------------
    async def publish(self, weights: Any, version: int) -> None:
        """Give all generators these weights; returns when the last one serves them. Raises LearnerLost where they were still
        with a learner that is lost."""
        self._newest = (weights, version)
        await all_of(self._bring_up(place) for place in self._places)

    async def tend(self) -> None:
        """Find generators that came back without weights and give them the newest."""
        try:
            while True:
                await asyncio.sleep(self._poll_s)
                await all_of(self._look(place) for place in self._places)
        finally:
            for task in self._leaving:
                task.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)

    # --- joining and leaving -------------------------------------------------------------------------------------
    async def add(self, member: GeneratorClient) -> None:
        """A generator joins; episodes hear of it once it serves the newest weights. What is published meanwhile reaches it."""
        place = _Place(member)
        self._places.append(place)
        try:
            if self._newest is not None:
                await self._bring_up(place)
        except LearnerLost as loss:     # what its next start publishes reaches this one as well
            log.warning("%s waits for weights: %s", member.name, loss)
        except BaseException:
            self._places.remove(place)
            raise
        self._enrol()

    def retire(self, count: int) -> None:
        """Have so many leave: those that do not serve yet first, then the least busy, of equals the newest. Episodes hear of it
        with their next order; each is ended once no request is left with it."""
        staying = [(p.serves, p.status.requests, -i) for i, p in enumerate(self._places) if not p.leaving]
        chosen = [self._places[-place] for _, _, place in sorted(staying)[:count]]
        for place in chosen:
            place.leaving = True
            task = asyncio.create_task(self._see_off(place))
            self._leaving[task] = None
            task.add_done_callback(self._leaving.pop)
        self._enrol()

    async def _see_off(self, place: _Place) -> None:
        """While it drains it serves what is newest, as all do. A request that comes after all is lost and goes elsewhere."""
        while place in self._places:
            await asyncio.sleep(self._poll_s)
            if not await self._ask(place) or not place.status.requests:
                break
        self._remove(place)

    def _remove(self, place: _Place) -> None:
        if place in self._places:
            self._places.remove(place)
            self._left = [a + b for a, b in zip(self._left, _fresh(place))]
            place.member.end()
            self._enrol()

    def _enrol(self) -> None:
        """Write down who is there for those who have requests. Before the first weights that is everybody, for they wait."""
        names = tuple(self._address(p.member.name) for p in self._places
                      if not p.leaving and (p.serves or self._newest is None))
        if names != self.roster.names:
            self.roster = Roster(self.roster.number + 1, names)

    # --- work ----------------------------------------------------------------------------------------------------
    async def work(self) -> Work:
        """Since the last call. What a generator did between its last answer and its death is not counted."""
        await all_of(self._ask(place) for place in self._places)
        total, self._left = self._left, [0, 0, 0.0]
        for place in self._places:
            total = [a + b for a, b in zip(total, _fresh(place))]
            place.counted = place.status
        return Work(total[0], total[1], total[2], max(1, len(self._places)))

    async def _ask(self, place: _Place) -> bool:
        try:
            status = await place.member.status()
        except ActorLost as loss:
            await self._revive(place, loss)
            return False
        self.done += max(0, status.sampled - place.status.sampled)
        place.status = status
        return True

    async def _look(self, place: _Place) -> None:
        answered = await self._ask(place)
        if self._newest is not None and (not answered or place.status.version is None):
            try:
                await self._bring_up(place)
            except LearnerLost as loss:     # its next start publishes anew; until then this one holds its requests back
                log.warning("%s waits for weights: %s", place.member.name, loss)

    async def _bring_up(self, place: _Place) -> None:
        """Load the newest weights, again if the generator dies meanwhile."""
        async with place.lock:
            for _ in range(MAX_LOADS):
                if place not in self._places:       # it left, or does not come back
                    return
                assert self._newest is not None
                weights, version = self._newest
                try:
                    await place.member.load(weights, version)
                    place.serves = True
                    self._enrol()
                    return
                except ActorLost as loss:
                    last = loss
                    await self._revive(place, loss)
            raise ActorGone(f"{place.member.name} was lost {MAX_LOADS} times while it loaded version {version}: {last}")

    async def _revive(self, place: _Place, loss: ActorLost) -> None:
        if place.leaving or place not in self._places:
            self._remove(place)
            return
        log.warning("%s is lost: %s", place.member.name, loss)
        try:
            await place.member.revive(loss)
        except ActorGone as gone:
            self._drop(place, gone)
            return
        self.restarts += 1
        log.warning("%s is back", place.member.name)

    def _drop(self, place: _Place, gone: ActorGone) -> None:
        """Go on without one that does not come back; the last one takes the run with it where nobody replaces it."""
        if place not in self._places:
            return
        if len(self._places) == 1 and not self.kept:
            raise gone
        self._remove(place)
        self.gone, self.last_gone = self.gone + 1, gone
        log.warning("%s is gone for good, %d others are there: %s", place.member.name, len(self._places), gone)


def _fresh(place: _Place) -> list[float]:
    """What a generator did since it was counted: tokens sampled and scored, seconds busy."""
    now, before = place.status, place.counted
    restarted = now.sampled < before.sampled or now.busy_s < before.busy_s
    return [getattr(now, field) - (0 if restarted else getattr(before, field)) for field in ("sampled", "scored", "busy_s")]
