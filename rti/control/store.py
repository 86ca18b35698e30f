"""The replay buffer without Ray: encoded groups in memory and in a journal, leased to steps, gone when a step commits.

Keeps invariant 5 through the lease table, and through the journal also when the process that holds it dies. Beyond the memory
bound the oldest groups stay in the journal alone and are read back when a step leases them. A disk without room refuses a put,
which then has not happened. Bytes are opaque here.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from rti.control.journal import Journal, JournalError, Kind, Record
from rti.control.leases import LeaseTable

_SLACK = 16 << 20   # dead bytes that the journal may hold beyond the live ones before it is rewritten


@dataclass(frozen=True)
class Facts:
    """What is known of a group beside its bytes. Versions are over all its tokens. `idle` says why it teaches nothing; empty
    where it teaches. `uses`: how many steps may consume it; `used`: how many have."""

    group_id: str
    admitted_version: int
    oldest_version: int
    newest_version: int
    idle: str = ""
    uses: int = 1
    used: int = 0

    def meta(self) -> dict[str, Any]:
        """What the journal keeps: all but `used`, which its commits say."""
        return {"id": self.group_id, "admitted": self.admitted_version, "oldest": self.oldest_version,
                "newest": self.newest_version, "idle": self.idle, "uses": self.uses}

    @classmethod
    def of(cls, meta: dict[str, Any], used: int) -> Facts:
        return cls(meta["id"], meta["admitted"], meta["oldest"], meta["newest"], meta.get("idle", ""), meta.get("uses", 1),
                   used)


class GroupStore:
    """See the module's docstring. Opening it on an existing journal rebuilds it as it was, leases excepted."""

    def __init__(self, path: str | Path, memory_bytes: int):
        self._memory_bytes = memory_bytes
        self._table = LeaseTable()
        self._records: dict[str, Record] = {}
        self._data: dict[str, bytes] = {}       # the groups that are in memory, oldest first
        self._held = 0                          # bytes of _data
        self._journal = Journal(path)
        for record in self._journal.records:
            self._replay(record)
        self._journal.records.clear()

    @property
    def cut(self) -> int:
        """Damaged bytes at the journal's end that opening it removed."""
        return self._journal.cut

    def _replay(self, record: Record) -> None:
        meta = record.meta
        if record.kind is Kind.PUT:
            self._table.restore(meta["id"], meta.get("uses", 1))
            self._records[meta["id"]] = record
        elif record.kind is Kind.COMMIT:
            self._table.commit(meta["step"], meta["ids"])
            self._forget(meta["ids"])
        elif record.kind is Kind.VOID:
            self._forget(self._table.void(meta["ids"]))
        else:
            self._table.consumed_before(meta["steps"])

    def put(self, facts: Facts, data: bytes) -> bool:
        """Keep a group. False where it is there already or was consumed (a second copy is dropped). Raises JournalError where
        the disk has no room: the group is not there then, and what was there stays."""
        if not self._table.may_put(facts.group_id):
            return False
        record = self._journal.append(Kind.PUT, facts.meta(), data)
        self._table.put(facts.group_id, facts.uses)
        self._records[facts.group_id] = record
        self._remember(facts.group_id, data)
        return True

    def lease(self, step: int, group_ids: Sequence[str]) -> list[bytes]:
        """The bytes of the groups that `step` is about to consume, in the order asked for."""
        self._table.lease(step, group_ids)
        return [self._data[g] if g in self._data else self._journal.read(self._records[g]) for g in group_ids]

    def release(self, step: int) -> list[str]:
        return self._table.release(step)

    def commit(self, step: int, group_ids: Sequence[str]) -> None:
        """The step consumed these groups. Written down before it is answered; asking twice is harmless. Those that may be used
        again stay, all others go."""
        if fresh := self._table.news(step, group_ids):
            self._journal.append(Kind.COMMIT, {"step": step, "ids": fresh})
            self._table.commit(step, fresh)
            self._forget(fresh)
            self._tidy()

    def void(self, group_ids: Sequence[str]) -> list[str]:
        gone = self._table.void(group_ids)
        if gone:
            self._journal.append(Kind.VOID, {"ids": gone})
            self._forget(gone)
        return gone

    def resume(self, step: int, version: int) -> list[Facts]:
        """Go back to the checkpoint of `step`, whose weights are `version`: what later steps consumed is forgotten (those
        groups run again), and groups with tokens of later versions go, because those weights never were in this run's past.
        Returns what is left."""
        self._table.rewind(step)
        facts = [Facts.of(self._records[g].meta, self._table.used(g)) for g in self._table.live]
        self._forget(self._table.void(f.group_id for f in facts if f.newest_version > version))
        self._rewrite()
        return [f for f in facts if f.newest_version <= version]

    def stats(self) -> dict[str, int]:
        return {"groups": len(self._table), "memory_bytes": self._held, "in_memory": len(self._data),
                "journal_bytes": self._journal.size}

    def close(self) -> None:
        self._journal.close()

    def _remember(self, group_id: str, data: bytes) -> None:
        self._data[group_id] = data
        self._held += len(data)
        while self._held > self._memory_bytes and self._data:
            oldest = next(iter(self._data))
            self._held -= len(self._data.pop(oldest))

    def _forget(self, group_ids: Sequence[str]) -> None:
        """Let go of the bytes of groups that are not live any more."""
        for group_id in group_ids:
            if group_id in self._records and group_id not in self._table:
                del self._records[group_id]
                self._held -= len(self._data.pop(group_id, b""))

    def _tidy(self) -> None:
        """Rewrite a journal of mostly dead bytes. Where the disk has no room for that, the long one stays: it is whole."""
        live = sum(record.length for record in self._records.values())
        if self._journal.size > 2 * live + _SLACK:
            with contextlib.suppress(JournalError):
                self._rewrite()

    def _rewrite(self) -> None:
        ids = list(self._records)

        def records():
            yield Kind.CONSUMED, {"steps": self._table.consumed}, b""
            for group_id in ids:
                record = self._records[group_id]
                data = self._data.get(group_id)
                yield Kind.PUT, record.meta, self._journal.read(record) if data is None else data

        written = self._journal.rewrite(records())
        self._records = dict(zip(ids, written[1:]))
