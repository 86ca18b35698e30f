"""Orders to trajectories, whatever is lost on the way. Between the controller and the pools; knows no Ray.

Keeps invariant 5's second half: a lost episode is run again under the same seed, elsewhere where there is an elsewhere, and is
counted once. The bound on running again is `rollout.retries` an episode.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from rti.actors.messages import Order
from rti.control.faults import ActorFailed, ActorLost
from rti.control.retry import RetryBook, use_of
from rti.trajectory import Ending, Trajectory, decode


class Runs(Protocol):
    """A pool of actors that run episodes."""

    async def run(self, order: Order) -> list[bytes]: ...


class EpisodeRunner:
    """Carries out orders in full. `lost` counts the episodes that were lost, by ending, since it was last cleared."""

    def __init__(self, retries: int, first_pause_s: float = 0.5, longest_pause_s: float = 30.0):
        self._retries = retries
        self._pauses = (first_pause_s, longest_pause_s)
        self.lost: Counter[Ending] = Counter()

    async def run(self, pool: Runs, order: Order) -> list[Trajectory]:
        """The trajectories of an order in member order. Raises RetriesExhausted, or what ends the run."""
        kind = "intervened group" if order.intervened else "group"
        book = RetryBook(self._retries, f"{kind} {order.group_id} (task {order.task_id})")
        done: dict[str, Trajectory] = {}
        ids = dict(zip(order.ids(), order.members))
        while missing := {m for id, m in ids.items() if id not in done}:
            losses = book.total
            try:
                answer = [decode(data, Trajectory) for data in await pool.run(order.only(missing))]
                if sorted(t.id for t in answer) != sorted(order.only(missing).ids()):
                    raise ActorFailed(f"an order for {order.only(missing).ids()} was answered with {[t.id for t in answer]}")
                for trajectory in answer:
                    if use_of(trajectory.ending).again:
                        self._lose(book, {ids[trajectory.id]}, trajectory.ending, str(trajectory.info.get("fault", "")))
                    else:
                        done[trajectory.id] = trajectory
            except ActorLost as loss:
                self._lose(book, missing, Ending.INFRASTRUCTURE, str(loss))
            if book.total > losses:
                await self._pause(book.total)
        return [done[id] for id in ids]

    def _lose(self, book: RetryBook, members: set[int], ending: Ending, reason: str) -> None:
        self.lost[ending] += len(members)
        book.lost(sorted(members), reason or ending)

    async def _pause(self, losses: int) -> None:
        """What failed a moment ago would fail again at once: wait, longer each time."""
        first, longest = self._pauses
        await asyncio.sleep(min(longest, first * 2 ** min(losses - 1, 16)))
