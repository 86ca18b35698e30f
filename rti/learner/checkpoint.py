"""Checkpoints on disk: which directories are whole, which is newest, how one comes to be, which are removed.

    step-000010/
      dcp/                 torch.distributed.checkpoint: `model.<name>` and both moments of AdamW, sharded, float32
      rng-00000.msgpack    random streams of each rank
      meta.msgpack         learner version, skipped steps in a row, names and shapes of the parameters
      extra.msgpack        the caller's: task order, buffer, ledger position
      hf/                  a Hugging Face directory of the policy
      COMPLETE             JSON: size and checksum of every other file

Keeps field bug 29: a checkpoint is written under a temporary name, its marker last, and then renamed. What has no valid
marker, or not the files that the marker lists, is not a checkpoint: it is passed over, by name.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, Callable

import msgspec

MARKER = "COMPLETE"
_FORMAT = 1
_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read."""


def step_directory(directory: str | Path, step: int) -> Path:
    """checkpoints/step-000010"""
    return Path(directory) / f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step that a directory's name gives; None where it is no checkpoint's name."""
    digits = path.name.removeprefix("step-")
    return int(digits) if path.name.startswith("step-") and digits.isdigit() else None


# --- writing -----------------------------------------------------------------------------------------------------
def temporary(path: Path) -> Path:
    """Where a checkpoint is written until it is whole: beside its final place, under a name that no search takes for one."""
    return path.with_name(f".{path.name}.tmp")


def encode_record(name: str, record: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(record)
    except (TypeError, OverflowError, NotImplementedError) as e:
        raise CheckpointError(f"cannot store {name} of a checkpoint: {e}; it may hold None, bool, int (64 bits), float, str, "
                              "bytes, lists and dicts of these. Encode anything else to bytes first.") from e


def write_record(path: Path, record: Any) -> None:
    path.write_bytes(encode_record(path.name, record))


def read_record(path: Path) -> Any:
    try:
        return msgspec.msgpack.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as e:
        raise CheckpointError(f"cannot read {path}: {e}") from e


def complete(path: Path) -> None:
    """Make the files under temporary(path) the checkpoint `path`: sync, mark, rename. Takes the place of an older `path`."""
    work = temporary(path)
    listed = {}
    for file in sorted(f for f in work.rglob("*") if f.is_file()):
        listed[file.relative_to(work).as_posix()] = {"size": file.stat().st_size, "crc32": _checksum(file)}
        _sync(file)
    marker = work / MARKER
    marker.write_text(json.dumps({"format": _FORMAT, "files": listed}, indent=1))
    for entry in (marker, *(d for d in work.rglob("*") if d.is_dir()), work):
        _sync(entry)
    old = path.with_name(f".{path.name}.old")
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    work.rename(path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


# --- reading -----------------------------------------------------------------------------------------------------
def problem_of(path: str | Path) -> str | None:
    """Why `path` is not a whole checkpoint; None where it is one."""
    path = Path(path)
    if not path.is_dir():
        return "there is no such directory"
    marker = path / MARKER
    if not marker.is_file():
        return f"it has no {MARKER} marker: it was not written to its end"
    try:
        manifest = json.loads(marker.read_text())
        entries = [(name, entry["size"], entry["crc32"]) for name, entry in manifest["files"].items()]
        version = manifest["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        return f"its {MARKER} marker cannot be read ({type(e).__name__}: {e})"
    if version != _FORMAT:
        return f"its format is {version}; this build reads format {_FORMAT}"
    for name, size, crc in entries:
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if _checksum(file) != crc:
            return f"{name} is damaged (its checksum differs)"
    return None


def newest_whole(directory: str | Path, report: Callable[[str], None] = _log.warning) -> Path | None:
    """The whole checkpoint of the highest step in `directory`; None where there is none. Each broken one that is newer is
    named to `report`, with the reason."""
    for path in reversed(_by_step(directory)):
        problem = problem_of(path)
        if problem is None:
            return path
        report(f"passing over checkpoint {path}: {problem}")
    return None


def prune(directory: str | Path, keep: int, best: str | Path | None = None) -> list[Path]:
    """Remove all but the `keep` newest whole checkpoints and `best`; what was removed.

    Leftovers of saves that were killed go as well. Nothing newer than the newest whole one is touched: it may be in the making.
    """
    paths = _by_step(directory)
    whole = [p for p in paths if (p / MARKER).is_file()]
    if not whole:
        return []
    kept = {p.name for p in whole[-max(keep, 1):]} | ({Path(best).name} if best is not None else set())
    newest = step_of(whole[-1])
    removed = [p for p in paths if p.name not in kept and step_of(p) <= newest]
    for path in Path(directory).glob(".step-*"):
        step = step_of(path.with_name(path.name.removeprefix(".").rsplit(".", 1)[0]))
        if step is not None and step < newest:
            removed.append(path)
    for path in removed:
        (path / MARKER).unlink(missing_ok=True)     # first, so that a removal cut short leaves nothing that looks whole
        shutil.rmtree(path)
    return removed


def _by_step(directory: str | Path) -> list[Path]:
    directory = Path(directory)
    found = [p for p in directory.iterdir() if p.is_dir() and step_of(p) is not None] if directory.is_dir() else []
    return sorted(found, key=lambda p: step_of(p))
