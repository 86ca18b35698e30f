"""A run's records as the report shows them: its curves, its evaluations, its configuration, what it survived.

Keeps: what was not measured is absent (NaN in a curve, None in a table), never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Sequence

from rti.config.keys import leaves
from rti.config.schema import Config
from rti.run.directory import EVALUATIONS
from rti.run.files import RecordError, read_json
from rti.run.findings import Records, read_records
from rti.run.ledger import Totals, totals

_OWN = ("name", "run_dir")
"""Keys in which any two runs differ."""


@dataclass(frozen=True)
class Run:
    """A run directory, read once. `name` tells it from the other runs of the page."""

    name: str
    records: Records

    @property
    def config(self) -> Config:
        return self.records.config

    @property
    def path(self) -> Path:
        return self.records.path

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """(steps, values) of a key of metrics.jsonl; NaN at a step without it. Empty where no step has it."""
        lines = [line.value for line in self.records.metrics]
        if not any(line.get(key) is not None for line in lines):
            return [], []
        return [line["step"] for line in lines], [math.nan if line.get(key) is None else float(line[key]) for line in lines]

    def total(self, key: str) -> float | None:
        """Sum of a key over the steps; None where no step has it."""
        known = [v for v in self.curve(key)[1] if not math.isnan(v)]
        return sum(known) if known else None

    def mean(self, key: str) -> float | None:
        known = [v for v in self.curve(key)[1] if not math.isnan(v)]
        return sum(known) / len(known) if known else None

    @cached_property
    def evaluations(self) -> dict[int, dict[str, Any]]:
        """step -> the evaluation of the weights after it, in order. One that cannot be read is left out and noted."""
        found = {}
        for path in sorted((self.path / EVALUATIONS).glob("step-*.json")):
            try:
                found[int(path.stem.removeprefix("step-"))] = read_json(path)
            except RecordError as e:
                self.records.damage.append(str(e))
        return found

    @cached_property
    def totals(self) -> Totals:
        return totals(numbered.entry for numbered in self.records.ledger)

    @property
    def state(self) -> str:
        """How far the run is, in words."""
        steps = f"{self.records.last_step} of {self.config.steps} steps"
        if self.records.summary is not None:
            return f"complete: {steps}"
        return f"going on: {steps}" if self.records.holder else f"stopped: {steps}"


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of a page, named apart by as much of their paths as that takes. Raises NotARun."""
    places = [path.resolve() for path in paths]
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        names = [str(Path(*place.parts[-2:])) for place in places]
    return [Run(name, read_records(path)) for name, path in zip(names, paths)]


def settings(runs: Sequence[Run]) -> list[tuple[str, Any, list[Any], bool]]:
    """(key, default, value in each run, whether the runs differ) of every key that some run has set otherwise."""
    defaults = leaves(Config())
    chosen = [leaves(run.config) for run in runs]
    rows = []
    for key, default in defaults.items():
        values = [c[key] for c in chosen]
        if key not in _OWN and any(v != default for v in values):
            rows.append((key, default, values, any(v != values[0] for v in values)))
    return rows
