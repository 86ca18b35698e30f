"""Which groups are in the buffer, which a step has leased, which are gone. The buffer's logic without its bytes.

Keeps invariant 5: a group is put once, leased to one step at a time, and gone for good when as many steps have committed it as
its allowance says (one, unless it may be used again). All calls are idempotent, so that a caller whose answer was lost (the
buffer died after it had written) simply asks again.
"""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence


class LeaseError(RuntimeError):
    """A call that would break invariant 5: a bug of the caller's, never something to survive."""


class LeaseTable:
    """Group ids only. A group is unknown, live (put, perhaps leased), or gone; one that may be used again is both live and
    consumed between its uses."""

    def __init__(self) -> None:
        self._live: dict[str, int | None] = {}          # id -> the step that leases it
        self._uses: dict[str, int] = {}                 # id of a live group -> how many steps may consume it, if not one
        self._consumed: dict[str, list[int]] = {}       # id -> the steps that consumed it

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._live

    @property
    def live(self) -> list[str]:
        return list(self._live)

    @property
    def consumed(self) -> dict[str, list[int]]:
        """id -> the steps that consumed it, in the order they did."""
        return {group_id: list(steps) for group_id, steps in self._consumed.items()}

    def used(self, group_id: str) -> int:
        """How many steps have consumed a group."""
        return len(self._consumed.get(group_id, ()))

    def may_put(self, group_id: str) -> bool:
        return group_id not in self._live and group_id not in self._consumed

    def put(self, group_id: str, uses: int = 1) -> bool:
        """False where the group is there already, or was consumed: the second copy is dropped. `uses`: how many steps may
        consume it, one after the other."""
        if not self.may_put(group_id):
            return False
        self.restore(group_id, uses)
        return True

    def restore(self, group_id: str, uses: int = 1) -> None:
        """The word of a journal: the group is there, whatever has consumed it."""
        self._live[group_id] = None
        if uses > 1:
            self._uses[group_id] = uses

    def lease(self, step: int, group_ids: Sequence[str]) -> None:
        if len(set(group_ids)) != len(group_ids):
            raise LeaseError(f"step {step} leases a group twice: {sorted(group_ids)}")
        for group_id in group_ids:
            if group_id not in self._live:
                raise LeaseError(f"step {step} leases group {group_id}, which {self._where(group_id, 'is not in the buffer')}")
            if step in self._consumed.get(group_id, ()):
                raise LeaseError(f"step {step} leases group {group_id}, which it has consumed already")
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

    def _where(self, group_id: str, else_: str) -> str:
        steps = self._consumed.get(group_id)
        return f"step {', '.join(map(str, steps))} consumed" if steps else else_

    def news(self, step: int, group_ids: Sequence[str]) -> list[str]:
        """Those of the groups of which it is not known that the step consumed them. A buffer that was rebuilt knows no leases
        any more, so they need to be live, not leased."""
        fresh = [group_id for group_id in dict.fromkeys(group_ids) if step not in self._consumed.get(group_id, ())]
        for group_id in fresh:
            if group_id not in self._live:
                raise LeaseError(f"step {step} commits group {group_id}, which {self._where(group_id, 'was never put')}")
            if self._live[group_id] not in (None, step):
                raise LeaseError(f"step {step} commits group {group_id}, which step {self._live[group_id]} holds")
        return fresh

    def commit(self, step: int, group_ids: Sequence[str]) -> list[str]:
        """The step consumed these groups; returns the ids for which this is news. Those whose allowance is used up are gone."""
        fresh = self.news(step, group_ids)
        for group_id in fresh:
            self._consumed.setdefault(group_id, []).append(step)
            self._live[group_id] = None
            if self.used(group_id) >= self._uses.get(group_id, 1):
                self._remove(group_id)
        return fresh

    def _remove(self, group_id: str) -> None:
        del self._live[group_id]
        self._uses.pop(group_id, None)

    def void(self, group_ids: Iterable[str]) -> list[str]:
        """Forget groups that got too old; those that nothing has consumed may be put anew. Returns those that were there."""
        gone = [group_id for group_id in group_ids if group_id in self._live]
        for group_id in gone:
            if self._live[group_id] is not None:
                raise LeaseError(f"group {group_id} cannot be voided: step {self._live[group_id]} holds it")
        for group_id in gone:
            self._remove(group_id)
        return gone

    def consumed_before(self, steps: Mapping[str, int | Sequence[int]]) -> None:
        """Take over what earlier steps consumed (when the buffer is rebuilt): one step or several a group."""
        self._consumed.update({group_id: [by] if isinstance(by, int) else list(by) for group_id, by in steps.items()})

    def rewind(self, step: int) -> None:
        """Forget what steps after `step` consumed and all leases: the run resumes from the checkpoint of `step`."""
        kept = {group_id: [by for by in steps if by <= step] for group_id, steps in self._consumed.items()}
        self._consumed = {group_id: steps for group_id, steps in kept.items() if steps}
        self._live = dict.fromkeys(self._live)
