"""Evaluation through the same workers as training: n samples of every test task. Knows no Ray.

Keeps field bug 35: seeds come from the task's id and the sample's number, so that evaluating touches no stream of training, and
two evaluations of the same weights give the same numbers.
"""

from __future__ import annotations

from typing import Callable, Sequence

from rti.actors.episodes import EpisodeRunner, Runs
from rti.actors.messages import Order, TaskIndex
from rti.config.schema import Config
from rti.control.concurrency import all_of
from rti.control.seeds import derive
from rti.evaluation import TaskResult
from rti.trajectory import Trajectory


async def evaluate(config: Config, tasks: TaskIndex, episodes: EpisodeRunner, workers: Runs,
                   progress: Callable[[int, int], None] = lambda done, total: None,
                   keep: Callable[[Sequence[Trajectory]], None] = lambda trajectories: None) -> list[TaskResult]:
    """The results in the order of the test tasks. `progress` hears how many episodes of how many are done; `keep` gets the
    trajectories of each task as they come."""
    n = config.evaluation.samples
    chosen = tasks.test[:config.evaluation.tasks or None]
    done = 0

    async def one(index: int) -> TaskResult:
        nonlocal done
        task = chosen[index]
        order = Order(
            group_id=f"eval-{task.id}", split="test", task=index, task_id=task.id, members=tuple(range(n)),
            seeds=tuple(derive(config.seed, "evaluation", task.id, sample) for sample in range(n)),
            temperature=config.evaluation.temperature)
        trajectories = await episodes.run(workers, order)
        keep(trajectories)
        done += n
        progress(done, n * len(chosen))
        return TaskResult(task_id=task.id, cls=task.cls, outcomes=[t.success for t in trajectories])

    progress(0, n * len(chosen))
    return await all_of(one(i) for i in range(len(chosen)))
