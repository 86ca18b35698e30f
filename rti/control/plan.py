"""The plan of a run: which groups were admitted, are ready, are in a step, were consumed. A pure state machine.

Keeps invariant 5 (a group is consumed by one step, or by as many as its allowance says; resume goes by which groups were
consumed, not by how many), invariant 6 (see admission.py; `sweep` before every step) and invariant 7 (tickets and their order
depend on the seed alone).

    admit -> RUNNING -> ready -> READY -> lease -> LEASED -> commit -> SPENT -> published -> gone
                  \\________________\\____ sweep: voided, admitted anew (or dropped after `max_voids` times)
                                    \\____ pass_over: it teaches nothing, and the step takes another (dynamic sampling)

A group with an allowance above one is kept when it is consumed, and each following step takes it once more, on top of its own
groups, until the allowance is used up or it is too old (`expire`). It holds no slot: it neither displaces a group nor ages one.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

from rti.control import admission
from rti.control.order import TaskOrder, Ticket
from rti.control.store import Facts


class Phase(enum.StrEnum):
    RUNNING = "running"     # its episodes are under way
    READY = "ready"         # in the buffer
    LEASED = "leased"       # the learner is at it
    SPENT = "spent"         # consumed; its step's weights are not published yet


@dataclass
class Entry:
    """A group that holds a slot."""

    ticket: Ticket
    admitted_version: int
    phase: Phase = Phase.RUNNING
    oldest_version: int | None = None   # of any token; known when it is ready
    idle: str = ""                     # why it teaches nothing; known when it is ready
    uses: int = 1                       # how many steps may consume it; known when it is ready

    @property
    def age_version(self) -> int:
        """The version that its staleness is reckoned from: until its tokens are known, the one it was admitted at."""
        return self.admitted_version if self.oldest_version is None else self.oldest_version


class Kept(NamedTuple):
    """A group that was consumed and may be used again."""

    ticket: Ticket
    oldest_version: int
    uses: int
    used: int


class Voided(NamedTuple):
    """A group that the sweep took out. `dropped`: it is not admitted anew."""

    ticket: Ticket
    was_ready: bool
    age_version: int
    dropped: bool


class PlanError(RuntimeError):
    """A call that the state machine does not allow: a bug of the caller's."""


class Plan:
    """See the module's docstring. All times are versions and steps; there is no clock here."""

    def __init__(self, order: TaskOrder, *, groups_per_step: int, max_staleness: int, steps: int, max_voids: int = 3,
                 max_passed: int = 0):
        admission.slots(groups_per_step, max_staleness)     # refuses bad numbers
        self.order = order
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self.steps = steps
        self.max_voids = max_voids
        self.max_passed = max_passed    # groups that one step may pass over
        self.step = 0                   # steps taken
        self.version = 0                # the learner's
        self.published_version = 0      # the generators'
        self._entries: dict[int, Entry] = {}
        self._done: set[int] = set()    # ordinals at or above the frontier that were consumed or dropped
        self._frontier = 0              # every ordinal below it was consumed or dropped
        self._dropped: list[int] = []
        self._passed: list[int] = []        # passed over by steps that were taken
        self._passing: set[int] = set()     # by the step under way: forgotten where it is not taken
        self._voids: dict[int, int] = {}
        self._again: list[int] = []     # heap of voided ordinals
        self._next = 0                  # the first ordinal never admitted
        self._kept: dict[int, Kept] = {}        # ordinal -> a group that was consumed and may be used again
        self._kept_before: dict[int, int] = {}  # the same at the checkpoint that was restored: how often each was used

    # --- questions -----------------------------------------------------------------------------------------------
    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    @property
    def charged(self) -> int:
        return len(self._entries)

    @property
    def room(self) -> int:
        waiting = sum(1 for e in self._entries.values() if e.phase is not Phase.SPENT)
        return admission.room(charged=self.charged, waiting=waiting, steps_left=self.steps - self.step,
                              groups_per_step=self.groups_per_step, max_staleness=self.max_staleness)

    def entries(self, phase: Phase) -> list[Entry]:
        """In plan order."""
        return sorted((e for e in self._entries.values() if e.phase is phase), key=lambda e: e.ticket)

    def count(self, phase: Phase) -> int:
        return sum(1 for e in self._entries.values() if e.phase is phase)

    @property
    def again(self) -> list[Kept]:
        """The groups of earlier steps that the next step, or the one under way, consumes once more; in plan order."""
        return [self._kept[ordinal] for ordinal in sorted(self._kept)]

    # --- the way of a group --------------------------------------------------------------------------------------
    def admit(self) -> list[Entry]:
        """Admit all that there is room for, voided groups first."""
        admitted = []
        for _ in range(self.room):
            ordinal = heapq.heappop(self._again) if self._again else self._unseen()
            ticket = self.order.ticket(ordinal, self._voids.get(ordinal, 0))
            self._entries[ordinal] = entry = Entry(ticket, self.published_version)
            admitted.append(entry)
        return admitted

    def _unseen(self) -> int:
        self._next = max(self._next, self._frontier)
        while self._next in self._done or self._next in self._entries or self._next in self._passing:
            self._next += 1
        self._next += 1
        return self._next - 1

    def ready(self, ticket: Ticket, oldest_version: int, idle: str = "", uses: int = 1) -> bool:
        """The group is whole and in the buffer. False where it was voided meanwhile: the caller discards it."""
        entry = self._entries.get(ticket.ordinal)
        if entry is None or entry.ticket != ticket:
            return False
        if entry.phase is not Phase.RUNNING:
            raise PlanError(f"group {ticket.group_id} is {entry.phase}, and became ready once more")
        entry.phase, entry.oldest_version, entry.idle, entry.uses = Phase.READY, oldest_version, idle, uses
        return True

    def adopt(self, held: Sequence[Facts]) -> list[str]:
        """Take over the whole groups that the buffer held before a resume. Returns those that there is no use for.

        Only groups that would be admitted now are taken: one from further on would hold a slot of a group before it, and a
        synchronous run would then consume them in another order (invariant 7). One that was consumed and kept is taken where
        checkpoint and buffer agree on how often it was used.
        """
        upcoming = set(self._upcoming(self.room))
        known: dict[int, Facts] = {}
        for facts in held:
            try:
                known[self.order.ordinal(facts.group_id)] = facts
            except ValueError:
                continue        # of another run or task set
        taken = {known[ordinal].group_id for ordinal in sorted(known)
                 if (ordinal in upcoming and self._adopt(ordinal, known[ordinal])
                     or ordinal in self._kept_before and self._keep_on(ordinal, known[ordinal]))}
        return [facts.group_id for facts in held if facts.group_id not in taken]

    def _upcoming(self, count: int) -> list[int]:
        """The first ordinals that neither hold a slot nor are done with."""
        held = self._entries.keys() | self._passing
        free = (o for o in itertools.count(self._frontier) if o not in self._done and o not in held)
        return list(itertools.islice(free, count))

    def _adopt(self, ordinal: int, facts: Facts) -> bool:
        if admission.too_old(learner_version=self.version, oldest_version=facts.oldest_version,
                             max_staleness=self.max_staleness):
            return False
        ticket = self.order.ticket(ordinal, self._voids.get(ordinal, 0))
        self._again = [o for o in self._again if o != ordinal]
        heapq.heapify(self._again)
        self._entries[ordinal] = Entry(ticket, facts.admitted_version, Phase.READY, facts.oldest_version, facts.idle,
                                       facts.uses)
        return True

    def _keep_on(self, ordinal: int, facts: Facts) -> bool:
        kept = Kept(self.order.ticket(ordinal), facts.oldest_version, facts.uses, facts.used)
        if kept.used != self._kept_before[ordinal] or kept.used >= kept.uses or self._expired(kept):
            return False
        self._kept[ordinal] = kept
        return True

    def expire(self) -> list[str]:
        """Let go of kept groups that no step can use any more: they are too old, or there is no step left. Their ids."""
        if self.count(Phase.LEASED):
            raise PlanError("a step is under way, and consumes them")
        gone = [kept for kept in self.again if self._expired(kept)]
        for kept in gone:
            del self._kept[kept.ticket.ordinal]
        return [kept.ticket.group_id for kept in gone]

    def _expired(self, kept: Kept) -> bool:
        return self.finished or admission.too_old(learner_version=self.version, oldest_version=kept.oldest_version,
                                                  max_staleness=self.max_staleness)

    def pass_over(self) -> list[Entry]:
        """Dynamic sampling: take out groups that teach nothing, so that others can take their slots; at most `max_passed` a
        step, the first ones in plan order.

        Which ones go does not depend on the order in which they became ready (invariant 7): a group goes as soon as it is sure
        that fewer than `max_passed` before it will. Until then it waits; with the bound reached, the step consumes the rest.
        """
        gone: list[Entry] = []
        before = 0      # groups before this one that went, may still go, or are not known yet
        for ordinal in sorted(self._entries.keys() | self._passing):
            if ordinal in self._passing:
                before += 1
                continue
            entry = self._entries[ordinal]
            if entry.phase is Phase.READY and entry.idle and max(before, len(self._passing)) < self.max_passed:
                del self._entries[ordinal]
                self._passing.add(ordinal)
                gone.append(entry)
            before += entry.phase is Phase.RUNNING or bool(entry.idle)
        return gone

    def sweep(self) -> list[Voided]:
        """Void the groups that the step taken now could not consume. Frees their slots."""
        voided = []
        for entry in self.entries(Phase.RUNNING) + self.entries(Phase.READY):
            if not admission.too_old(learner_version=self.version, oldest_version=entry.age_version,
                                     max_staleness=self.max_staleness):
                continue
            ordinal = entry.ticket.ordinal
            del self._entries[ordinal]
            self._voids[ordinal] = self._voids.get(ordinal, 0) + 1
            dropped = self._voids[ordinal] > self.max_voids
            if dropped:
                self._dropped.append(ordinal)
                self._finish(ordinal)
            else:
                heapq.heappush(self._again, ordinal)
            voided.append(Voided(entry.ticket, entry.phase is Phase.READY, entry.age_version, dropped))
        return voided

    def lease(self) -> list[Ticket] | None:
        """The groups of the next step in plan order, oldest versions chosen first; None where too few are ready. Those that
        `again` lists come on top of them."""
        if self.count(Phase.LEASED):
            raise PlanError(f"step {self.step + 1} is under way")
        ready = [e for e in self.entries(Phase.READY) if not e.idle or len(self._passing) >= self.max_passed]
        if len(ready) < self.groups_per_step:
            return None
        chosen = sorted(ready, key=lambda e: (e.age_version, e.ticket))[:self.groups_per_step]
        for ticket, version in [(e.ticket, e.age_version) for e in chosen] + [(k.ticket, k.oldest_version) for k in self.again]:
            if admission.too_old(learner_version=self.version, oldest_version=version, max_staleness=self.max_staleness):
                raise PlanError(f"group {ticket.group_id} of version {version} is too old for a step at {self.version}: sweep "
                                "and expire before a step")
        for entry in chosen:
            entry.phase = Phase.LEASED
        return sorted(entry.ticket for entry in chosen)

    def release(self) -> None:
        """The step under way is not taken: what it leased is ready again."""
        for entry in self.entries(Phase.LEASED):
            entry.phase = Phase.READY

    def commit(self, version: int) -> None:
        """The step consumed what it leased; the learner is at `version` now (the same where nothing taught)."""
        leased = self.entries(Phase.LEASED)
        if not leased:
            raise PlanError("there is no step to commit")
        if version < self.version:
            raise PlanError(f"the learner went back from version {self.version} to {version}")
        used = [kept._replace(used=kept.used + 1) for kept in self.again]
        used += [Kept(entry.ticket, entry.age_version, entry.uses, 1) for entry in leased]
        self._kept = {kept.ticket.ordinal: kept for kept in used if kept.used < kept.uses}
        for entry in leased:
            entry.phase = Phase.SPENT
            self._finish(entry.ticket.ordinal)
        for ordinal in sorted(self._passing):
            self._passed.append(ordinal)
            self._finish(ordinal)
        self._passing.clear()
        self.step += 1
        self.version = version

    def published(self) -> None:
        """The generators serve the learner's version: the slots of what it consumed are free."""
        self.published_version = self.version
        for entry in self.entries(Phase.SPENT):
            del self._entries[entry.ticket.ordinal]

    def _finish(self, ordinal: int) -> None:
        self._done.add(ordinal)
        self._voids.pop(ordinal, None)
        while self._frontier in self._done:
            self._done.remove(self._frontier)
            self._frontier += 1

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps. Groups under way are not in it: they run again, unless the buffer still has them."""
        if self.count(Phase.LEASED):
            raise PlanError("a checkpoint is taken between steps")
        return {"step": self.step, "version": self.version, "n_tasks": self.order.n_tasks, "frontier": self._frontier,
                "done_beyond": sorted(self._done), "dropped": list(self._dropped),
                "passed": list(self._passed), "kept": [[o, self._kept[o].used] for o in sorted(self._kept)],
                "voids": [[o, n] for o, n in sorted(self._voids.items())]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to the state of a checkpoint. Nothing is under way afterwards."""
        if state["n_tasks"] != self.order.n_tasks:
            raise ValueError(f"the checkpoint was made with {state['n_tasks']} training tasks, now there are "
                             f"{self.order.n_tasks}: resume with the same task set")
        self._entries.clear()
        self.step, self.version = state["step"], state["version"]
        self.published_version = self.version
        self._frontier = self._next = state["frontier"]
        self._done = set(state["done_beyond"])
        self._dropped = list(state["dropped"])
        self._passed = list(state.get("passed", ()))    # checkpoints of before there was dynamic sampling have none
        self._passing.clear()
        self._kept.clear()
        self._kept_before = {ordinal: used for ordinal, used in state.get("kept", ())}
        self._voids = {ordinal: n for ordinal, n in state["voids"]}
        self._again = []

    def consumed_ids(self) -> list[str]:
        """The groups that steps consumed, in plan order."""
        others = {*self._dropped, *self._passed}
        return [self.order.ticket(o).group_id for o in (*range(self._frontier), *sorted(self._done)) if o not in others]

    @property
    def dropped(self) -> Sequence[int]:
        return tuple(self._dropped)
