"""A pool of actors that carry out orders: least loaded first, waiting in line where all are busy. Knows no Ray.

A member that is lost gets no orders until it is back; whoever gave it an order gets the loss as an error and decides. Orders
wait first come, first served, so that none starves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Generic, Protocol, Sequence, TypeVar

from rti.actors.messages import Order
from rti.control.concurrency import all_of
from rti.control.faults import ActorLost
from rti.engines.usage import Usage, UsageBook

log = logging.getLogger(__name__)


class Member(Protocol):
    """A client of one actor."""

    name: str
    capacity: int       # episodes at once

    async def run(self, order: Order) -> list[bytes]:
        """The encoded trajectories of an order. Raises ActorLost."""
        ...

    async def usage(self) -> dict[str, Usage]:
        """What the actor asked of endpoints since the last call, by role. Raises ActorLost."""
        ...

    async def revive(self, loss: ActorLost) -> None:
        """Return when the actor answers again. Raises ActorGone where it never will."""
        ...


M = TypeVar("M", bound=Member)


class Pool(Generic[M]):
    """See the module's docstring. `restarts` counts the members that came back."""

    def __init__(self, members: Sequence[M]):
        if not members:
            raise ValueError("a pool needs at least one member")
        self.members = list(members)
        self._load = [0] * len(self.members)
        self._live = [True] * len(self.members)
        self._waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
        self._reviving: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self.restarts = 0

    @property
    def alive(self) -> int:
        return sum(self._live)

    async def run(self, order: Order) -> list[bytes]:
        index = await self._acquire(order.cost)
        try:
            return await self.members[index].run(order)
        except ActorLost as loss:
            self._lose(index, loss)
            raise
        finally:
            self._load[index] -= order.cost
            self._serve()

    async def usage(self) -> UsageBook:
        """What all members asked of endpoints since the last call. What one asked before its death is not counted."""
        book = UsageBook()

        async def ask(index: int) -> None:
            try:
                book.merge(await self.members[index].usage())
            except ActorLost as loss:
                self._lose(index, loss)

        await all_of(ask(i) for i, live in enumerate(self._live) if live)
        return book

    async def close(self) -> None:
        for task in self._reviving:
            task.cancel()
        await asyncio.gather(*self._reviving, return_exceptions=True)

    async def _acquire(self, cost: int) -> int:
        if self._broken is not None:
            raise self._broken
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((cost, place))
        self._serve()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:    # placed, and cancelled in the same tick
                self._load[place.result()] -= cost
                self._serve()
            raise

    def _serve(self) -> None:
        """Place the orders at the head of the line while there is room."""
        while self._waiting:
            cost, place = self._waiting[0]
            if place.done():        # cancelled while it waited
                self._waiting.popleft()
                continue
            index = self._least_loaded(cost)
            if index is None:
                return
            self._waiting.popleft()
            self._load[index] += cost
            place.set_result(index)

    def _least_loaded(self, cost: int) -> int | None:
        """An order larger than a member's capacity goes to an idle one, which then works through it."""
        free = [i for i, m in enumerate(self.members)
                if self._live[i] and (self._load[i] + cost <= m.capacity or self._load[i] == 0)]
        return min(free, key=lambda i: (self._load[i] / self.members[i].capacity, i), default=None)

    def _lose(self, index: int, loss: ActorLost) -> None:
        if self._live[index]:
            self._live[index] = False
            log.warning("%s is lost: %s", self.members[index].name, loss)
            task = asyncio.create_task(self._revive(index, loss))
            self._reviving.add(task)
            task.add_done_callback(self._reviving.discard)

    async def _revive(self, index: int, loss: ActorLost) -> None:
        member = self.members[index]
        try:
            await member.revive(loss)
        except Exception as e:      # whatever it is, those who wait for a place must hear of it
            self._broken = e
            for _, place in self._waiting:
                if not place.done():
                    place.set_exception(e)
            self._waiting.clear()
            return
        self._live[index] = True
        self.restarts += 1
        log.warning("%s is back", member.name)
        self._serve()
