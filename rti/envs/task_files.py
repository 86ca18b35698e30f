"""Task files: the tasks of an environment as launch/data.py writes them, one JSON object a line.

Keeps: a file that is not there, or holds a line that is no task, is refused as a whole, with the line and the mend.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import msgspec

from rti.envs.base import Task


class TaskFileError(ValueError):
    """A task file that cannot be used."""


class CheckFailed(ValueError):
    """Tasks that break a promise. The text says which and how."""


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(t) + b"\n" for t in tasks))


def read_tasks(path: Path, maker: str = "launch/data.py") -> list[Task]:
    """The tasks of a file; `maker` is the command that makes one. Raises TaskFileError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as e:
        raise TaskFileError(f"cannot read the task file {path}: {e.strerror}; mend: make it with {maker}") from e
    tasks = []
    for number, line in enumerate(lines, 1):
        try:
            tasks.append(msgspec.json.decode(line, type=Task))
        except msgspec.DecodeError as e:
            raise TaskFileError(f"line {number} of {path} is not a task: {e}") from None
    return tasks


def write_splits(directory: Path, train: Sequence[Task], test: Sequence[Task]) -> None:
    write_tasks(directory / "train.jsonl", train)
    write_tasks(directory / "test.jsonl", test)


def read_splits(directory: Path, maker: str) -> tuple[list[Task], list[Task]]:
    """Train and test. Raises TaskFileError."""
    return read_tasks(directory / "train.jsonl", maker), read_tasks(directory / "test.jsonl", maker)
