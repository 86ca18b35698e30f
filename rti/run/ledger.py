"""The ledger: which groups were consumed by which step (invariants 5, 6 and 8). One line of ledger.jsonl an entry.

A group has at most one consuming entry (trained or no_signal), ever, and none follows it, except that one that may be used
again (buffer.reuse) has one a use; a voided group comes back and is consumed later, unless it is dropped; one that is passed
over does not come back.
Resume goes by this ledger, never by a count (field bug 28).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Iterable, NamedTuple

import msgspec

from rti.run.files import RecordError, read_lines
from rti.trajectory import Group

TRAINED = "trained"         # took part in the step's update
NO_SIGNAL = "no_signal"     # all rewards equal: consumed, but nothing to learn from
VOIDED = "voided"           # not consumed: too old; run again under the same id
DROPPED = "dropped"         # voided too often: not run again
PASSED = "passed"           # not consumed: it teaches nothing, and the step took another instead (algo.dynamic_sampling)
DISPOSITIONS = (TRAINED, NO_SIGNAL, VOIDED, DROPPED, PASSED)


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one group at one step. `step` of a group that was not consumed is the step that would have."""

    step: int
    group_id: str
    task_id: str
    task_class: str = ""
    disposition: str
    learner_version: int            # of the weights that the step began with
    oldest_version: int             # of any trained token in the group
    staleness: int                  # learner_version - oldest_version
    rewards: list[float] = []       # of the members as consumed
    rewards_before: list[float] = []    # outcomes of the plain rollouts
    replaced: int | None = None     # the member that a rescued rollout took the place of
    attempts: int = 0               # intervened rollouts run, the one taken included
    tokens: int = 0                 # agent tokens of the members
    ids: list[str] = []             # the members, in order
    use: int = 1                    # which consumption of the group this is; above 1 only with buffer.reuse
    reason: str = ""                # of voided, dropped and passed: why

    @property
    def consumed(self) -> bool:
        return self.disposition in (TRAINED, NO_SIGNAL)

    @property
    def failed(self) -> bool:
        """Every plain rollout failed: what triggers the intervention."""
        return bool(self.rewards_before) and not any(self.rewards_before)


class Numbered(NamedTuple):
    line: int
    entry: LedgerEntry


def entry_for(group: Group, *, step: int, learner_version: int, trained: bool | None = None, use: int = 1) -> LedgerEntry:
    """The entry of a group that `step` consumes. `trained` is the algorithm's word; by default that its rewards differ."""
    trained = group.teaches if trained is None else trained
    return LedgerEntry(
        step=step, group_id=group.id, task_id=group.task_id, task_class=group.task_class,
        disposition=TRAINED if trained else NO_SIGNAL,
        learner_version=learner_version, oldest_version=group.oldest_version, staleness=learner_version - group.oldest_version,
        rewards=[m.reward for m in group.members], rewards_before=list(group.rewards_before), replaced=group.replaced,
        attempts=len(group.attempts) + (group.replaced is not None), tokens=sum(m.n_agent_tokens for m in group.members),
        ids=[m.id for m in group.members], use=use,
    )


def voided(group_id: str, task_id: str, *, step: int, learner_version: int, oldest_version: int, reason: str,
           disposition: str = VOIDED, task_class: str = "") -> LedgerEntry:
    """The entry of a group that is thrown away before `step`, perhaps before it was whole; `reason` is short, for people."""
    return LedgerEntry(
        step=step, group_id=group_id, task_id=task_id, task_class=task_class, disposition=disposition,
        learner_version=learner_version, oldest_version=oldest_version, staleness=learner_version - oldest_version,
        reason=reason)


def read_ledger(path: Path) -> list[Numbered]:
    """Every whole entry of a ledger.jsonl with its line. Raises RecordError, naming the line."""
    entries = []
    for number, value in read_lines(path).lines:
        try:
            entries.append(Numbered(number, msgspec.convert(value, LedgerEntry)))
        except msgspec.ValidationError as e:
            raise RecordError(f"{path}:{number}: not a ledger entry: {e}") from e
    return entries


class Totals(NamedTuple):
    """Counts over the groups of a run or a step, at their first use. `failed`, `rescued` and `intervened` are of the consumed
    ones."""

    consumed: int
    trained: int
    no_signal: int
    voided: int         # dropped ones included
    passed: int
    failed: int
    rescued: int
    intervened: int     # intervened rollouts
    reused: int         # consumed once more; in no other count


def totals(entries: Iterable[LedgerEntry]) -> Totals:
    entries = list(entries)
    first = [e for e in entries if e.use == 1]
    kinds = Counter(e.disposition for e in first)
    consumed = [e for e in first if e.consumed]
    return Totals(
        consumed=len(consumed), trained=kinds[TRAINED], no_signal=kinds[NO_SIGNAL], voided=kinds[VOIDED] + kinds[DROPPED],
        passed=kinds[PASSED],
        failed=sum(e.failed for e in consumed), rescued=sum(e.replaced is not None for e in consumed),
        intervened=sum(e.attempts for e in consumed), reused=len(entries) - len(first),
    )
