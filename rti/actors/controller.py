"""The controller: admits groups, has them run, takes steps, publishes weights, keeps the records. Plain asyncio, no Ray.

Keeps invariants 5, 6 and 7 together with rti.control.plan, which decides; here is what the decisions lead to. Every actor is
behind a small client, so that the same code runs against fakes in tests and in the simulation. Synchronous mode is not a mode
here: with max_staleness 0 there are just as many slots as one step consumes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Awaitable, Coroutine, Protocol, Sequence, TypeVar

from rti.actors.episodes import EpisodeRunner
from rti.actors.evaluator import evaluate
from rti.actors.fleet import Fleet
from rti.actors.groups import GroupMaker, facts_of
from rti.actors.keeper import Keeper
from rti.actors.measure import Meter
from rti.actors.messages import StepReport, TaskIndex
from rti.actors.pool import Pool
from rti.config.schema import Config
from rti.config.teacher import judges
from rti.control.faults import ActorGone, LearnerLost, StepInterrupted
from rti.control.order import TaskOrder, Ticket
from rti.control.plan import Entry, Phase, Plan, Voided
from rti.control.retry import idle
from rti.control.store import Facts
from rti.evaluation import summarise
from rti.learner.checkpoint import newest_whole, prune, step_directory
from rti.run import control
from rti.run.directory import RunDirectory, evaluation_metrics
from rti.run.ledger import DROPPED, PASSED, VOIDED, LedgerEntry, entry_for, voided
from rti.run.progress import Progress
from rti.run.statistics import group_metrics, ledger_metrics
from rti.trajectory import Group, decode, encode

log = logging.getLogger(__name__)
T = TypeVar("T")
OBEY_S = 1.0
"""How often requests of `python -m rti.run.control` are looked for."""


class BufferClient(Protocol):
    """The replay buffer. Survives the death of its actor: every call is idempotent and asked again."""

    restarts: int

    async def put(self, facts: Facts, data: bytes) -> bool: ...
    async def lease(self, step: int, group_ids: Sequence[str]) -> list[bytes]: ...
    async def commit(self, step: int, group_ids: Sequence[str]) -> None: ...
    async def void(self, group_ids: Sequence[str]) -> None: ...
    async def resume(self, step: int, version: int) -> list[Facts]: ...
    async def stats(self) -> dict[str, int]: ...


class LearnerClient(Protocol):
    """All ranks of the learner. Any call may raise LearnerLost; `start` then makes new ranks."""

    async def start(self, checkpoint: Path | None) -> tuple[int, dict[str, Any] | None]:
        """Make the ranks, load the checkpoint (None: the policy that the configuration names); version and `extra`."""
        ...

    async def step(self, groups: list[bytes], step: int) -> StepReport: ...

    async def interrupt(self, step: int) -> None:
        """Have the `step` under way end soon: it raises StepInterrupted and has changed nothing, unless it ends before."""
        ...

    async def weights(self) -> Any:
        """A handle to the weights for the engines."""
        ...

    async def save(self, path: Path, extra: dict[str, Any]) -> None:
        """Begin a checkpoint; returns when training may go on."""
        ...

    async def wait_saved(self) -> None: ...


@dataclass
class Actors:
    """What the controller controls."""

    workers: Pool[Any]
    interveners: Pool[Any]
    generators: Fleet
    buffer: BufferClient
    learner: LearnerClient
    keepers: Sequence[Keeper[Any]] = ()
    teachers: Fleet | None = None
    learner_restarts: int = 0       # the controller's count

    @property
    def restarts(self) -> int:
        """Of all actors since this process began; the learner's ranks come back together and count once."""
        return (self.workers.restarts + self.interveners.restarts + self.generators.restarts + self.buffer.restarts
                + (self.teachers.restarts if self.teachers else 0) + self.learner_restarts)


class Stopped(Exception):
    """Somebody asked the run to stop."""


class Controller:
    """One run. `intervenes`: whether the algorithm has failed groups run again under intervention."""

    def __init__(self, config: Config, actors: Actors, tasks: TaskIndex, run: RunDirectory, progress: Progress, *,
                 intervenes: bool, meter: Meter | None = None, episodes: EpisodeRunner | None = None):
        self._config, self._actors, self._tasks, self._run, self._progress = config, actors, tasks, run, progress
        self._episodes = episodes or EpisodeRunner(config.rollout.retries)
        self._maker = GroupMaker(config, tasks, self._episodes, actors.workers, actors.interveners, intervenes)
        self._meter = meter or Meter()
        self.plan = Plan(TaskOrder(len(tasks.train), config.seed), groups_per_step=config.rollout.groups_per_step,
                         max_staleness=config.async_.max_staleness, steps=config.steps, max_passed=config.algo.dynamic_sampling)
        self._groups: dict[int, asyncio.Task[None]] = {}    # ordinal -> the making of its group
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._failure: asyncio.Future[None] | None = None
        self._voided: list[LedgerEntry] = []
        self._passed: list[tuple[Ticket, LedgerEntry]] = []
        self._best: tuple[float, int] | None = None         # p@1 and step of the best evaluation
        self._saved_step: int | None = None
        self._whole_step = 0        # of the newest checkpoint that is known to be whole; 0: the start
        self._begun = False         # False while the state is being brought up: there is nothing then that a stop could save

    # --- the run -------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Stop at the next point where nothing is lost; `run` then saves and returns False. A learner step under way has half
        of checkpoint.grace_s to end, and is then interrupted."""
        self._stop.set()

    async def run(self, checkpoint: Path | None) -> bool:
        """Train to the last step, from a checkpoint or from the start. False where it was stopped before."""
        self._failure = asyncio.get_running_loop().create_future()
        watching = [self._background(work) for work in (
            self._actors.generators.tend(), self._meter.watch(), self._obey(), self._watch_grace(),
            *(k.tend() for k in self._actors.keepers),
            *([self._actors.teachers.tend()] if self._actors.teachers else []))]
        try:
            return await self._run_to_the_end(checkpoint)
        finally:
            for task in watching:
                task.cancel()
            await self._cancel_groups()
            await self._actors.workers.close()
            await self._actors.interveners.close()
            await asyncio.gather(*watching, return_exceptions=True)
            if self._failure.done():
                self._failure.exception()       # seen, so that asyncio does not report it once more

    async def _run_to_the_end(self, checkpoint: Path | None) -> bool:
        while True:
            try:
                await self._guarded(self._begin(checkpoint), stoppable=True)
                await self._train()
                await self._finish()
                return True
            except Stopped:
                await self._leave()
                return False
            except LearnerLost as loss:
                log.warning("the learner is lost: %s", loss)
                self._actors.learner_restarts += 1
                await self._cancel_groups()
                checkpoint = await asyncio.to_thread(newest_whole, self._run.checkpoints)
                start = checkpoint.name if checkpoint else "the start"
                self._progress.note(f"the learner is lost ({loss}); going on from {start}")

    async def _begin(self, checkpoint: Path | None) -> None:
        """Everything as the checkpoint left it: learner, plan, buffer, records, generators."""
        self._begun = False
        self._progress.stage("loading the learner")
        version, extra = await self._actors.learner.start(checkpoint)
        fresh = Plan(self.plan.order, groups_per_step=self.plan.groups_per_step, max_staleness=self.plan.max_staleness,
                     steps=self.plan.steps)
        self.plan.restore(extra["plan"] if extra else fresh.state())
        if self.plan.version != version:
            raise RuntimeError(f"{checkpoint}: the learner is at version {version}, the plan at {self.plan.version}")
        self._best = tuple(extra["best"]) if extra and extra["best"] else None
        self._saved_step, self._whole_step = self.plan.step if checkpoint else None, self.plan.step
        self._voided.clear()
        self._passed.clear()
        self._run.rewind_to(self.plan.step, self.plan.consumed_ids())
        useless = self.plan.adopt(await self._actors.buffer.resume(self.plan.step, version))
        await self._actors.buffer.void(useless)
        self._progress.stage("loading the generators")
        if self._actors.teachers is not None:
            await self._actors.teachers.publish(None, 0)
        await self._publish()
        self._meter.begin(await self._actors.generators.work())
        self._begun = True

    async def _train(self) -> None:
        if self.plan.step == 0:
            if self._config.evaluation.before:
                await self._evaluation(0)
        elif self._evaluation_due:      # a stop may have come before it was done
            self._run.amend(evaluation_metrics(await self._evaluation(self.plan.step)))
        while not self.plan.finished:
            if self._stop.is_set():
                raise Stopped
            await self._sweep()
            self._admit()
            await self._step(await self._next_batch())

    async def _finish(self) -> None:
        """After the last step: a checkpoint of it, and whole. Nothing is kept in the buffer for steps that will not be."""
        if expired := self.plan.expire():
            await self._guarded(self._actors.buffer.void(expired))
        await self._save()
        await self._guarded(self._actors.learner.wait_saved())
        await self._prune()

    async def _leave(self) -> None:
        """Stopped: what was done so far is saved; groups under way run again after a resume, unless the buffer has them."""
        await self._cancel_groups()
        if not self._begun or not self.plan.step:
            return      # stopped while it was starting, also anew after a loss: a resume goes on from the newest checkpoint
        self._progress.stage("saving a checkpoint")
        try:
            await self._save()
            await self._actors.learner.wait_saved()
        except LearnerLost as loss:
            raise ActorGone(f"stopped, but the last steps could not be saved: {loss}. A resume goes on from the newest whole "
                            f"checkpoint in {self._run.checkpoints}") from loss

    async def _watch_grace(self) -> None:
        """Where a stop takes longer than its grace, say what is lost if the process is now killed; the saving goes on."""
        await self._stop.wait()
        if not self._config.checkpoint.grace_s:
            return
        await asyncio.sleep(self._config.checkpoint.grace_s)
        whole = await asyncio.to_thread(newest_whole, self._run.checkpoints)
        start = whole.name if whole else "the start"
        self._progress.note(f"no checkpoint within {self._config.checkpoint.grace_s:g} s (checkpoint.grace_s); still at it. If "
                            f"the process is killed now, the same command goes on from {start}: the steps since (at most "
                            "checkpoint.every) are run again")

    # --- groups --------------------------------------------------------------------------------------------------
    def _admit(self) -> None:
        for entry in self.plan.admit():
            task = self._background(self._make(entry), name=f"group {entry.ticket.group_id}")
            self._groups[entry.ticket.ordinal] = task

    async def _make(self, entry: Entry) -> None:
        group = await self._maker.make(entry.ticket, entry.admitted_version)
        facts = facts_of(group, self._idle(group), self._config.buffer.reuse)
        await self._actors.buffer.put(facts, encode(group))
        self.plan.ready(entry.ticket, facts.oldest_version, facts.idle, facts.uses)
        self._groups.pop(entry.ticket.ordinal, None)
        self._changed.set()

    def _idle(self, group: Group) -> str:
        """Why the algorithm can learn nothing of a group; empty where it can."""
        return idle(group, self._config.rollout.train_truncated, judges(self._config))

    async def _pass_over(self) -> None:
        """Dynamic sampling: groups that teach nothing go, and others are admitted in their places."""
        gone = self.plan.pass_over()
        if not gone:
            return
        self._passed += [(e.ticket, self._unused(e.ticket, e.age_version, e.idle, PASSED)) for e in gone]
        self._admit()
        await self._guarded(self._actors.buffer.void([e.ticket.group_id for e in gone]))

    async def _sweep(self) -> None:
        """Void what the next step could not consume any more (invariant 6)."""
        if expired := self.plan.expire():
            await self._guarded(self._actors.buffer.void(expired))
        old = self.plan.sweep()
        if not old:
            return
        making = [t for v in old if (t := self._groups.pop(v.ticket.ordinal, None)) is not None]
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        # a group may have reached the buffer in the moment it was voided: out with all of them before they are admitted anew
        await self._guarded(self._actors.buffer.void([v.ticket.group_id for v in old]))
        self._voided += [self._void_entry(v) for v in old]

    def _void_entry(self, void: Voided) -> LedgerEntry:
        why = "too old when it was whole" if void.was_ready else "too old before it was whole"
        return self._unused(void.ticket, void.age_version, why + (", for the last time" if void.dropped else ""),
                            DROPPED if void.dropped else VOIDED)

    def _unused(self, ticket: Ticket, oldest_version: int, reason: str, disposition: str) -> LedgerEntry:
        task = self._tasks.train[ticket.task]
        return voided(ticket.group_id, task.id, step=self.plan.step + 1, learner_version=self.plan.version,
                      oldest_version=oldest_version, reason=reason, disposition=disposition, task_class=task.cls)

    async def _next_batch(self) -> list[Ticket]:
        """The tickets of the next step, once enough groups are ready."""
        need = self.plan.groups_per_step
        with self._meter.time("rollout_s"):
            while True:
                self._changed.clear()       # first: what becomes ready from here on wakes the wait below
                await self._pass_over()
                if (tickets := self.plan.lease()) is not None:
                    return tickets
                self._progress.stage("rollouts", self.plan.count(Phase.READY), need)
                await self._guarded(self._changed.wait(), stoppable=True)

    # --- a step --------------------------------------------------------------------------------------------------
    async def _step(self, tickets: list[Ticket]) -> None:
        """Consume these groups: learn, commit, write down, publish. In this order a death at any point loses no group and
        doubles none: before the next checkpoint is whole, a resume goes back to the one before."""
        step, began_with = self.plan.step + 1, self.plan.version
        again = self.plan.again     # of earlier steps, on top of this one's own
        ids = [t.group_id for t in tickets] + [k.ticket.group_id for k in again]
        data = await self._guarded(self._actors.buffer.lease(step, ids))
        groups = [decode(d, Group) for d in data]
        metrics: dict[str, float] = {}
        version = began_with
        taught = {g.id for g in groups if not self._idle(g)}
        if taught:
            self._progress.stage("learning")
            with self._meter.time("learner_s"):
                report = await self._guarded(self._learn(data, step))
            version, metrics = report.version, report.metrics
        await self._guarded(self._actors.buffer.commit(step, ids))
        self.plan.commit(version)
        uses = [1] * len(tickets) + [k.used + 1 for k in again]
        consumed = [entry_for(g, step=step, learner_version=began_with, trained=g.id in taught, use=use)
                    for g, use in zip(groups, uses)]
        groups, reused = groups[:len(tickets)], groups[len(tickets):]
        passed = [entry for _, entry in sorted(self._passed, key=lambda p: p[0])]   # in plan order, whenever they were ready
        entries = [*self._voided, *passed, *consumed]
        self._voided, self._passed = [], []
        self._run.consume(entries)
        self._run.save_trajectories(step, groups)
        with self._meter.time("publish_s"):
            if version != began_with:
                await self._guarded(self._publish())
            else:
                self.plan.published()
        counted = group_metrics(groups, learner_version=began_with, weight_eps=self._config.intervention.weight_eps,
                                reused=reused)
        metrics = {"learner/version": version, **metrics, **counted, **ledger_metrics(entries)}
        await self._close_step(step, metrics, groups)

    async def _learn(self, data: list[bytes], step: int) -> StepReport:
        """The learner's step. After a stop it has half of the grace to end; then it is interrupted, and this raises Stopped."""
        learning = asyncio.ensure_future(self._actors.learner.step(data, step))
        asked = asyncio.ensure_future(self._stop.wait())
        grace_s = self._config.checkpoint.grace_s
        try:
            await asyncio.wait({learning, asked}, return_when=asyncio.FIRST_COMPLETED)
            if grace_s and not learning.done():
                await asyncio.wait({learning}, timeout=grace_s / 2)
                if not learning.done():
                    await self._actors.learner.interrupt(step)
            return await learning
        except StepInterrupted:
            self.plan.release()
            self._progress.note(f"step {step} was interrupted; the resume runs it again")
            raise Stopped from None
        finally:
            for left in (learning, asked):
                left.cancel()
            await asyncio.gather(learning, asked, return_exceptions=True)

    async def _publish(self) -> None:
        await self._actors.generators.publish(await self._actors.learner.weights(), self.plan.version)
        self.plan.published()

    async def _close_step(self, step: int, metrics: dict[str, float], groups: list[Group]) -> None:
        """Evaluation where one is due, the metrics line, and then the checkpoint that knows of both."""
        stopped = False
        if self._evaluation_due:
            try:
                metrics |= evaluation_metrics(await self._evaluation(step))
            except Stopped:
                stopped = True      # the step itself is whole, and is written down as such
        await self._bound_loss(step)
        trained_tokens = metrics.get("policy/trained_tokens", 0.0)
        metrics |= await self._guarded(self._meter.close(self._actors, self._episodes, groups, trained_tokens))
        self._progress.update(step, self._run.log(step, metrics))
        if stopped:
            raise Stopped
        if self._due(self._config.checkpoint.every) or self.plan.finished or self._best is not None and self._best[1] == step:
            await self._save()

    async def _bound_loss(self, step: int) -> None:
        """Before a step counts as made: a kill must cost no more than checkpoint.every such steps. A checkpoint that is still
        being written may have been overtaken by one step, and by no further one; then it is waited for."""
        every = self._config.checkpoint.every
        if self._saved_step is not None and 0 < every < step - self._whole_step:
            with self._meter.time("checkpoint_s"):
                await self._guarded(self._actors.learner.wait_saved())
            self._whole_step = self._saved_step

    def _due(self, every: int) -> bool:
        return every > 0 and self.plan.step % every == 0

    @property
    def _evaluation_due(self) -> bool:
        return self._due(self._config.evaluation.every) or self.plan.finished and self._config.evaluation.after

    async def _evaluation(self, step: int) -> dict[str, Any]:
        """Of the weights after `step`, which are the present ones; made where it is missing."""
        result = self._run.evaluation(step) or await self._evaluate(step)
        if step and (self._best is None or result["p@1"] > self._best[0]):
            self._best = (result["p@1"], step)
        return result

    async def _evaluate(self, step: int) -> dict[str, Any]:
        with self._meter.time("evaluation_s"):
            results = await self._guarded(evaluate(
                self._config, self._tasks, self._episodes, self._actors.workers,
                lambda done, total: self._progress.stage("evaluating", done, total)), stoppable=True)
            result = summarise(results, samples=self._config.evaluation.samples, seed=self._config.seed)
        self._run.save_evaluation(step, result)
        return result

    async def _save(self) -> None:
        """Begin a checkpoint of the present state; the one before is whole by then, and old ones go."""
        if self._saved_step == self.plan.step:
            return
        with self._meter.time("checkpoint_s"):
            extra = {"plan": self.plan.state(), "best": list(self._best) if self._best else None}
            await self._guarded(self._actors.learner.save(step_directory(self._run.checkpoints, self.plan.step), extra))
            self._whole_step, self._saved_step = self._saved_step or self._whole_step, self.plan.step
            await self._prune()

    async def _prune(self) -> None:
        best = step_directory(self._run.checkpoints, self._best[1]) if self._best else None
        await asyncio.to_thread(prune, self._run.checkpoints, self._config.checkpoint.keep, best)

    # --- tasks in the background -----------------------------------------------------------------------------------
    def _background(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        """Run beside the main line, which ends with the first error of any such task."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_failure)
        return task

    async def _obey(self) -> None:
        """Take what `python -m rti.run.control` asks for into the configuration, from which the keepers read their bounds."""
        while True:
            await asyncio.sleep(OBEY_S)
            for change in await asyncio.to_thread(control.take, self._run.path, self._config, self.plan.step):
                self._progress.note(f"control, {change.who}: {change}")

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._failure is not None
            if not self._failure.done():
                self._failure.set_exception(error)

    async def _guarded(self, work: Awaitable[T], *, stoppable: bool = False) -> T:
        """Wait for `work`, but no longer than until a background task fails or, where `stoppable`, somebody asks to stop."""
        assert self._failure is not None
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, self._failure, stop} if stoppable else {task, self._failure},
                               return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._failure.done():
                raise self._failure.exception() or RuntimeError("a background task failed")
            raise Stopped
        finally:
            for left in (task, stop):
                left.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _cancel_groups(self) -> None:
        making, self._groups = list(self._groups.values()), {}
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)


