"""The training tasks that a configuration asks for: env.tau2.tasks.

Keeps: no task of the base split, which is what evaluation measures, is ever among them.
"""

from __future__ import annotations

import functools
from pathlib import Path

from rti.envs.base import FatalEnvironmentError
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.tasks.files import TaskFileError, TrainingTask, official_task, read
from rti.envs.tau2.tasks.generate import TooFewTasks, generate

AUTO = "auto"


def training_tasks(domain: Domain, tasks: str) -> list[TrainingTask]:
    """`auto`: telecom's full set without the base split; for retail and airline, those made here. Else a file or folder."""
    if tasks != AUTO:
        try:
            return read(Path(tasks).expanduser(), domain.name)
        except TaskFileError as e:
            raise FatalEnvironmentError(f"env.tau2.tasks: {e}") from e
    if domain.name == "telecom":
        base = set(domain.splits["base"])
        return [TrainingTask(t) for t in domain.tasks("full") if t.id not in base]
    try:
        return [TrainingTask(t) for t in _made(domain)]
    except TooFewTasks as e:
        raise FatalEnvironmentError(f"env.tau2.tasks is auto: {e}") from e


@functools.lru_cache(maxsize=None)
def _made(domain: Domain) -> tuple[object, ...]:
    """Made once a process: it takes two seconds."""
    return tuple(official_task(row) for row in generate(domain))
