"""The intervention as a step policy: draft -> Validator -> Corrector -> Verifier -> guards -> gate -> turn.

Keeps invariants 3 and 4: an accepted correction carries two log-probabilities of the same weights, under the rollout prompt
(gate, ratio) and under the correction prompt (weight); evidence goes into role prompts only. Whatever a role answers, the
episode goes on: without an accepted correction the step is the draft, as sampled.
"""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np

from rti.chat.base import ChatFormat
from rti.chat.lab import LabChatFormat
from rti.config.schema import InterventionConfig, RoleConfig, RolloutConfig
from rti.control.seeds import derive
from rti.engines.base import Engine, EngineError, PromptTooLong, SamplingParams, Scores
from rti.mas import gate, guards
from rti.mas.players import EndpointPlayer, Player, PolicyPlayer, Prompt, RulePlayer
from rti.mas.prompts import PromptPack, load_pack
from rti.mas.roles import Correction, RoleContext, Validation, Verdict
from rti.mas.rules import load_rules
from rti.rollout import AgentStep, PlainPolicy, StepContext, StepPolicy
from rti.trajectory import Intervention, Message, Source

RESCORE_WAITS_S = (0.0, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Both scorings must be of the same weights. Where they are not (weights were loaded in between, or replicas load them one
after another), both are made again after these waits; when they run out it is a fault."""


class InterventionPolicy:
    """A StepPolicy. `verifier` None: no Verifier."""

    def __init__(self, engine: Engine, chat: ChatFormat, sampling: SamplingParams, config: InterventionConfig, pack: PromptPack,
                 validator: Player, corrector: Player, verifier: Player | None):
        self._engine, self._chat, self._sampling, self._config, self._pack = engine, chat, sampling, config, pack
        self._validator, self._corrector, self._verifier = validator, corrector, verifier
        self._plain = PlainPolicy(engine, chat, sampling)

    async def act(self, ctx: StepContext) -> AgentStep:
        draft = await self._plain.act(ctx)
        role = RoleContext(tools=ctx.tools, history=ctx.messages, draft=draft.message, evidence=ctx.task.evidence)
        record = Intervention(outcome="valid", draft=draft.message)
        corrected = await self._intervene(ctx, role, record)
        step = draft if corrected is None else corrected
        return msgspec.structs.replace(step, intervention=record)

    async def close(self) -> None:
        for player in (self._validator, self._corrector, self._verifier):
            if player is not None:
                await player.close()

    async def _intervene(self, ctx: StepContext, role: RoleContext, record: Intervention) -> AgentStep | None:
        """The accepted correction as a step, or None to go on with the draft. Fills `record` as it goes."""
        validation = await self._validate(ctx, role, record)
        if validation is None:
            return None
        role = msgspec.structs.replace(role, validation=validation)
        correction = await self._correct(ctx, role, record)
        if correction is None:
            return None
        turn_ids, message = correction
        role = msgspec.structs.replace(role, correction=message)
        if not await self._verified(ctx, role, record) or not self._guarded(ctx, role, record, turn_ids):
            return None
        return await self._score(ctx, role, record, turn_ids, message)

    async def _validate(self, ctx: StepContext, role: RoleContext, record: Intervention) -> Validation | None:
        """The Validator's objection; None where it has none, or could not be read."""
        validation = await self._validator.ask(role, derive(ctx.seed, "validator"))
        if not isinstance(validation, Validation):
            return _malformed(record, "validator")
        record.diagnosis, record.error_types = validation.diagnosis, validation.error_types
        record.suggest_next = validation.suggest_next
        return None if validation.is_valid else validation

    async def _correct(self, ctx: StepContext, role: RoleContext, record: Intervention) -> tuple[list[int], Message] | None:
        """The correction as a turn in the rollout format, and as it will be read from that turn."""
        correction = await self._corrector.ask(role, derive(ctx.seed, "corrector"))
        if not isinstance(correction, Correction):
            return _malformed(record, "corrector")
        wanted = correction.message()
        if not wanted.tool_calls and not wanted.content.strip() or _same(wanted, role.draft):
            record.outcome = "no_correction"
            return None
        turn_ids = [int(i) for i in self._chat.encode_turn(wanted)]
        message = self._chat.parse(turn_ids, ctx.tools)
        if not _same(message, wanted, reasoning=True):
            return _malformed(record, "corrector")      # the format cannot say it: what would run is not what was meant
        record.correction = message
        return turn_ids, message

    async def _verified(self, ctx: StepContext, role: RoleContext, record: Intervention) -> bool:
        if self._verifier is None:
            return True
        verdict = await self._verifier.ask(role, derive(ctx.seed, "verifier"))
        if not isinstance(verdict, Verdict):
            _malformed(record, "verifier")
            return False
        record.verifier_ok, record.verifier_reasons, record.verifier_diagnosis = verdict.ok, verdict.reasons, verdict.diagnosis
        if not verdict.ok:
            record.outcome = "refused_verifier"
        return verdict.ok

    def _guarded(self, ctx: StepContext, role: RoleContext, record: Intervention, turn_ids: list[int]) -> bool:
        """The guards; a turn longer than the policy itself could write is refused also where they are switched off."""
        guard = "length" if len(turn_ids) > ctx.max_tokens else ""
        if not guard and self._config.guards and role.correction is not None:
            guard = guards.refusal(role.correction, role.history, role.tools, role.evidence)
        if guard:
            self._refuse(record, guard)
        return not guard

    def _refuse(self, record: Intervention, guard: str) -> None:
        record.outcome, record.guard = "refused_guard", guard

    async def _score(self, ctx: StepContext, role: RoleContext, record: Intervention, turn_ids: list[int],
                     message: Message) -> AgentStep | None:
        """The gate, then the weights. Both scorings are of the same weights, at the rollout's temperature."""
        asked = self._chat.render(self._pack.corrector(msgspec.structs.replace(role, correction=None)), ())
        temperature = self._sampling.temperature or 1.0     # greedy sampling reports log-probabilities of temperature 1
        for wait_s in RESCORE_WAITS_S:
            try:
                roll = await self._engine.score(ctx.prompt_ids, turn_ids, temperature)
            except PromptTooLong:
                return self._refuse(record, "length")
            record.ppl_roll = gate.perplexity(roll.logps)
            if not gate.keeps(record.ppl_roll, self._config.delta):
                record.outcome = "refused_gate"
                return None
            try:
                cal = await self._engine.score(asked, turn_ids, temperature)
            except PromptTooLong:
                return _malformed(record, "corrector")
            if roll.version == cal.version:
                record.outcome = "accepted"
                return self._step(turn_ids, message, roll, cal)
            await asyncio.sleep(wait_s)
        raise EngineError(f"{len(RESCORE_WAITS_S)} scorings of one correction never found the same weights twice: a generator "
                          "does not get the newest ones, or they change faster than a step takes")

    def _step(self, turn_ids: list[int], message: Message, roll: Scores, cal: Scores) -> AgentStep:
        ids = np.asarray(turn_ids, np.int32)
        weights = gate.weights(cal.logps, roll.logps, self._config.weight_eps)
        return AgentStep(
            token_ids=ids, behaviour_logps=np.asarray(roll.logps, np.float32),
            correction_logps=np.asarray(cal.logps, np.float32),
            weights=weights if self._config.reweight else np.ones(len(ids), np.float32),
            versions=np.full(len(ids), roll.version, np.int32), source=Source.CORRECTION, finish_reason="stop", message=message,
        )


def _malformed(record: Intervention, role: str) -> None:
    record.outcome, record.malformed = f"{role}_malformed", [*record.malformed, role]


def _same(a: Message, b: Message, reasoning: bool = False) -> bool:
    """Whether two turns do the same, call ids and surrounding white space aside; with `reasoning`, also say the same."""
    def calls(m: Message) -> list[tuple[str, dict, str]]:
        return [(c.name, c.arguments, c.error) for c in m.tool_calls]

    return calls(a) == calls(b) and a.content.strip() == b.content.strip() and (
        not reasoning or a.reasoning.strip() == b.reasoning.strip())


def build_pipeline(config: InterventionConfig, env_name: str, engine: Engine, chat: ChatFormat, rollout: RolloutConfig,
                   teacher: Engine | None = None) -> StepPolicy:
    """The pipeline as the configuration asks for it. Raises ValueError where a role cannot be played as asked. Drafts, the gate
    and the weights are the policy's, whoever plays the roles."""
    pack = load_pack(config.prompts, env_name, "lab" if isinstance(chat, LabChatFormat) else "")
    sampling = SamplingParams(max_tokens=rollout.max_tokens, temperature=rollout.temperature, top_p=rollout.top_p,
                              stop_token_ids=tuple(chat.stop_token_ids))

    def player(role: str, how: RoleConfig, prompt: Prompt) -> Player:
        if how.player == "policy":
            return PolicyPlayer(role, how, prompt, engine, chat)
        if how.player == "teacher":
            if teacher is None:
                raise ValueError(f"intervention.{role} is played by the teacher, and there is none: name one in teacher.path")
            return PolicyPlayer(role, how, prompt, teacher, chat)
        if how.player == "endpoint":
            return EndpointPlayer(role, how, prompt)
        if how.player == "rules":
            return RulePlayer(role, load_rules(env_name))
        raise ValueError(f"intervention.{role}: player {how.player!r} is not one of policy, teacher, endpoint, rules")

    return InterventionPolicy(
        engine, chat, sampling, config, pack, validator=player("validator", config.validator, pack.validator),
        corrector=player("corrector", config.corrector, pack.corrector),
        verifier=player("verifier", config.verifier_role, pack.verifier) if config.verifier else None,
    )
