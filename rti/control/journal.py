"""An append-only file of checksummed records: what the replay buffer is rebuilt from.

A record is whole or it is not there: replay stops at the first damaged one and cuts the file off behind the last whole one, so
that a death in the middle of a write (or a full disk) loses at most the record that was being written, whose writer got no
answer and asks again. What is read back is what was written, or an error. Survives the death of its process; `sync` makes it
survive the machine's.
"""

from __future__ import annotations

import enum
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

import msgspec

_MAGIC = b"RTJ1"
_HEADER = struct.Struct("<4sBxxxIQI")   # magic | kind | length of meta | length of payload | crc32 of both


class Kind(enum.IntEnum):
    PUT = 1
    COMMIT = 2
    VOID = 3
    CONSUMED = 4    # the summary that a rewrite leaves of earlier commits


class Record(NamedTuple):
    kind: Kind
    meta: dict[str, Any]
    offset: int     # of the payload
    length: int
    crc: tuple[int, int]    # of the meta, and of meta and payload


class JournalError(RuntimeError):
    """The disk did not take a record, or did not give one back as it was written."""


class Journal:
    """One writer. `cut` says how many damaged bytes opening the file removed."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.records = list(self._scan())
        self.size = self.records[-1].offset + self.records[-1].length if self.records else 0
        self.cut = os.fstat(self._fd).st_size - self.size
        if self.cut:
            os.ftruncate(self._fd, self.size)

    def _scan(self) -> Iterator[Record]:
        end, at = os.fstat(self._fd).st_size, 0
        while at + _HEADER.size <= end:
            magic, kind, n_meta, n_payload, crc = _HEADER.unpack(os.pread(self._fd, _HEADER.size, at))
            start = at + _HEADER.size
            stop = start + n_meta + n_payload
            if magic != _MAGIC or stop > end:
                return
            body = _pread(self._fd, stop - start, start)
            if zlib.crc32(body) != crc:
                return
            crcs = zlib.crc32(body[:n_meta]), crc
            yield Record(Kind(kind), msgspec.msgpack.decode(body[:n_meta]), start + n_meta, n_payload, crcs)
            at = stop

    def append(self, kind: Kind, meta: dict[str, Any], payload: bytes | memoryview = b"") -> Record:
        """Write one record. Raises JournalError where the disk does not take it; the file is then as it was before."""
        head = msgspec.msgpack.encode(meta)
        crcs = (of_head := zlib.crc32(head)), (crc := zlib.crc32(payload, of_head))
        start = self.size
        try:
            for part in (_HEADER.pack(_MAGIC, kind, len(head), len(payload), crc) + head, payload):
                self._write(part)
        except OSError as error:
            os.ftruncate(self._fd, start)
            self.size = start
            raise JournalError(self._refused(len(head) + len(payload), error)) from error
        return Record(kind, meta, start + _HEADER.size + len(head), len(payload), crcs)

    def _refused(self, size: int, error: OSError) -> str:
        disk = os.fstatvfs(self._fd)
        return (f"{self.path} could not take {size} more bytes: {error.strerror} (it has {self.size}, and the disk "
                f"{disk.f_bavail * disk.f_frsize} free). Nothing that was written is lost. Make room or raise the limit, and "
                "start the same command again: the run goes on from its newest checkpoint")

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            n = os.pwrite(self._fd, view, self.size)
            self.size += n
            view = view[n:]

    def read(self, record: Record) -> bytes:
        """The payload of a record of this file. Raises JournalError where it is not as it was written."""
        data = _pread(self._fd, record.length, record.offset)
        of_head, whole = record.crc
        if zlib.crc32(data, of_head) != whole:
            raise JournalError(f"{self.path}: the record of {record.meta} at byte {record.offset} is damaged (its checksum "
                               "differs). Check the disk, and start the same command again: the record is cut off with what "
                               "follows it, and those groups run again")
        return data

    def rewrite(self, records: Iterable[tuple[Kind, dict[str, Any], bytes]]) -> list[Record]:
        """Replace the whole file by these records, or leave it as it is: a death meanwhile loses nothing."""
        beside = self.path.with_name(self.path.name + ".new")
        beside.unlink(missing_ok=True)
        fresh = Journal(beside)
        try:
            written = [fresh.append(kind, meta, payload) for kind, meta, payload in records]
            fresh.sync()
        except BaseException:
            fresh.close()
            beside.unlink()
            raise
        os.replace(beside, self.path)
        os.close(self._fd)
        self._fd, self.size = fresh._fd, fresh.size
        return written

    def sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise JournalError(self._refused(0, error)) from error

    def close(self) -> None:
        os.close(self._fd)


def _pread(fd: int, n: int, offset: int) -> bytes:
    """`n` bytes, or fewer where the file ends before."""
    parts = []
    while n and (part := os.pread(fd, n, offset)):
        parts.append(part)
        n, offset = n - len(part), offset + len(part)
    return b"".join(parts)
