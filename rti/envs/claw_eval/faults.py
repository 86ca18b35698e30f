"""Injected faults: which call fails and how, by plan and by chance. Pure; the random stream is given.

No fault takes time: a slow answer says how slow it was. A chance fault never changes what a call did: it comes before the
call's effect, or only adds to what is told. A planned one may also lose the reply of a call that took effect.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal, Sequence

import msgspec

Kind = Literal["error", "rate_limit", "lost_reply", "stale", "slow"]

STATUS: dict[str, int] = {"error": 500, "rate_limit": 429, "lost_reply": 504}
TOLD: dict[str, str] = {
    "error": "internal error; nothing was done",
    "rate_limit": "too many requests; nothing was done; try again",
    "lost_reply": "timed out while waiting for the service; it is not known whether this was done",
}
SHARES: tuple[tuple[Kind, float], ...] = (("rate_limit", 0.35), ("error", 0.35), ("slow", 0.2), ("stale", 0.1))
"""How chance faults are shared out; what is left when a kind does not apply (a stale write) is slow."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The `nth` call (from 0) of a tool goes wrong in this way."""

    tool: str
    kind: Kind
    nth: int = 0


class Faults:
    """Decides for each call in turn. `rate`: share of the other calls that get a chance fault."""

    def __init__(self, plan: Sequence[Fault] = (), rate: float = 0.0, seed: int = 0) -> None:
        self._plan = {(f.tool, f.nth): f.kind for f in plan}
        self._rate, self._random, self._made = rate, random.Random(seed), Counter()

    def next(self, tool: str, writes: bool) -> Kind | None:
        nth, self._made[tool] = self._made[tool], self._made[tool] + 1
        drawn, which = self._random.random(), self._random.random()     # both always, so that a plan shifts nothing
        if (tool, nth) in self._plan:
            return self._plan[tool, nth]
        if drawn >= self._rate:
            return None
        for kind, share in SHARES:
            which -= share
            if which < 0:
                return "slow" if kind == "stale" and writes else kind
        return "slow"

    def latency_ms(self) -> int:
        return self._random.randrange(2000, 9000)
