"""The trajectories kept of a step: whole groups, as rti.trajectory encodes them, one after another in a file.

Keeps: what is read is exactly what was trained on, or an error that says where the file is damaged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator, Sequence

from rti.run.files import RecordError, write_atomic
from rti.trajectory import DecodeError, Group, decode_at, encode

_NAME = re.compile(r"step-(\d{6,})\.rti")


def path_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}.rti"


def files(directory: Path) -> dict[int, Path]:
    """step -> file, in order."""
    if not directory.is_dir():
        return {}
    found = {int(m[1]): p for p in directory.iterdir() if (m := _NAME.fullmatch(p.name))}
    return dict(sorted(found.items()))


def select(groups: Sequence[Group], n: int) -> list[Group]:
    """The `n` groups that show most (-1: all), in their order: rescued ones, then failed ones, then those that teach."""
    if n < 0 or n >= len(groups):
        return list(groups)
    worth = [(g.replaced is None, not g.failed_before, not g.teaches, i) for i, g in enumerate(groups)]
    return [groups[i] for i in sorted(key[-1] for key in sorted(worth)[:n])]


def write(path: Path, groups: Sequence[Group]) -> None:
    """A file of whole groups: all of them or no file."""
    write_atomic(path, b"".join(encode(g) for g in groups))


def read(path: Path) -> Iterator[Group]:
    """The groups of a file, one at a time. Raises RecordError at the first that is not whole."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise RecordError(f"{path}: cannot be read ({e.strerror}); restore it from a copy") from e
    offset, number = 0, 0
    while offset < len(data):
        number += 1
        try:
            group, offset = decode_at(data, offset, Group)
        except DecodeError as e:
            raise RecordError(
                f"{path}: record {number} at byte {offset}: {e}. The {number - 1} before it are whole; cut the file "
                f"to {offset} bytes to go on with those, or restore it from a copy") from e
        yield group


def whole(path: Path) -> Iterator[Group]:
    """The groups of a file up to the first that is not whole."""
    try:
        yield from read(path)
    except RecordError:
        return
