"""One episode: environment x chat format x step policy -> Trajectory. Plain asyncio, no Ray, no torch.

Keeps invariants 1 and 2: the ids of a turn are those that the engine sampled (or, for an accepted correction, those that were
scored), everything else is CONTEXT, and each trained token brings its own log-probability, version and weight. Faults become
`Ending`s: what is the agent's doing ends with a reward, what is the environment's or the infrastructure's ends without samples.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Callable, Protocol, Sequence

import msgspec
import numpy as np

from rti.branching import Root, replay
from rti.chat import ChatFormat, next_prompt
from rti.config.schema import RolloutConfig
from rti.control.seeds import derive
from rti.engines.base import Engine, EngineError, PromptTooLong, SamplingParams
from rti.envs.base import Environment, EnvironmentFault, Task
from rti.trajectory import Branch, Ending, Intervention, Message, Sample, Source, Step, ToolSchema, Trajectory

log = logging.getLogger(__name__)


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a step policy sees. Only an intervention pipeline may read `task.evidence`."""

    messages: list[Message]         # the history, first turn's prompt included
    tools: Sequence[ToolSchema]
    prompt_ids: list[int]           # the rollout prompt of this step
    task: Task
    turn: int
    seed: int                       # of this turn
    max_tokens: int                 # what the turn limit and the context leave for the reply

    def __repr__(self) -> str:
        return f"StepContext(task={self.task.id!r}, turn={self.turn})"    # no evidence in a traceback


class AgentStep(msgspec.Struct, frozen=True, kw_only=True):
    """One agent turn with its per-token records, all of the length of `token_ids`."""

    token_ids: np.ndarray           # int32
    behaviour_logps: np.ndarray     # float32, under the rollout prompt
    correction_logps: np.ndarray    # float32, NaN unless source is CORRECTION
    weights: np.ndarray             # float32
    versions: np.ndarray            # int32
    source: Source
    finish_reason: str              # stop | length
    message: Message
    intervention: Intervention | None = None


class StepPolicy(Protocol):
    """Gives the agent's next turn. May raise EngineError (run again) and PromptTooLong (truncated)."""

    async def act(self, ctx: StepContext) -> AgentStep: ...

    async def close(self) -> None: ...


class PlainPolicy:
    """The policy itself: one generation per turn. `sampling.seed` is not used; the turn's is."""

    def __init__(self, engine: Engine, chat: ChatFormat, sampling: SamplingParams):
        self._engine, self._chat = engine, chat
        self._sampling = msgspec.structs.replace(
            sampling, stop_token_ids=sampling.stop_token_ids or tuple(chat.stop_token_ids))

    async def act(self, ctx: StepContext) -> AgentStep:
        room = min(self._sampling.max_tokens, ctx.max_tokens)
        params = msgspec.structs.replace(self._sampling, max_tokens=room, seed=ctx.seed)
        reply = await self._engine.generate(ctx.prompt_ids, params)
        n = len(reply.token_ids)
        return AgentStep(
            token_ids=np.asarray(reply.token_ids, np.int32), behaviour_logps=np.asarray(reply.logps, np.float32),
            correction_logps=np.full(n, np.nan, np.float32), weights=np.ones(n, np.float32),
            versions=np.asarray(reply.versions, np.int32), source=Source.POLICY, finish_reason=reply.finish_reason,
            message=self._chat.parse(reply.token_ids.tolist(), ctx.tools),
        )

    async def close(self) -> None:
        """Nothing: the engine belongs to the caller."""


class _SampleBuilder:
    """One training sequence in the making. Context is held back until a turn follows it, so a sample ends with a turn."""

    def __init__(self, prompt_ids: Sequence[int]):
        self._pending = list(prompt_ids)
        self._ids: list[np.ndarray] = []
        self._columns: dict[str, list[np.ndarray]] = {
            k: [] for k in ("sources", "behaviour_logps", "correction_logps", "weights", "versions", "turns")}
        self.trained = False

    def add_context(self, ids: Sequence[int]) -> None:
        self._pending += ids

    def add_turn(self, step: AgentStep, turn: int) -> None:
        n = len(self._pending)
        if n:
            zeros, nothing = np.zeros(n, np.float32), np.full(n, -1)
            self._put(np.asarray(self._pending, np.int32), np.full(n, Source.CONTEXT), zeros, np.full(n, np.nan), zeros,
                      nothing, nothing)
            self._pending = []
        # a token whose log-probability the engine could not give is in no loss and no denominator
        known = np.isfinite(step.behaviour_logps)
        if step.source == Source.CORRECTION:
            known &= np.isfinite(step.correction_logps)
        self.trained |= bool(known.any())
        self._put(step.token_ids, np.where(known, step.source, Source.CONTEXT), np.where(known, step.behaviour_logps, 0),
                  np.where(known, step.correction_logps, np.nan), np.where(known, step.weights, 0),
                  np.where(known, step.versions, -1), np.where(known, turn, -1))

    def _put(self, ids: np.ndarray, *columns: np.ndarray) -> None:
        self._ids.append(ids)
        for rows, column in zip(self._columns.values(), columns, strict=True):
            rows.append(column)

    def build(self) -> Sample:
        dtypes = {"sources": np.uint8, "versions": np.int32, "turns": np.int16}
        columns = {k: np.concatenate(rows).astype(dtypes.get(k, np.float32)) for k, rows in self._columns.items()}
        sample = Sample(token_ids=np.concatenate(self._ids).astype(np.int32), **columns)
        sample.check()
        return sample


class _Episode:
    """The state of one episode: history, prompt, samples, steps."""

    def __init__(self, chat: ChatFormat, tools: Sequence[ToolSchema], prompt: list[Message]):
        self.chat, self.tools, self.prompt = chat, tools, prompt
        self.history = list(prompt)
        self.steps: list[Step] = []
        self.prompt_ids = list(chat.render(self.history, tools))
        self._builders = [_SampleBuilder(self.prompt_ids)]

    def add_turn(self, step: AgentStep) -> None:
        self._builders[-1].add_turn(step, len(self.steps))
        self.history.append(step.message)
        self.steps.append(Step(message=step.message, n_tokens=len(step.token_ids), finish_reason=step.finish_reason,
                               intervention=step.intervention))

    def add_observations(self, step: AgentStep, observations: list[Message]) -> None:
        self.steps[-1].observations = list(observations)
        self.history += observations
        so_far = self.prompt_ids + step.token_ids.tolist()
        self.prompt_ids, extends = next_prompt(self.chat, self.history, self.tools, so_far)
        if extends:
            self._builders[-1].add_context(self.prompt_ids[len(so_far):])
        else:
            self._builders.append(_SampleBuilder(self.prompt_ids))

    def add_recorded(self, message: Message, finish_reason: str, sample: Sample, at: np.ndarray) -> None:
        """A turn of another episode: its own tokens and records, at `at` of its sample."""
        self._recorded = AgentStep(
            token_ids=sample.token_ids[at], behaviour_logps=sample.behaviour_logps[at],
            correction_logps=sample.correction_logps[at], weights=sample.weights[at], versions=sample.versions[at],
            source=Source.POLICY, finish_reason=finish_reason, message=message)
        self.add_turn(self._recorded)

    def add_replies(self, messages: list[Message]) -> None:
        """What the environment answered to a turn of another episode."""
        self.add_observations(self._recorded, messages)

    def samples(self) -> list[Sample]:
        return [b.build() for b in self._builders if b.trained]


async def run_episode(
    task: Task, env: Environment, policy: StepPolicy, chat: ChatFormat, *, id: str, group_id: str, seed: int,
    limits: RolloutConfig, temperature: float, intervened: bool = False, clock: Callable[[], float] = time.monotonic,
    root: Root | None = None,
) -> Trajectory:
    """Run one episode and close the environment, whatever happens. `root`: take the turns before it from another episode.

    Raises FatalEnvironmentError (the run cannot go on); every other fault that is meant to be survived is the trajectory's
    `ending`. An episode that is to be run again has no samples, so that it cannot be trained on by mistake.
    """
    started = clock()
    result = Trajectory(id=id, group_id=group_id, task_id=task.id, task_class=task.cls, intervened=intervened,
                        temperature=temperature, seed=seed, evidence=task.evidence)
    try:
        async with asyncio.timeout(limits.timeout_s) as limit:
            await _play(result, task, env, policy, chat, limits, root)
    except EnvironmentFault as fault:
        lose(result, Ending.ENVIRONMENT, fault)
    except EngineError as fault:
        lose(result, Ending.INFRASTRUCTURE, fault)
    except TimeoutError as fault:
        if not limit.expired():
            raise
        lose(result, Ending.INFRASTRUCTURE, fault, f"the episode took longer than rollout.timeout_s = {limits.timeout_s:g} s")
    finally:
        await _close(env, id)
    result.wall_s = clock() - started
    return result


def lose(result: Trajectory, ending: Ending, fault: Exception, why: str = "") -> None:
    """Mark an episode as one to be run again: no samples, no reward."""
    result.ending, result.samples, result.reward, result.success = ending, [], 0.0, False
    result.info = {"fault": f"{type(fault).__name__}: {why or fault}"}
    log.warning("episode %s is lost (%s) and will be run again: %s", result.id, ending, type(fault).__name__)


async def _close(env: Environment, id: str) -> None:
    """Close the environment even while this task is being cancelled; a fault in closing does not undo the episode."""
    try:
        await asyncio.shield(env.close())
    except EnvironmentFault as fault:
        log.warning("episode %s: the environment did not close cleanly: %s", id, type(fault).__name__)


async def _play(result: Trajectory, task: Task, env: Environment, policy: StepPolicy, chat: ChatFormat,
                limits: RolloutConfig, root: Root | None) -> None:
    """Take turns until the environment or a limit ends the episode; fills `result`."""
    episode = await _branched(result, task, env, chat, root) if root is not None else None
    if episode is None:
        episode = await _fresh(result.seed, task, env, chat)
    result.prompt, result.tools = list(episode.prompt), [t.name for t in env.tools]
    result.steps = episode.steps            # shared, so that a lost episode still shows how far it came
    ending = await _turns(episode, result.seed, task, env, policy, limits)
    if ending in (Ending.COMPLETED, Ending.TURN_LIMIT):
        outcome = await env.outcome()
        result.reward, result.success, result.info = outcome.reward, outcome.success, outcome.info
    result.ending, result.samples = ending, episode.samples()


async def _fresh(seed: int, task: Task, env: Environment, chat: ChatFormat) -> _Episode:
    prompt = await env.reset(task, derive(seed, "environment"))
    return _Episode(chat, env.tools, list(prompt))


async def _branched(result: Trajectory, task: Task, env: Environment, chat: ChatFormat, root: Root) -> _Episode | None:
    """The episode as it was at the root; None where the environment does not get there again. Says so on `result`."""
    episode = await _fresh(root.parent.seed, task, env, chat)
    why = await replay(episode, env, root)
    result.branch = Branch(parent=root.parent.id, turn=root.turn, dropped=why)
    return None if why else episode


async def _turns(episode: _Episode, seed: int, task: Task, env: Environment, policy: StepPolicy,
                 limits: RolloutConfig) -> Ending:
    for turn in range(len(episode.steps), env.max_turns):
        room = min(limits.max_tokens, limits.max_context - len(episode.prompt_ids))
        if room < 1:
            return Ending.TRUNCATED
        ctx = StepContext(messages=list(episode.history), tools=env.tools, prompt_ids=list(episode.prompt_ids), task=task,
                          turn=turn, seed=derive(seed, "turn", turn), max_tokens=room)
        try:
            step = await policy.act(ctx)
        except PromptTooLong:
            return Ending.TRUNCATED
        episode.add_turn(step)
        if all(int(t) in episode.chat.stop_token_ids for t in step.token_ids):
            return Ending.EMPTY_REPLY
        if step.finish_reason == "length" and not _can_run(step.message):
            return Ending.TRUNCATED
        came = await env.step(step.message)
        if came.done:
            episode.steps[-1].observations = list(came.messages)
            return Ending.COMPLETED
        if turn + 1 < env.max_turns:
            episode.add_observations(step, came.messages)
        else:
            episode.steps[-1].observations = list(came.messages)
    return Ending.TURN_LIMIT


def _can_run(message: Message) -> bool:
    """Whether a reply that was cut by the length limit is whole where it matters: it has calls, and all can be read."""
    return bool(message.tool_calls) and not any(c.error for c in message.tool_calls)
