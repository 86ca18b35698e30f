"""A training run from configuration to summary.json: what launch/rti.py calls.

Begins or resumes the run directory, has the actors made, hands both to the controller, and turns signals into a stop that
loses nothing: a first SIGTERM or SIGINT saves a checkpoint and ends with exit code 0, a second one ends at once.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable

from rti.actors.build import Parts, build, cpus_of
from rti.actors.cluster import Cluster
from rti.actors.controller import Actors, Controller
from rti.actors.launching import ToProgress, check_model, check_teacher
from rti.actors.services import check_services
from rti.actors.measure import Meter, tree_gb
from rti.config.keys import ConfigError
from rti.config.schema import Config
from rti.evaluation import table
from rti.learner.checkpoint import newest_whole, problem_of, step_of
from rti.run import control
from rti.run.directory import SUMMARY, RunDirectory, is_run, summary
from rti.run.progress import Progress, open_progress

ECHO_S = 1.0
"""A second signal within this time is the first one once more: a wrapper passes on what the terminal sends to all."""


def train(config: Config, resume: str = "auto") -> int:
    """Run to the end, or to a signal; the process's exit code. Raises what a user can mend, with a message that says how."""
    check_model(config.model)
    check_teacher(config)
    check_services(config)
    config, wanted = _place(config, resume)
    run_dir = Path(config.run_dir)
    with RunDirectory.open(run_dir, config, resume=resume != "never") as run:
        control.restore(run_dir, config)
        checkpoint = wanted or (newest_whole(run.checkpoints) if run.resumed else None)
        done = step_of(checkpoint) if checkpoint else 0
        if wanted is None and done >= config.steps and (run_dir / SUMMARY).is_file():
            print(f"{run_dir} is complete: {done} steps. --resume never begins anew (this run is moved aside); a larger "
                  "steps=N goes on with it.\n" + _report(run_dir))
            return 0
        with open_progress(config.steps, done=done) as progress, ToProgress(progress).instead_of_stderr():
            if run.resumed:
                progress.note(f"going on from {checkpoint.name if checkpoint else 'the start: no checkpoint was whole yet'}")
            finished = asyncio.run(_train(config, run, checkpoint, progress))
        if not finished:
            print(f"stopped after step {run.step} of {config.steps}. To go on: the same command again (--resume auto).")
            return 0
    print(_report(run_dir))
    print(_next(run_dir, _write_report(run_dir) if config.records.report else ""))
    return 0


def _write_report(run_dir: Path) -> str:
    """Write report.html, and where it is; "" where it could not be written. The run is whole without it."""
    from rti.report.page import write       # plots and tokenizers: nothing that the run itself needs
    try:
        return str(write([run_dir]))
    except Exception as e:      # whatever a report stumbles over, it must not turn a finished run into a failed one
        print(f"The report could not be written ({type(e).__name__}: {e}); `python launch/report.py {run_dir}` tries again.",
              file=sys.stderr)
        return ""


def _next(run_dir: Path, page: str) -> str:
    """The last line: what happened and what to do next."""
    look = f"open {page}" if page else f"`python launch/report.py {run_dir}` makes a page of it"
    return f"The run is complete. Next: {look}; `python -m rti.run.show {run_dir}` lists its rollouts."


def _place(config: Config, resume: str) -> tuple[Config, Path | None]:
    """The configuration with the run directory spelt out, and the checkpoint that `resume` names."""
    config = copy.deepcopy(config)
    named = Path(config.run_dir or f"runs/{config.name}").resolve()
    config.run_dir = str(named)
    if resume in ("auto", "never"):
        return config, None
    path = Path(resume).resolve()
    if is_run(path):
        run_dir, checkpoint = path, newest_whole(path / "checkpoints")
        if checkpoint is None:
            raise ConfigError(f"--resume {resume}: that run has no whole checkpoint; --resume auto begins it anew")
    else:
        run_dir, checkpoint = path.parent.parent, path
        problem = problem_of(path)
        if problem is not None:
            raise ConfigError(f"--resume {resume}: not a whole checkpoint ({problem}). Give a directory like "
                              "runs/NAME/checkpoints/step-000010, a run's directory, or auto")
        if not is_run(run_dir):
            raise ConfigError(f"--resume {resume}: a run resumes where its records are, and {run_dir} is no run's directory")
    if run_dir != named:
        raise ConfigError(f"--resume {resume} is of the run in {run_dir}, but the configuration says {named}. Add "
                          f"run_dir={run_dir} to go on with that run")
    return config, checkpoint


async def _train(config: Config, run: RunDirectory, checkpoint: Path | None, progress: Progress) -> bool:
    stopper = Stopper()
    progress.stage("starting Ray")
    cluster = await asyncio.to_thread(Cluster.connect, config.ray, cpus_of(config, training=True))
    try:
        with stopper:
            progress.stage("starting the actors")
            parts = await stopper.unless_stopped(build(cluster, config, run.path))
            if parts is None:
                return False
            meter = Meter(memory=tree_gb)
            actors = _actors(parts)
            controller = Controller(config, actors, parts.tasks, run, progress, intervenes=parts.intervenes,
                                    meter=meter)
            stopper.then(controller.stop)
            finished = await controller.run(checkpoint)
        if finished:
            last = run.evaluation(run.step) if config.evaluation.after else None
            run.write_summary(summary(run, before=run.evaluation(0), after=last, peak_gb=meter.peak_gb,
                                      restarts=actors.restarts))
        return finished
    finally:
        cluster.close()


def _actors(parts: Parts) -> Actors:
    assert parts.interveners is not None and parts.buffer is not None and parts.learner is not None
    return Actors(workers=parts.workers, interveners=parts.interveners, generators=parts.fleet, buffer=parts.buffer,
                  learner=parts.learner, keepers=parts.keepers, teachers=parts.teachers)


class Stopper:
    """Turns the first SIGTERM or SIGINT into a stop; a second one ends the process at once, by the system's own hand: an
    exception out of nowhere would leave the event loop waiting for what it broke."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._asked_at = 0.0
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Stopper:
        for number in (signal.SIGTERM, signal.SIGINT):      # after Ray, which sets a handler of its own
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(self, *exc: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def then(self, stop: Callable[[], None]) -> None:
        """What to call on a signal from now on."""
        self._stop = stop
        if self._asked.is_set():
            stop()

    async def unless_stopped(self, work: Any) -> Any:
        """The result of `work`, or None where a signal came first."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for left in (task, asked):
                left.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)

    def _on_signal(self, number: int) -> None:
        if self._asked.is_set():
            if time.monotonic() - self._asked_at > ECHO_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        print(f"{signal.Signals(number).name}: stopping at the next point where nothing is lost; once more ends at once",
              file=sys.stderr, flush=True)
        self._asked_at = time.monotonic()
        self._asked.set()
        self._stop()


def _report(run_dir: Path) -> str:
    """What a person wants to see at the end."""
    result = json.loads((run_dir / SUMMARY).read_text())
    lines = [table({side: result[side] for side in ("before", "after")}), "",
             f"{result['steps']} steps, {result['groups_failed']} groups failed, {result['groups_rescued']} of them were "
             f"rescued; {result['wall_s']:.0f} s, {result['peak_gb']:.1f} GB" + _losses(result["restarts"]),
             f"records: {run_dir}    plots: tensorboard --logdir {run_dir / 'tensorboard'}"]
    return "\n".join(lines)


def _losses(restarts: int) -> str:
    return f"; {restarts} lost actors came back" if restarts > 1 else "; one lost actor came back" if restarts else ""
