"""How long the parts of a step took, what the generators did meanwhile, and how much memory the run takes. Knows no Ray.

Only keys under time/, system/, endpoint/ and rollouts/lost_* come from here and depend on the clock, a service or on what died:
everything else that is logged is a function of the groups, so that a resumed run logs the same (invariant 7).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Sequence

from rti.actors.fleet import Work
from rti.trajectory import Ending, Group

if TYPE_CHECKING:
    from rti.actors.controller import Actors
    from rti.actors.episodes import EpisodeRunner


class Meter:
    """One step after the other: `begin` once, `time` for each part, `close` at the end of each step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, memory: Callable[[], float] = lambda: 0.0):
        self._clock, self._memory = clock, memory
        self._spent: Counter[str] = Counter()
        self._began = clock()
        self._restarts = 0
        self.peak_gb = 0.0

    def begin(self, work: Work) -> None:
        """The first step begins now. `work` is what the generators did before, which is nobody's."""
        self._spent.clear()
        self._began = self._clock()

    @contextmanager
    def time(self, key: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._spent[key] += self._clock() - began

    async def watch(self, every_s: float = 2.0) -> None:
        """Follow the memory in the background."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(every_s)

    def _look(self) -> None:
        self.peak_gb = max(self.peak_gb, self._memory())

    async def close(self, actors: Actors, episodes: EpisodeRunner, groups: Sequence[Group],
                    trained_tokens: float) -> dict[str, float]:
        """The metrics of the step that ends now. `trained_tokens` is the learner's word."""
        work, buffer = await actors.generators.work(), await actors.buffer.stats()
        asked = await actors.workers.usage()
        asked.merge((await actors.interveners.usage()).take())
        await asyncio.to_thread(self._look)
        now = self._clock()
        step_s, self._began = now - self._began, now
        spent, self._spent = self._spent, Counter()
        lost, episodes.lost = episodes.lost, Counter()
        restarts, self._restarts = actors.restarts - self._restarts, actors.restarts
        busy = work.busy_s / work.count
        out = {f"time/{k}": spent[k] for k in ("rollout_s", "learner_s", "publish_s", "checkpoint_s", "evaluation_s")}
        return out | {
            "time/step_s": step_s,
            "time/generator_tokens_per_s": work.sampled / busy if busy else 0.0,
            "time/scored_tokens_per_s": work.scored / busy if busy else 0.0,
            "time/learner_tokens_per_s": trained_tokens / spent["learner_s"] if spent["learner_s"] else 0.0,
            "time/generator_idle_share": _idle(busy, step_s), "time/learner_idle_share": _idle(spent["learner_s"], step_s),
            "system/buffer_groups": buffer["groups"], "system/buffer_mb": buffer["memory_bytes"] / 1e6,
            "system/buffer_spilled": buffer["groups"] - buffer["in_memory"],
            "system/env_workers": actors.workers.alive, "system/interveners": actors.interveners.alive,
            "system/generators": actors.generators.size, "system/restarts": restarts, "system/peak_gb": self.peak_gb,
            "rollouts/plain": sum(len(g.rewards_before) for g in groups),
            "rollouts/lost_environment": lost[Ending.ENVIRONMENT],
            "rollouts/lost_infrastructure": lost[Ending.INFRASTRUCTURE],
            **{f"endpoint/{field}/{role}": getattr(usage, field) for role, usage in sorted(asked.take().items())
               for field in usage.__struct_fields__},
        }


def _idle(busy_s: float, step_s: float) -> float:
    return min(1.0, max(0.0, 1.0 - busy_s / step_s)) if step_s > 0 else 0.0


def tree_gb(root: int | None = None) -> float:
    """Memory of a process and all below it: proportional set sizes, so that shared pages count once. 0 where there is no
    /proc."""
    proc = Path("/proc")
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue        # it ended meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    total, todo = 0, [root or os.getpid()]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, ())
        total += _pss_kb(proc / str(pid) / "smaps_rollup")
    return total * 1024 / 1e9


def _pss_kb(path: Path) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass        # it ended meanwhile, or belongs to somebody else
    return 0
