"""A pool of actors that carry out orders: least loaded first, waiting in line where all are busy. Knows no Ray.

A member that is lost gets no orders until it is back; whoever gave it an order gets the loss as an error and decides. One that
never comes back is dropped, and the others go on. Members join and leave while orders run: one that leaves takes no more of
them, and ends with its last. Orders wait first come, first served, so that none starves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Coroutine, Generic, Protocol, Sequence, TypeVar

from rti.actors.messages import Order
from rti.control.concurrency import all_of
from rti.control.faults import ActorGone, ActorLost
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

    def end(self) -> None:
        """End the actor for good, whether it is there or not: its resources are free."""
        ...


M = TypeVar("M", bound=Member)


class _Seat(Generic[M]):
    """A member and what the pool knows of it."""

    def __init__(self, member: M):
        self.member = member
        self.load = 0
        self.live, self.leaving = True, False
        self.reviving: asyncio.Task[None] | None = None

    def takes(self, cost: int) -> bool:
        """An order larger than a member's capacity goes to an idle one, which then works through it."""
        return self.live and not self.leaving and (self.load + cost <= self.member.capacity or self.load == 0)


class Pool(Generic[M]):
    """See the module's docstring. `restarts` counts the members that came back, `gone` those that did not, `done` the orders
    that were carried out. `kept`: somebody (rti.actors.keeper) replaces members that are gone, so that orders wait for them."""

    def __init__(self, members: Sequence[M]):
        if not members:
            raise ValueError("a pool needs at least one member")
        self._seats = [_Seat(member) for member in members]
        self._waiting: deque[tuple[int, asyncio.Future[_Seat[M]]]] = deque()
        self._tasks: dict[asyncio.Task[None], None] = {}    # the oldest first, so that they end in one order
        self._broken: BaseException | None = None
        self._used = UsageBook()        # by members that left
        self.restarts = self.gone = self.done = 0
        self.last_gone: ActorGone | None = None
        self.kept = False

    @property
    def members(self) -> list[M]:
        return [seat.member for seat in self._seats]

    @property
    def alive(self) -> int:
        return sum(seat.live for seat in self._seats)

    @property
    def size(self) -> int:
        """Members that are there or coming back. Those that leave are not counted."""
        return sum(not seat.leaving for seat in self._seats)

    @property
    def demand(self) -> int:
        """Episodes under way and waiting."""
        return sum(seat.load for seat in self._seats) + sum(cost for cost, place in self._waiting if not place.done())

    async def run(self, order: Order) -> list[bytes]:
        seat = await self._acquire(order.cost)
        try:
            answer = await seat.member.run(order)
            self.done += 1
            return answer
        except ActorLost as loss:
            self._lose(seat, loss)
            raise
        finally:
            self._free(seat, order.cost)

    async def usage(self) -> UsageBook:
        """What all members asked of endpoints since the last call. What one asked before its death is not counted."""
        book, self._used = self._used, UsageBook()
        await all_of(self._ask_usage(seat, book) for seat in self._seats if seat.live)
        return book

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- joining and leaving -------------------------------------------------------------------------------------
    async def add(self, member: M) -> None:
        """A member that answers joins."""
        self._seats.append(_Seat(member))
        self._serve()

    def retire(self, count: int) -> None:
        """Have so many members leave: lost ones first, then the least loaded, of equals the newest. Returns at once."""
        staying = [(seat.live, seat.load / seat.member.capacity, -i) for i, seat in enumerate(self._seats) if not seat.leaving]
        for _, _, place in sorted(staying)[:count]:
            self._seats[-place].leaving = True
        for seat in [s for s in self._seats if s.leaving and not s.load]:
            self._part(seat)

    def _part(self, seat: _Seat[M]) -> None:
        """The member has nothing left to do here."""
        if seat in self._seats:
            self._seats.remove(seat)
            if seat.reviving is not None:
                seat.reviving.cancel()
            self._background(self._end(seat))

    async def _end(self, seat: _Seat[M]) -> None:
        try:
            if seat.live:
                self._used.merge(await seat.member.usage())
        except ActorLost as loss:
            log.debug("%s is lost as it leaves: %s", seat.member.name, loss)
        finally:
            seat.member.end()

    # --- places --------------------------------------------------------------------------------------------------
    async def _acquire(self, cost: int) -> _Seat[M]:
        if self._broken is not None:
            raise self._broken
        place: asyncio.Future[_Seat[M]] = asyncio.get_running_loop().create_future()
        self._waiting.append((cost, place))
        self._serve()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:    # placed, and cancelled in the same tick
                self._free(place.result(), cost)
            raise

    def _free(self, seat: _Seat[M], cost: int) -> None:
        seat.load -= cost
        if seat.leaving and not seat.load:
            self._part(seat)
        self._serve()

    def _serve(self) -> None:
        """Place the orders at the head of the line while there is room."""
        while self._waiting:
            cost, place = self._waiting[0]
            if place.done():        # cancelled while it waited
                self._waiting.popleft()
                continue
            free = [seat for seat in self._seats if seat.takes(cost)]
            if not free:
                return
            seat = min(free, key=lambda s: s.load / s.member.capacity)      # of equals the oldest
            self._waiting.popleft()
            seat.load += cost
            place.set_result(seat)

    # --- losses --------------------------------------------------------------------------------------------------
    async def _ask_usage(self, seat: _Seat[M], book: UsageBook) -> None:
        try:
            book.merge(await seat.member.usage())
        except ActorLost as loss:
            self._lose(seat, loss)

    def _lose(self, seat: _Seat[M], loss: ActorLost) -> None:
        if seat.live and seat in self._seats:
            seat.live = False
            log.warning("%s is lost: %s", seat.member.name, loss)
            seat.reviving = self._background(self._revive(seat, loss))

    async def _revive(self, seat: _Seat[M], loss: ActorLost) -> None:
        try:
            await seat.member.revive(loss)
        except ActorGone as gone:
            self._drop(seat, gone)
            return
        except Exception as e:      # whatever it is, those who wait for a place must hear of it
            self._break(e)
            return
        seat.live, seat.reviving = True, None
        self.restarts += 1
        log.warning("%s is back", seat.member.name)
        self._serve()

    def _drop(self, seat: _Seat[M], gone: ActorGone) -> None:
        """Go on without a member that does not come back; only the last one takes the pool with it."""
        seat.reviving = None
        self._seats.remove(seat)
        seat.member.end()       # it must not come back unbeknown, nor hold what its successor needs
        self.gone += 1
        self.last_gone = gone
        log.warning("%s is gone for good, %d others are there: %s", seat.member.name, len(self._seats), gone)
        if not self._seats and not self.kept:
            self._break(gone)

    def _break(self, error: BaseException) -> None:
        self._broken = error
        for _, place in self._waiting:
            if not place.done():
                place.set_exception(error)
        self._waiting.clear()

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task
