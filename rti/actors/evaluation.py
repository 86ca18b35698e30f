"""An evaluation without training: what launch/eval.py calls."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

from rti.actors.build import build, cpus_of
from rti.actors.cluster import Cluster
from rti.actors.episodes import EpisodeRunner
from rti.actors.evaluator import evaluate as run_evaluation
from rti.actors.launching import ToProgress, check_model
from rti.actors.official_results import OfficialResults
from rti.actors.services import check_services
from rti.config.keys import ConfigError
from rti.config.schema import Config
from rti.evaluation import summarise
from rti.learner.checkpoint import newest_whole, problem_of
from rti.run.directory import is_run
from rti.run.progress import Progress, open_progress


def evaluate(config: Config, checkpoint: str = "", samples: int = 0) -> dict[str, Any]:
    """pass@k and pass^k of the configured policy, or of a checkpoint, as summary.json holds them."""
    config = copy.deepcopy(config)
    config.evaluation.samples = samples or config.evaluation.samples
    if checkpoint:
        config.model.path = str(policy_in(checkpoint))
    check_model(config.model)
    check_services(config)
    with open_progress(0) as progress, ToProgress(progress).instead_of_stderr():
        return asyncio.run(_evaluate(config, progress))


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


async def _evaluate(config: Config, progress: Progress) -> dict[str, Any]:
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
        return summarise(results, samples=config.evaluation.samples, seed=config.seed)
    finally:
        cluster.close()
