"""What the audit's checks work on and what they leave: a run's records read once, and findings with a named place."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rti.config.keys import ConfigError
from rti.config.load import load_run_config
from rti.config.schema import Config
from rti.run import trajectories
from rti.run.directory import CONFIG, LEDGER, METRICS, SUMMARY, TRAJECTORIES
from rti.run.files import Line, RecordError, read_json, read_lines
from rti.run.ledger import LedgerEntry, Numbered, read_ledger
from rti.run.lock import holder


@dataclass
class Findings:
    """Of one check: how much it looked at, what breaks the invariant, and what a reader should know besides."""

    checked: int = 0
    breaches: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str = ""       # why nothing was looked at

    def breach(self, where: str, what: str) -> None:
        self.breaches.append(f"{where}: {what}")


@dataclass
class Records:
    """The records of a run directory. What could not be read is empty, and `damage` says so."""

    path: Path
    config: Config
    metrics: list[Line]
    ledger: list[Numbered]
    summary: dict[str, Any] | None
    holder: str                         # who is running there now, "" where nobody is
    damage: list[str]
    notes: list[str]

    @property
    def last_step(self) -> int:
        return max((line.value["step"] for line in self.metrics), default=0)

    @property
    def consumed(self) -> dict[str, LedgerEntry]:
        """group id -> the entry that consumed it (the first, where there are two)."""
        found: dict[str, LedgerEntry] = {}
        for _, entry in self.ledger:
            if entry.consumed:
                found.setdefault(entry.group_id, entry)
        return found

    def steps(self) -> dict[int, list[LedgerEntry]]:
        """step -> its ledger entries, in order."""
        found: dict[int, list[LedgerEntry]] = {}
        for _, entry in self.ledger:
            found.setdefault(entry.step, []).append(entry)
        return dict(sorted(found.items()))

    def is_fixed(self, text: str) -> bool:
        """Whether a system message is the environment's own: rollouts of several tasks begin with it."""
        return len(self._tasks_by_system_message.get(text, ())) > 1

    @cached_property
    def _tasks_by_system_message(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path in self.trajectory_files().values():
            for group in trajectories.whole(path):
                for message in (m for t in (*group.members, *group.attempts) for m in t.prompt if m.role == "system"):
                    found.setdefault(message.content, set()).add(group.task_id)
        return found

    def trajectory_files(self) -> dict[int, Path]:
        return trajectories.files(self.path / TRAJECTORIES)


class NotARun(RuntimeError):
    """The directory holds no run."""


def read_records(path: Path) -> Records:
    """Read a run directory as far as it can be read. Raises NotARun."""
    missing = [name for name in (CONFIG, METRICS, LEDGER) if not (path / name).is_file()]
    if missing:
        what = "is not a directory" if not path.is_dir() else f"has no {', '.join(missing)}"
        raise NotARun(f"{path} {what}: give the directory of a run, e.g. runs/lab")
    try:
        config = load_run_config(path)
    except ConfigError as e:
        raise NotARun(f"{path / CONFIG} cannot be read: {e}") from e
    damage: list[str] = []
    notes: list[str] = []
    metrics = _tolerant(lambda: _metrics(path / METRICS), damage) or []
    ledger = _tolerant(lambda: read_ledger(path / LEDGER), damage) or []
    summary = _tolerant(lambda: _summary(path / SUMMARY), damage) if (path / SUMMARY).is_file() else None
    for name in (METRICS, LEDGER):
        if not damage and (torn := read_lines(path / name).torn):
            notes.append(f"{name}:{torn} has no end (the run was killed while writing it); resuming cuts it off")
    who = holder(path)
    if who:
        notes.append(f"{who} is running there: the records may be of the middle of a step")
    return Records(path, config, metrics, ledger, summary, who, damage, notes)


def _metrics(path: Path) -> list[Line]:
    lines = read_lines(path).lines
    for line in lines:
        step = line.value.get("step")
        if type(step) is not int:
            raise RecordError(f"{path}:{line.number}: a line of metrics has an integer `step`, this one has {step!r}")
        for key, value in line.value.items():
            if value is not None and type(value) not in (int, float):
                raise RecordError(f"{path}:{line.number}: {key} is {value!r}, not a number: the file was edited or damaged; "
                                  "restore it from a copy")
    return lines


def _summary(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: expected an object, found {type(value).__name__}; delete it, and the run writes it "
                          "again at its end")
    return value


def _tolerant(read: Any, damage: list[str]) -> Any:
    try:
        return read()
    except RecordError as e:
        damage.append(str(e))
        return None
