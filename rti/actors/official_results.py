"""What an evaluation writes besides its own numbers: for τ²-Bench, a results file that the official tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Sequence

from rti.config.schema import Config
from rti.trajectory import Trajectory

RESULTS = "tau2-results.json"


def evaluation_directory(config: Config) -> Path:
    """<run_dir>-evaluation: beside the run's directory, which holds what the run itself writes."""
    place = Path(config.run_dir or f"runs/{config.name}")
    return place.with_name(f"{place.name}-evaluation")


class OfficialResults:
    """Collects the official records of an evaluation's trajectories. Does nothing for other environments."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._wanted = config.env.name == "tau2" and not config.env.class_
        self._runs: dict[str, list[Any]] = {}

    @property
    def path(self) -> Path:
        return evaluation_directory(self._config) / RESULTS

    def keep(self, trajectories: Sequence[Trajectory]) -> None:
        for t in trajectories:
            if self._wanted:
                from rti.envs.tau2.results import cut_short
                self._runs.setdefault(t.task_id, []).append(t.info.get("simulation") or cut_short(t))

    def write(self, tell: Callable[[str], None]) -> None:
        if not self._runs:
            return
        from rti.envs.tau2.domain import load_domain
        from rti.envs.tau2.results import write_results
        from rti.envs.tau2.taskset import rti_task
        config = self._config.env.tau2
        domain = load_domain(config.domain, config.data_dir)
        tasks = [rti_task(domain, t, "test") for t in domain.tasks("base") if t.id in self._runs]
        write_results(self.path, config, tasks, self._runs, model=self._config.model.path,
                      trials=self._config.evaluation.samples, seed=self._config.seed)
        tell(f"official results of {len(self._runs)} tasks: {self.path}")
