"""What must hold after every event, at the end of every step, and when a run is finished. Written apart from what it checks.

The numbers are reckoned here once more from the issue's words (slots, staleness), so that a fault of rti.control.admission is
found as well.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Collection

from rti.control.plan import Phase
from rti.learner.checkpoint import newest_whole, step_of
from rti.run.audit import RUN_CHECKS
from rti.run.directory import LEDGER, METRICS
from rti.run.files import read_lines
from rti.run.findings import Findings, Records
from rti.run.ledger import read_ledger

if TYPE_CHECKING:
    from rti.actors.controller import Controller
    from rti.config.schema import Config
    from rti.simulation.actors import Learner


class Violation(AssertionError):
    """An invariant does not hold."""


class Watch:
    """Looks at one controller after every event."""

    def __init__(self, controller: Controller, learner: Learner):
        self._plan, self._learner = controller.plan, learner
        self._bound = (self._plan.max_staleness + 1) * self._plan.groups_per_step
        self._last = (0, 0, 0)
        self._starts = 0

    def look(self, live: Collection[str] | None) -> None:
        """`live`: the groups that the buffer holds; None while its process is not there."""
        plan = self._plan
        now = (plan.step, plan.version, plan.published_version)
        if now != self._last:
            if any(a < b for a, b in zip(now, self._last)):
                if self._learner.starts == self._starts:
                    raise Violation(f"step, version and published version went from {self._last} to {now} without a resume")
                self._starts = self._learner.starts
            self._last = now
        if plan.published_version > plan.version:
            raise Violation(f"version {plan.published_version} is published and the learner is at {plan.version}")
        entries = plan._entries
        if len(entries) > self._bound:
            raise Violation(f"{len(entries)} slots are charged, and there are {self._bound}")
        for entry in entries.values():
            if entry.phase is Phase.LEASED and plan.version - entry.age_version > plan.max_staleness:
                raise Violation(f"group {entry.ticket.group_id} of version {entry.age_version} is in a step at {plan.version}")
            if live is not None and entry.phase is Phase.READY and entry.ticket.group_id not in live:
                raise Violation(f"group {entry.ticket.group_id} is ready, and not in the buffer")
        for kept in plan._kept.values():
            if not 1 <= kept.used < kept.uses:
                raise Violation(f"group {kept.ticket.group_id} was used {kept.used} times of {kept.uses}, and is kept")

    def served(self, version: int) -> None:
        """A token was sampled under these weights."""
        if version < self._plan.published_version:
            raise Violation(f"version {version} is served after version {self._plan.published_version} was published")

    def step_end(self, live: Collection[str] | None) -> None:
        """Between steps the buffer holds what the plan says, and what is on its way into it."""
        if live is None:
            return
        kept = {k.ticket.group_id for k in self._plan._kept.values()}
        known = {e.ticket.group_id for e in self._plan._entries.values()} | kept
        if odd := sorted(set(live) - known):
            raise Violation(f"the buffer holds {odd}, of which the plan knows nothing")
        if odd := sorted(kept - set(live)):
            raise Violation(f"{odd} are to be used again, and not in the buffer")


def at_most_lost(step: int, checkpoints: Path, every: int) -> None:
    """A step was written down: were everything killed now, no more than `every` steps would be lost."""
    newest = newest_whole(checkpoints, lambda _: None)
    whole = step_of(newest) if newest is not None else 0
    if every and step - whole > every:
        raise Violation(f"step {step} is made, the newest whole checkpoint is of step {whole}, and checkpoint.every is {every}")


def at_the_end(controller: Controller, config: Config, path: Path, live: Collection[str], processes: Collection[str]) -> None:
    """A finished run: nothing is under way, nothing was lost, nothing doubled, and the audit finds nothing. `processes`: the
    actors that there are."""
    plan = controller.plan
    ledger = read_ledger(path / LEDGER)
    consumed = [n.entry.group_id for n in ledger if n.entry.consumed and n.entry.use == 1]
    if twice := [g for g, n in Counter(consumed).items() if n > 1]:
        raise Violation(f"consumed twice: {twice}")
    uses = Counter(n.entry.group_id for n in ledger if n.entry.consumed and n.entry.replaced is not None)
    if often := [g for g, n in uses.items() if n > config.buffer.reuse]:
        raise Violation(f"consumed more than {config.buffer.reuse} times: {often}")
    if set(consumed) != set(plan.consumed_ids()):
        raise Violation(f"ledger and plan differ in {sorted(set(consumed) ^ set(plan.consumed_ids()))}")
    if len(consumed) != config.steps * config.rollout.groups_per_step:
        raise Violation(f"{len(consumed)} groups were consumed by {config.steps} steps of {config.rollout.groups_per_step}")
    if plan._entries or live:
        raise Violation(f"at the end {len(plan._entries)} slots are charged and the buffer holds {list(live)}")
    if plan._done:
        raise Violation(f"groups were passed over: the frontier is {plan._frontier}, beyond it {sorted(plan._done)} are done")
    for pool in (controller._actors.workers, controller._actors.interveners):
        if pool.demand:
            raise Violation(f"a pool still counts work: {pool.demand}")
    _nobody_forgotten(controller, processes)
    records = Records(path, config, read_lines(path / METRICS).lines, ledger, None, "", [], [])
    for check in RUN_CHECKS:
        if check.name == "no-secrets":
            continue
        findings = Findings()
        check.run(records, findings)
        if findings.breaches:
            raise Violation(f"audit, {check.name}: {findings.breaches[0]}")


def _nobody_forgotten(controller: Controller, processes: Collection[str]) -> None:
    """Every process is a member of a pool or on its way into one: who left was ended, who is counted is there."""
    actors = controller._actors
    members = [m.name for crew in (actors.workers, actors.interveners, actors.generators) for m in crew.members]
    coming = [m.name for keeper in actors.keepers for m in keeper._coming]
    if odd := set(processes) ^ {"replay-buffer", *members, *coming}:
        raise Violation(f"there are processes that nobody counts, or none where one is counted: {sorted(odd)}")
