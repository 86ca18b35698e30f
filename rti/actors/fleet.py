"""The generators as the controller sees them: all of them serve the newest weights, whatever dies meanwhile. Knows no Ray.

A generator that was restarted comes up without weights to serve and holds its requests back until it is given the newest
ones: it counts as healthy only then. One handle to the newest weights is kept here and the one before is let go, so that old
weights do not pile up in the object store (field bug 24).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, Sequence

import msgspec

from rti.control.concurrency import all_of
from rti.control.faults import ActorGone, ActorLost

log = logging.getLogger(__name__)

MAX_LOADS = 20
"""Attempts to load one version into a generator that comes back each time: beyond it the weights themselves are the fault."""


class GeneratorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counters are since the actor's start."""

    version: int | None         # of the weights that are served; None: none yet
    sampled: int = 0            # tokens
    scored: int = 0
    busy_s: float = 0.0         # with at least one request


class GeneratorClient(Protocol):
    name: str

    async def load(self, weights: Any, version: int) -> None: ...

    async def status(self) -> GeneratorStatus: ...

    async def revive(self, loss: ActorLost) -> None:
        """Return when the actor answers again. Raises ActorGone where it never will."""
        ...


class Work(msgspec.Struct, frozen=True):
    """What all generators did since the last question, and how many there are."""

    sampled: int
    scored: int
    busy_s: float
    count: int


class Fleet:
    """See the module's docstring. `tend` runs in the background; its errors end the run."""

    def __init__(self, members: Sequence[GeneratorClient], poll_s: float = 1.0):
        if not members:
            raise ValueError("there must be at least one generator")
        self.members = list(members)
        self._poll_s = poll_s
        self._newest: tuple[Any, int] | None = None
        self._locks = [asyncio.Lock() for _ in self.members]
        self._status = [GeneratorStatus(version=None) for _ in self.members]
        self._counted = [GeneratorStatus(version=None) for _ in self.members]
        self.restarts = 0

    async def publish(self, weights: Any, version: int) -> None:
        """Give all generators these weights; returns when the last one serves them."""
        self._newest = (weights, version)
        await all_of(self._bring_up(i) for i in range(len(self.members)))

    async def tend(self) -> None:
        """Find generators that came back without weights and give them the newest."""
        while True:
            await asyncio.sleep(self._poll_s)
            await all_of(self._look(i) for i in range(len(self.members)))

    async def work(self) -> Work:
        """Since the last call. What a generator did between its last answer and its death is not counted."""
        await all_of(self._ask(i) for i in range(len(self.members)))
        total = [0, 0, 0.0]
        for i, (now, before) in enumerate(zip(self._status, self._counted)):
            fresh = now.sampled < before.sampled or now.busy_s < before.busy_s      # it was restarted in between
            for k, field in enumerate(("sampled", "scored", "busy_s")):
                total[k] += getattr(now, field) - (0 if fresh else getattr(before, field))
            self._counted[i] = now
        return Work(total[0], total[1], total[2], len(self.members))

    async def _ask(self, i: int) -> bool:
        try:
            self._status[i] = await self.members[i].status()
        except ActorLost as loss:
            await self._revive(i, loss)
            return False
        return True

    async def _look(self, i: int) -> None:
        answered = await self._ask(i)
        if self._newest is not None and (not answered or self._status[i].version is None):
            await self._bring_up(i)

    async def _bring_up(self, i: int) -> None:
        """Load the newest weights, again if the generator dies meanwhile."""
        async with self._locks[i]:
            for _ in range(MAX_LOADS):
                assert self._newest is not None
                weights, version = self._newest
                try:
                    await self.members[i].load(weights, version)
                    return
                except ActorLost as loss:
                    last = loss
                    await self._revive(i, loss)
            raise ActorGone(f"{self.members[i].name} was lost {MAX_LOADS} times while it loaded version {version}: {last}")

    async def _revive(self, i: int, loss: ActorLost) -> None:
        log.warning("%s is lost: %s", self.members[i].name, loss)
        await self.members[i].revive(loss)
        self.restarts += 1
        log.warning("%s is back", self.members[i].name)
