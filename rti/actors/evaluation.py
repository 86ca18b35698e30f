"""An evaluation without training: what launch/eval.py calls."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any, Sequence

from rti.actors.build import build, cpus_of
from rti.actors.cluster import Cluster
from rti.actors.episodes import EpisodeRunner
from rti.actors.evaluator import evaluate as run_evaluation
from rti.actors.launching import ToProgress, check_model
from rti.actors.official_results import OfficialResults, evaluation_directory
from rti.actors.services import check_services
from rti.config.keys import ConfigError
from rti.config.schema import Config
from rti.evaluation import TaskResult, summarise
from rti.learner.checkpoint import newest_whole, problem_of
from rti.run.directory import is_run
from rti.run.profile import PROFILE, Profile, TaskProfile, write_profile
from rti.run.progress import Progress, open_progress


def evaluate(config: Config, checkpoint: str = "", samples: int = 0, profile: bool = False) -> dict[str, Any]:
    """pass@k and pass^k of the configured policy, or of a checkpoint, as summary.json holds them. `profile`: how often each
    task was passed is written beside, as rti.run.profile says."""
    config = copy.deepcopy(config)
    config.evaluation.samples = samples or config.evaluation.samples
    if checkpoint:
        config.model.path = str(policy_in(checkpoint))
    check_model(config.model)
    check_services(config, training=False)
    with open_progress(0) as progress, ToProgress(progress).instead_of_stderr():
        return asyncio.run(_evaluate(config, progress, profile))


def policy_in(path: str) -> Path:
    """The Hugging Face directory that a path names: itself, that of a checkpoint, or that of a run's newest checkpoint."""
    given = Path(path).resolve()
    if (given / "config.json").is_file():
        return given
    if is_run(given):
        newest = newest_whole(given / "checkpoints")
        if newest is None:
            raise ConfigError(f"--checkpoint {path}: that run has no whole checkpoint yet")
        return newest / "hf"
    problem = problem_of(given)
    if problem is not None:
        raise ConfigError(f"--checkpoint {path}: neither a Hugging Face directory, nor a run's directory, "
                          f"nor a whole checkpoint ({problem})")
    return given / "hf"


def profile_of(config: Config, results: Sequence[TaskResult]) -> Profile:
    """The results of an evaluation, task by task."""
    return Profile(model=config.model.path, samples=config.evaluation.samples, temperature=config.evaluation.temperature,
                   tasks=[TaskProfile(id=r.task_id, cls=r.cls, samples=len(r.outcomes), passed=sum(r.outcomes), lost=r.lost)
                          for r in results])


async def _evaluate(config: Config, progress: Progress, profile: bool) -> dict[str, Any]:
    progress.stage("starting Ray")
    cluster = await asyncio.to_thread(Cluster.connect, config.ray, cpus_of(config, training=False))
    try:
        progress.stage("starting the actors")
        parts = await build(cluster, config, None)
        assert parts.tasks is not None
        fleet, pool = parts.fleet, parts.workers
        await fleet.publish(None, 0)
        tending = asyncio.create_task(fleet.tend())
        official = OfficialResults(config)
        work = asyncio.create_task(run_evaluation(
            config, parts.tasks, EpisodeRunner(config.rollout.retries), pool,
            lambda done, total: progress.stage("evaluating", done, total), official.keep))
        try:
            await asyncio.wait({tending, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                tending.result()        # it only ever ends with an error
            results = work.result()
        finally:
            for task in (tending, work):
                task.cancel()
            await asyncio.gather(tending, work, return_exceptions=True)
            await pool.close()
        await asyncio.to_thread(official.write, progress.note)
        if profile:
            path = evaluation_directory(config) / PROFILE
            await asyncio.to_thread(write_profile, path, profile_of(config, results))
            progress.note(f"profile of {len(results)} tasks: {path}")
        return summarise(results, samples=config.evaluation.samples, seed=config.seed)
    finally:
        cluster.close()
