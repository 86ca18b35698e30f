"""The task set of the own families: made from the generators, or read from files that launch/data.py claw-eval wrote.

Keeps: what can be known to be wrong (no such family, no such file) is said when the task set is made.
"""

from __future__ import annotations

from pathlib import Path

from rti.config.schema import ClawEvalConfig
from rti.envs.base import Task
from rti.envs.claw_eval.environment import ClawEvalEnvironment
from rti.envs.claw_eval.families import FAMILIES
from rti.envs.claw_eval.synthesis import synthesise
from rti.envs.task_files import TaskFileError, read_splits


def families_of(text: str) -> list[str]:
    """The families that a comma-separated list names, all for "all". Raises ValueError for one that is not there."""
    names = list(FAMILIES) if text.strip() == "all" else [n.strip() for n in text.split(",") if n.strip()]
    if not names or (unknown := [n for n in names if n not in FAMILIES]):
        raise ValueError(f"there is no family {(unknown if names else [''])[0]!r}; mend: all, or some of {', '.join(FAMILIES)}")
    return names


class ClawEvalTaskSet:
    """See rti.envs.base.TaskSet."""

    def __init__(self, config: ClawEvalConfig) -> None:
        self.config = config
        self.train, self.test = self._load(config)

    @staticmethod
    def _load(config: ClawEvalConfig) -> tuple[list[Task], list[Task]]:
        if config.tasks == "families":
            found, _ = synthesise(families_of(config.families), config.variants)
            return found["train"], found["test"]
        directory = Path(config.tasks)
        if not directory.is_dir():
            raise TaskFileError(f"env.claw_eval.tasks is '{config.tasks}', neither families nor a directory; mend: make one "
                                f"with launch/data.py claw-eval synthesize --out {config.tasks}")
        return read_splits(directory, "launch/data.py claw-eval synthesize")

    def make(self) -> ClawEvalEnvironment:
        return ClawEvalEnvironment(self.config.max_turns, self.config.fault_rate)

    async def close(self) -> None:
        """Nothing is held open."""
