"""Ways to break a run directory, and to say what its audit must then find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable
from unittest import mock

from rti.run import trajectories
from rti.run.audit import Result, audit, main
from rti.trajectory import Group


def edit_lines(path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_groups(run: Path, change: Callable[[list[Group]], Any], step: int = 1) -> None:
    path = trajectories.path_of(run / "trajectories", step)
    groups = list(trajectories.read(path))
    change(groups)
    trajectories.write(path, groups)


def breaches(results: list[Result]) -> dict[str, list[str]]:
    return {r.check.name: r.findings.breaches for r in results if not r.holds}


def expect(run: Path, name: str, *words: str, only: bool = True) -> str:
    """The audit ends with 1 and says for `name` (alone, unless told otherwise) each of the words; what it says."""
    results: list[Result] = []
    with mock.patch("rti.run.audit.audit", lambda path: results.extend(audit(path)) or results):
        assert main([str(run)]) == 1
    found = breaches(results)
    assert name in found
    if only:
        assert set(found) == {name}
    text = "\n".join(found[name])
    for word in words:
        assert word in text
    return text
