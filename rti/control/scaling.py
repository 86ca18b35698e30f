"""How many members a pool should have. Pure: whoever asks says what time it is and what there is to do.

Keeps: never outside the bounds; grows at once by what the work needs; shrinks only to the most that was needed at any time
within the last `idle_s`, so that a pool whose work comes in waves does not end members in every trough.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Bounds(NamedTuple):
    """How many members a pool may have. `idle_s`: for how long fewer must have been enough before one leaves."""

    least: int
    most: int
    idle_s: float = 60.0

    def clip(self, count: int) -> int:
        return max(self.least, min(count, self.most))


def needed(demand: int, capacity: int) -> int:
    """Members that carry out `demand` at once (under way and waiting), each of them `capacity` of it."""
    if capacity < 1:
        raise ValueError(f"a member's capacity is {capacity}; it must carry out at least one thing at once")
    return -(-demand // capacity)


class Scaler:
    """The most that was needed lately: a sliding maximum, of which only the falling part is kept."""

    def __init__(self) -> None:
        self._falling: deque[tuple[float, int]] = deque()   # (last time at which so many were needed, how many)
        self._last = 0

    def want(self, now: float, need: int, bounds: Bounds) -> int:
        """How many members there should be at `now`, where `need` of them have something to do from now on."""
        self._push(now, self._last)     # what was needed until this moment
        self._push(now, need)
        self._last = need
        while self._falling[0][0] < now - bounds.idle_s:
            self._falling.popleft()
        return bounds.clip(self._falling[0][1])

    def _push(self, now: float, need: int) -> None:
        while self._falling and self._falling[-1][1] <= need:
            self._falling.pop()
        self._falling.append((now, need))
