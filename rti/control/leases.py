"""Which groups are in the buffer, which a step has leased, which are gone. The buffer's logic without its bytes.

Keeps invariant 5: a group is put once, leased to one step at a time, and gone for good when that step commits. All calls are
idempotent, so that a caller whose answer was lost (the buffer died after it had written) simply asks again.
"""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence


class LeaseError(RuntimeError):
    """A call that would break invariant 5: a bug of the caller's, never something to survive."""


class LeaseTable:
    """Group ids only. A group is live (put, perhaps leased), consumed, or unknown."""

    def __init__(self) -> None:
        self._live: dict[str, int | None] = {}      # id -> the step that leases it
        self._consumed: dict[str, int] = {}         # id -> the step that consumed it

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._live

    @property
    def live(self) -> list[str]:
        return list(self._live)

    @property
    def consumed(self) -> dict[str, int]:
        return dict(self._consumed)

    def may_put(self, group_id: str) -> bool:
        return group_id not in self._live and group_id not in self._consumed

    def put(self, group_id: str) -> bool:
        """False where the group is there already, or was consumed: the second copy is dropped."""
        if not self.may_put(group_id):
            return False
        self._live[group_id] = None
        return True

    def lease(self, step: int, group_ids: Sequence[str]) -> None:
        if len(set(group_ids)) != len(group_ids):
            raise LeaseError(f"step {step} leases a group twice: {sorted(group_ids)}")
        for group_id in group_ids:
            if group_id in self._consumed:
                raise LeaseError(f"step {step} leases group {group_id}, which step {self._consumed[group_id]} consumed")
            if group_id not in self._live:
                raise LeaseError(f"step {step} leases group {group_id}, which is not in the buffer")
            if self._live[group_id] not in (None, step):
                raise LeaseError(f"step {step} leases group {group_id}, which step {self._live[group_id]} holds")
        for group_id in group_ids:
            self._live[group_id] = step

    def release(self, step: int) -> list[str]:
        """Give back what a step leased and did not commit."""
        back = [group_id for group_id, holder in self._live.items() if holder == step]
        for group_id in back:
            self._live[group_id] = None
        return back

    def commit(self, step: int, group_ids: Sequence[str]) -> list[str]:
        """The step consumed these groups; returns the ids that this call removed. A buffer that was rebuilt knows no
        leases any more, so a commit needs the groups to be live, not leased."""
        for group_id in group_ids:
            by = self._consumed.get(group_id, step)
            if by != step:
                raise LeaseError(f"step {step} commits group {group_id}, which step {by} consumed")
            if self._live.get(group_id) not in (None, step):
                raise LeaseError(f"step {step} commits group {group_id}, which step {self._live[group_id]} holds")
            if group_id not in self._live and group_id not in self._consumed:
                raise LeaseError(f"step {step} commits group {group_id}, which was never put")
        fresh = [group_id for group_id in group_ids if group_id in self._live]
        for group_id in fresh:
            del self._live[group_id]
            self._consumed[group_id] = step
        return fresh

    def void(self, group_ids: Iterable[str]) -> list[str]:
        """Forget groups that got too old; they may be put anew. Returns those that were there."""
        gone = [group_id for group_id in group_ids if group_id in self._live]
        for group_id in gone:
            if self._live[group_id] is not None:
                raise LeaseError(f"group {group_id} cannot be voided: step {self._live[group_id]} holds it")
        for group_id in gone:
            del self._live[group_id]
        return gone

    def consumed_before(self, steps: Mapping[str, int]) -> None:
        """Take over what earlier steps consumed (when the buffer is rebuilt)."""
        self._consumed.update(steps)

    def rewind(self, step: int) -> None:
        """Forget what steps after `step` consumed and all leases: the run resumes from the checkpoint of `step`."""
        self._consumed = {group_id: by for group_id, by in self._consumed.items() if by <= step}
        self._live = dict.fromkeys(self._live)
