"""`python -m rti.run.control RUN_DIR key=value ...`: change how many actors a running run may have.

The words become a request, a file of its own in RUN_DIR/control that is there whole or not at all. The run takes requests in
the order in which they were made, and writes into control.jsonl who asked for what and when, and what became of it. What was
taken holds after a resume too, until a resumed run's configuration changes the same section.
"""

from __future__ import annotations

import argparse
import copy
import getpass
import os
import socket
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Sequence

import msgspec

from rti.commands import guarded
from rti.config.keys import ConfigError, nearest, value_of
from rti.config.load import load, validate
from rti.config.schema import Config
from rti.run.files import JsonLines, RecordError, read_json, read_lines, write_json
from rti.run.lock import holder

CONTROLLABLE = ("interveners.min", "interveners.max", "env_workers.count", "env_workers.max", "generators.replicas",
                "generators.max", "ray.idle_s")
"""Keys that a running run takes."""

REQUESTS, RECORD, CONFIG = "control", "control.jsonl", "config.yaml"
WAIT_S = 60.0


class Change(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of control.jsonl. `refused` says why where it was not taken."""

    id: str
    at: str                         # when it was asked for, UTC
    who: str
    values: dict[str, float | int]
    step: int = 0                   # the last step when it was taken
    refused: str = ""

    def __str__(self) -> str:
        words = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"refused: {self.refused}" if self.refused else f"taken: {words}"


# --- the run's side ------------------------------------------------------------------------------------------------------
def restore(run_dir: Path, config: Config) -> None:
    """Put into `config` what the record says was taken before."""
    record = JsonLines(run_dir / RECORD) if (run_dir / RECORD).is_file() else None
    if record is not None:
        record.cut(lambda line: True)       # a torn tail: that request was not answered, and is asked once more
        record.close()
    _put(config, present(run_dir))


def note_resumed(run_dir: Path, before: Config, now: Config) -> None:
    """A resumed run's configuration differs from the one before: the sections that it changes hold, whatever was asked."""
    changed = {name.partition(".")[0] for name in CONTROLLABLE if value_of(before, name) != value_of(now, name)}
    values = {name: value_of(now, name) for name in CONTROLLABLE if name.partition(".")[0] in changed}
    if values and present(run_dir):
        _append(run_dir, Change(id=_new_id(), at=_now(), who="the configuration of the resumed run", values=values))


def take(run_dir: Path, config: Config, step: int) -> list[Change]:
    """Take the requests that are there into `config`, oldest first; each is answered in the record before it goes."""
    try:
        names = sorted(name for name in os.listdir(run_dir / REQUESTS) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    taken = []
    for name in names:
        path = run_dir / REQUESTS / name
        change = _judge(path, config, step)
        _append(run_dir, change)
        path.unlink(missing_ok=True)
        if not change.refused:
            _put(config, change.values)
        taken.append(change)
    return taken


def _judge(path: Path, config: Config, step: int) -> Change:
    try:
        change = msgspec.convert(read_json(path), Change)
    except (RecordError, msgspec.ValidationError, OSError) as fault:
        return Change(id=path.stem, at=_now(), who="", values={}, step=step, refused=f"the request cannot be read: {fault}")
    change.step = step
    trial = copy.deepcopy(config)
    try:
        _check_keys(change.values)
        _put(trial, change.values)
        validate(trial, {name: f"asked for by {change.who}" for name in change.values})
    except ConfigError as fault:
        change.refused = str(fault)
    return change


def _put(config: Config, values: dict[str, float | int]) -> None:
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        setattr(value_of(config, section), last, value)


def _append(run_dir: Path, change: Change) -> None:
    record = JsonLines(run_dir / RECORD)
    record.append(change)
    record.close()


# --- both sides ----------------------------------------------------------------------------------------------------------
def changes(run_dir: Path) -> list[Change]:
    """The record, oldest first."""
    return [msgspec.convert(line.value, Change) for line in read_lines(run_dir / RECORD).lines]


def present(run_dir: Path) -> dict[str, float | int]:
    """What was taken and holds now."""
    values: dict[str, float | int] = {}
    for change in changes(run_dir):
        if not change.refused:
            values |= change.values
    return values


def _check_keys(values: Sequence[str] | dict[str, Any]) -> None:
    for name in values:
        if name not in CONTROLLABLE:
            close = nearest(name)
            hint = f" (did you mean {close}?)" if close in CONTROLLABLE else ""
            raise ConfigError(f"{name} cannot be changed while a run goes on{hint}. What can: {', '.join(CONTROLLABLE)}. Stop "
                              "the run and resume it with the new value where docs/configuration.md says that it may change")


def _new_id() -> str:
    return f"{time.time_ns():020d}-{os.getpid()}"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- the asker's side ----------------------------------------------------------------------------------------------------
def ask(run_dir: Path, words: Sequence[str], wait_s: float = WAIT_S, pause: Callable[[float], None] = time.sleep) -> Change:
    """Ask the run in `run_dir` for a change; its answer. Raises ConfigError where the request makes no sense, where nobody
    runs there, or where the run does not answer (the request is withdrawn then)."""
    if not (run_dir / CONFIG).is_file():
        raise ConfigError(f"{run_dir} is not a run's directory: it has no {CONFIG}")
    asked = [word.partition("=")[0] for word in words]
    _check_keys(asked)
    config = load(str(run_dir / CONFIG), [*(f"{k}={v}" for k, v in present(run_dir).items()), *words])
    if not holder(run_dir):
        raise ConfigError(f"no run goes on in {run_dir}: it has ended or was stopped. Give {' '.join(words)} to the command "
                          "that resumes it")
    change = Change(id=_new_id(), at=_now(), who=_who(), values={name: value_of(config, name) for name in asked})
    path = run_dir / REQUESTS / f"{change.id}.json"
    write_json(path, change)
    return _answer(run_dir, path, change.id, wait_s, pause)


def _answer(run_dir: Path, path: Path, id: str, wait_s: float, pause: Callable[[float], None]) -> Change:
    deadline = time.monotonic() + wait_s
    while True:
        over = not holder(run_dir) or time.monotonic() > deadline
        for change in changes(run_dir):
            if change.id == id:
                return change
        if over:
            path.unlink(missing_ok=True)
            raise ConfigError(f"the run in {run_dir} did not answer within {wait_s:g} s, or ended: it may still be starting, "
                              "or be stopping. The request is withdrawn; ask again once steps go on")
        pause(0.1)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):     # a container without a name for its user
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rti.run.control",
        description=f"Change how many actors a running run may have: {', '.join(CONTROLLABLE)}.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("words", nargs="+", metavar="key=value")
    args = parser.parse_args(words)
    try:
        change = ask(args.run_dir, args.words)
    except (ConfigError, RecordError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    print(change)
    return 1 if change.refused else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
