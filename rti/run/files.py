"""Files that survive a kill: whole-or-absent writes, and JSON lines whose last line may be torn. Imports nothing of RTI.

Keeps: a reader never takes half a record for a whole one, and says where the damage is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, NamedTuple

import msgspec


class RecordError(ValueError):
    """A record file that cannot be read. Its text names file, place, reason and the mend."""


class Line(NamedTuple):
    number: int         # from 1
    value: dict[str, Any]


class Lines(NamedTuple):
    """What a JSON-lines file holds. `torn` is the number of a last line without its end, else 0; `size` is without it."""

    lines: list[Line]
    torn: int
    size: int


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader, also after a crash, finds the old content or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_partial(directory: Path) -> None:
    """Remove what writes that were killed left in a directory."""
    for path in directory.glob(".*.partial"):
        path.unlink()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as e:
        raise RecordError(f"{path}: not JSON ({e}); delete it, and the run writes it again at its end") from e


def read_lines(path: Path) -> Lines:
    """The objects of a JSON-lines file; no file, no lines. Raises RecordError on a damaged line that is not the torn tail."""
    if not path.is_file():
        return Lines([], 0, 0)
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    found = []
    for number, raw in enumerate(data[:whole].split(b"\n")[:-1], start=1):
        try:
            value = msgspec.json.decode(raw)
        except msgspec.DecodeError as e:
            raise RecordError(f"{path}:{number}: not JSON ({e}): the file was edited or damaged; restore it from a copy") from e
        if not isinstance(value, dict):
            raise RecordError(f"{path}:{number}: expected an object, found {type(value).__name__}")
        found.append(Line(number, value))
    return Lines(found, len(found) + 1 if whole < len(data) else 0, whole)


class JsonLines:
    """A JSON-lines file open for appending. Every call leaves whole lines on the disk, or raises."""

    def __init__(self, path: Path):
        self.path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, *values: Any) -> None:
        data = memoryview(b"".join(msgspec.json.encode(v) + b"\n" for v in values))
        size = os.fstat(self._handle).st_size
        try:
            while data:
                data = data[os.write(self._handle, data):]
        except OSError:     # a full disk: what was written of it would garble the next line
            os.ftruncate(self._handle, size)
            raise
        os.fsync(self._handle)

    def cut(self, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Drop the lines that `keep` refuses, and a torn tail; what is left. The bytes of kept lines do not change."""
        found = read_lines(self.path)
        kept = [line for line in found.lines if keep(line.value)]
        if len(kept) < len(found.lines) or found.torn:
            raw = self.path.read_bytes().split(b"\n")
            self._replace([raw[line.number - 1] for line in kept])
        return [line.value for line in kept]

    def amend(self, values: dict[str, Any]) -> None:
        """Add fields to the last line, where it does not hold them. The file is whole at any time."""
        last = read_lines(self.path).lines[-1]
        if last.value.items() >= values.items():
            return
        raw = self.path.read_bytes().split(b"\n")[:last.number - 1]
        self._replace([*raw, msgspec.json.encode(last.value | values)])

    def _replace(self, raw: list[bytes]) -> None:
        os.close(self._handle)
        write_atomic(self.path, b"".join(line + b"\n" for line in raw))
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
