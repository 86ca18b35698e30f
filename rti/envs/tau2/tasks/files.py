"""Task files: what launch/data.py wrote, and the AReaL-tau2-data files as they are published.

Keeps: a row is known by its place in the file, because published ids repeat; its domain is what the row itself says. A file
that is cut short, not of this kind, or names a database snapshot that is not there, is refused as a whole, by line.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from rti.envs.task_files import TaskFileError
from rti.envs.tau2 import official
from rti.envs.tau2.domain import DOMAINS
from rti.envs.tau2.tasks.goal import Row

PUBLISHED = "tau2_rl_train.jsonl"
"""The task file in a folder of AReaL-tau2-data; its snapshots are in tau2_rl_database/ beside it."""

FIELDS = ("id", "description", "user_scenario", "ticket", "initial_state")
"""Of a row, as the official Task has them; its criteria come in two forms."""


class TrainingTask(NamedTuple):
    """An official Task, and the file of the database that it belongs to ("" for the domain's own)."""

    task: Any
    db: str = ""


def write(path: Path, rows: Sequence[Row]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read(path: Path, domain: str) -> list[TrainingTask]:
    """The tasks of `domain` in a file, or in a folder of AReaL-tau2-data. Raises TaskFileError."""
    file = path / PUBLISHED if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise TaskFileError(f"cannot read the τ² tasks in {file.resolve()}: {e.strerror}; mend: give a file that "
                            f"launch/data.py tau2 wrote, or the folder of AReaL-tau2-data (with {PUBLISHED} in it)") from e
    except UnicodeDecodeError as e:
        raise TaskFileError(f"{file} is not a task file: it is not UTF-8 text ({e.reason} at byte {e.start})") from e
    rows = [(n, _row(file, n, line)) for n, line in enumerate(lines, 1) if line.strip()]
    found = [TrainingTask(_task(file, n, row), _snapshot(file, n, row)) for n, row in rows if _domain(file, n, row) == domain]
    if not found:
        there = Counter(_domain(file, n, row) for n, row in rows)
        raise TaskFileError(f"{file} holds no {domain} task (it holds {dict(there) or 'nothing'}); mend: give another file, or "
                            "another env.tau2.domain")
    return found


def _row(file: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as e:
        raise TaskFileError(f"line {number} of {file} is not JSON ({e.msg} at column {e.colno}): the file is cut short or of "
                            "another "
                            "kind; mend: fetch it again") from None
    lacks = [f for f in ("id", "user_scenario", "evaluation_criteria") if not isinstance(row, dict) or not row.get(f)]
    if lacks:
        raise TaskFileError(f"line {number} of {file} is no τ² task: it has no {', '.join(lacks)}")
    return row


def _domain(file: Path, number: int, row: Row) -> str:
    """What the row says: in the user's instructions, else in the snapshot's name, else in its id."""
    scenario = row["user_scenario"]
    instructions = scenario.get("instructions") if isinstance(scenario, dict) else None
    said = instructions.get("domain", "") if isinstance(instructions, dict) else ""
    for text in (said, Path(str(row.get("db_path") or "")).name, str(row["id"])):
        named = [d for d in DOMAINS if d in str(text).lower()]
        if len(named) == 1:
            return named[0]
    raise TaskFileError(f"line {number} of {file} does not say which domain it is of ({', '.join(DOMAINS)}), neither in "
                        "user_scenario.instructions.domain nor in db_path or id")


def _task(file: Path, number: int, row: Row) -> Any:
    """The official Task. In the published form the criteria are text, and the id gets the line number: ids repeat there."""
    made = {key: row[key] for key in FIELDS if row.get(key) is not None}
    criteria = row["evaluation_criteria"]
    if isinstance(criteria, str):
        made["id"] = f"{row['id']}#{number}"
        try:
            criteria = json.loads(criteria)
        except json.JSONDecodeError as e:
            raise TaskFileError(f"the evaluation_criteria in line {number} of {file} are not JSON: {e.msg} at column "
                                f"{e.colno}") from None
    if isinstance(criteria, dict):
        actions = [{"action_id": f"{made['id']}_{n}", **a} for n, a in enumerate(criteria.get("actions") or [])]
        made["evaluation_criteria"] = {**criteria, "actions": actions}
    try:
        return official_task(made)
    except ValueError as e:     # pydantic's: the fields that are wrong, and why
        raise TaskFileError(f"line {number} of {file} is no official task: {' '.join(str(e).split())[:300]}") from None


def official_task(row: Row) -> Any:
    """A row in the official form as an official Task."""
    return official.load().tasks.Task.model_validate(row)


def _snapshot(file: Path, number: int, row: Row) -> str:
    """The row's database file, which lies in the file's folder or below."""
    name = row.get("db_path")
    if not name:
        return ""
    root = file.parent.resolve()
    path = (root / str(name)).resolve()
    if not path.is_relative_to(root):
        raise TaskFileError(f"line {number} of {file} names the database {name}, which is outside the file's folder")
    if not path.is_file():
        raise TaskFileError(f"line {number} of {file} names the database snapshot {name}, and there is no such file in "
                            f"{root}; mend: "
                            "fetch the dataset's tau2_rl_database folder and put it beside the task file")
    return str(path)
