"""The intervention step by step: every outcome, the two scorings, and what must never be seen where."""

import logging
import math

import numpy as np
import pytest

from rti.config.schema import InterventionConfig, RoleConfig, RolloutConfig
from rti.engines.base import EngineError, SamplingParams
from rti.mas import gate, prompts
from rti.mas.pipeline import InterventionPolicy, build_pipeline
from rti.mas.players import PolicyPlayer
from rti.rollout import PlainPolicy, StepContext, run_episode
from rti.trajectory import INTERVENTION_OUTCOMES, Ending, Message, Source
from tests.mas.scripted import ECHO, FINISH, EchoEnvironment, ScriptedEngine, byte_chat, echo_task, say

CANARY = "zx81-canary"
DRAFT = say("Go.", [("finish", {})])
BETTER = say("Echo first.", [("echo", {"text": "Echo"})])
INVALID = '{"diagnosis": "Too early.", "is_valid": false, "error_types": ["PREMATURE_TERMINATION"], "suggest_next": "Echo."}'
VALID = '{"diagnosis": "Fine.", "is_valid": true, "error_types": [], "suggest_next": ""}'
OK = '{"ok": true, "reasons": [], "diagnosis": "Fine."}'
REFUSE = '{"ok": false, "reasons": ["leak"], "diagnosis": "It tells."}'


class Pack:
    """Prompts that a script can tell apart: `<role>?`, then evidence, draft and what else the role is given."""

    @staticmethod
    def _ask(role, ctx, *more):
        return [*ctx.history, Message(role="user", content=f"{role}? {ctx.evidence} {ctx.draft.tool_calls} {more}")]

    def validator(self, ctx):
        return self._ask("validator", ctx)

    def corrector(self, ctx):
        return self._ask("corrector", ctx, ctx.validation)

    def verifier(self, ctx):
        return self._ask("verifier", ctx, ctx.correction)


def engine_of(**replies):
    """An engine that answers as the role whose prompt it is given, else as the policy. A reply may depend on the prompt."""
    replies = {"policy": DRAFT, "validator": INVALID, "corrector": BETTER, "verifier": OK, **replies}

    def script(text, params):
        role = next((r for r in ("validator", "corrector", "verifier") if f"{r}? " in text), "policy")
        reply = replies[role]
        return reply(text) if callable(reply) else reply

    return ScriptedEngine(byte_chat(), script)


def pipeline(engine, *, temperature=0.8, role=RoleConfig(), **config):
    config = InterventionConfig(**config)
    sampling = SamplingParams(max_tokens=300, temperature=temperature)
    pack = Pack()
    players = {r: PolicyPlayer(r, role, getattr(pack, r), engine, engine.chat) for r in ("validator", "corrector", "verifier")}
    if not config.verifier:
        players["verifier"] = None
    return InterventionPolicy(engine, engine.chat, sampling, config, pack, **players)


def context(engine, *, max_tokens=300, seed=9, **evidence):
    history = [Message(role="system", content="You echo."), Message(role="user", content="Echo, then finish.")]
    return StepContext(messages=history, tools=(ECHO, FINISH), prompt_ids=engine.chat.render(history, ()),
                       task=echo_task(**evidence), turn=0, seed=seed, max_tokens=max_tokens)


async def act(engine, ctx=None, **config):
    return await pipeline(engine, **config).act(ctx or context(engine))


async def test_an_accepted_correction_is_a_turn_scored_under_both_prompts():
    engine = engine_of()
    ctx = context(engine, hidden=CANARY)
    step = await act(engine, ctx)
    assert step.intervention.outcome == "accepted" and step.source == Source.CORRECTION
    ids = engine.chat.encode_turn(step.message)
    assert step.token_ids.tolist() == ids and ids[-1] in engine.chat.stop_token_ids
    (roll_prompt, roll_ids, roll_t), (cal_prompt, cal_ids, cal_t) = engine.scored
    assert roll_prompt == engine.chat.decode(ctx.prompt_ids) and CANARY not in roll_prompt
    corrector_prompt = next(p for p in engine.prompts if "corrector? " in p)
    assert cal_prompt == corrector_prompt and CANARY in cal_prompt
    assert roll_ids == cal_ids == ids and roll_t == cal_t == 0.8
    roll = engine.logps(ctx.prompt_ids, ids, 0.8)
    cal = engine.logps([*_ids_of(engine, corrector_prompt)], ids, 0.8)
    np.testing.assert_array_equal(step.behaviour_logps, roll)
    np.testing.assert_array_equal(step.correction_logps, cal)
    np.testing.assert_allclose(step.weights, np.clip(np.exp(cal.astype(np.float64) - roll), 0.8, 1.2), rtol=1e-6)
    assert step.intervention.ppl_roll == pytest.approx(math.exp(-float(roll.astype(np.float64).mean())))
    assert step.message.tool_calls[0].arguments == {"text": "Echo"} and step.message.reasoning == "Echo first."


def _ids_of(engine, decoded):
    """The ids of a decoded prompt: markers are single tokens there."""
    tokenizer = engine.chat._tokenizer
    tokenizer.encode_special_tokens = False
    ids = tokenizer.encode(decoded, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = True
    return ids


@pytest.mark.parametrize("replies,config,outcome", [
    ({"validator": VALID}, {}, "valid"),
    ({}, {}, "accepted"),
    ({"validator": "hm"}, {}, "validator_malformed"),
    ({"validator": []}, {}, "validator_malformed"),
    ({"corrector": "hm"}, {}, "corrector_malformed"),
    ({"corrector": say("a", [("echo", {"text": "a"})], "and b")}, {}, "corrector_malformed"),
    ({"verifier": "hm"}, {}, "verifier_malformed"),
    ({"corrector": say("I pass.")}, {}, "no_correction"),
    ({"corrector": say("In other words.", [("finish", {})])}, {}, "no_correction"),
    ({"verifier": REFUSE}, {}, "refused_verifier"),
    ({"verifier": REFUSE}, {"verifier": False}, "accepted"),
    ({"corrector": say("x", [("fly", {})])}, {}, "refused_guard"),
    ({"corrector": say("x", [("fly", {})])}, {"guards": False}, "accepted"),
    ({}, {"delta": 0.0}, "refused_gate"),
])
async def test_outcomes(replies, config, outcome):
    engine = engine_of(**replies)
    step = await act(engine, **config)
    record = step.intervention
    assert record.outcome == outcome and outcome in INTERVENTION_OUTCOMES
    assert record.draft == engine.chat.parse([*engine.chat.encode(DRAFT)])
    assert record.malformed == ([outcome.removesuffix("_malformed")] if outcome.endswith("_malformed") else [])
    if outcome == "accepted":
        assert step.source == Source.CORRECTION and step.message == record.correction
        return
    # every refusal goes on with the draft, as sampled
    ctx = context(engine)
    plain = await PlainPolicy(engine, engine.chat, SamplingParams(max_tokens=300, temperature=0.8)).act(ctx)
    assert step.message == plain.message == record.draft and step.source == Source.POLICY
    for field in ("token_ids", "behaviour_logps", "correction_logps", "weights", "versions"):
        np.testing.assert_array_equal(getattr(step, field), getattr(plain, field))


async def test_the_validators_words_are_recorded():
    record = (await act(engine_of())).intervention
    assert (record.diagnosis, record.error_types, record.suggest_next) == ("Too early.", ["PREMATURE_TERMINATION"], "Echo.")
    assert record.verifier_ok is True and record.verifier_diagnosis == "Fine."
    record = (await act(engine_of(verifier=REFUSE))).intervention
    assert record.verifier_ok is False and record.verifier_reasons == ["leak"]


async def test_delta_decides_by_the_perplexity_under_the_rollout_prompt():
    ppl = (await act(engine_of())).intervention.ppl_roll
    assert (await act(engine_of(), delta=ppl)).intervention.outcome == "accepted"
    assert (await act(engine_of(), delta=ppl * 0.999)).intervention.outcome == "refused_gate"


async def test_delta_infinity_keeps_an_impossible_rewrite():
    engine = engine_of()
    engine.logps = lambda prompt, ids, t: np.full(len(ids), -np.inf, np.float32)
    step = await act(engine, delta=math.inf)
    assert step.intervention.outcome == "accepted" and np.isfinite(step.weights).all()


async def test_without_reweighting_every_weight_is_one():
    step = await act(engine_of(), reweight=False)
    assert (step.weights == 1).all() and np.isfinite(step.correction_logps).all()


async def test_a_correction_longer_than_a_turn_may_be_is_refused_even_without_guards():
    engine = engine_of()
    step = await act(engine, context(engine, max_tokens=len(engine.chat.encode(BETTER)) - 5), guards=False)
    assert step.intervention.outcome == "refused_guard" and step.intervention.guard == "length"


@pytest.mark.parametrize("room,outcome,guard", [(-1, "refused_guard", "length"), (0, "corrector_malformed", "")])
async def test_a_scoring_that_does_not_fit_the_engine_refuses_the_correction(room, outcome, guard):
    """Room for the rollout prompt and all but one token of the turn; then for all of it, but not behind the longer prompt."""
    engine = engine_of()
    ctx = context(engine)
    needed = len(ctx.prompt_ids) + len(engine.chat.encode(BETTER)) + 1

    def verifier(text):
        engine.max_context = needed + room
        return OK

    engine_script = engine.script
    engine.script = lambda text, params: verifier(text) if "verifier? " in text else engine_script(text, params)
    step = await act(engine, ctx)
    assert (step.intervention.outcome, step.intervention.guard) == (outcome, guard) and step.source == Source.POLICY


async def test_a_role_prompt_that_does_not_fit_the_engine_is_that_role_malformed():
    engine = engine_of()
    ctx = context(engine, hidden="x" * 1000)
    engine.max_context = len(ctx.prompt_ids) + 500
    step = await act(engine, ctx)
    assert step.intervention.outcome == "validator_malformed" and step.source == Source.POLICY


async def test_weights_loaded_between_the_scorings_make_both_score_again():
    engine = engine_of()
    moves = iter([True, False, True, False, False, False])

    def on_score():
        engine._version += next(moves)

    engine.on_score = on_score
    step = await act(engine)
    # scorings: roll 0 | cal 1 -> again: roll 1 | cal 2 -> again: roll 2 | cal 2
    assert len(engine.scored) == 6 and set(step.versions.tolist()) == {2}


async def test_weights_that_never_rest_are_the_infrastructures_fault(monkeypatch):
    monkeypatch.setattr("rti.mas.pipeline.RESCORE_WAITS_S", (0.0,) * 4)
    engine = engine_of()
    engine.on_score = lambda: setattr(engine, "_version", engine._version + 1)
    with pytest.raises(EngineError, match="same weights"):
        await act(engine)


async def test_each_role_and_turn_has_a_seed_of_its_own():
    runs = []
    for seed in (9, 9, 10):
        engine = engine_of()
        await act(engine, context(engine, seed=seed))
        runs.append([p.seed for p in engine.requests])
    assert runs[0] == runs[1] and len(set(runs[0])) == 4 and not set(runs[0]) & set(runs[2])


async def test_roles_sample_as_their_configuration_says():
    engine = engine_of()
    await pipeline(engine, role=RoleConfig(temperature=0.3, max_tokens=200)).act(context(engine))
    assert [(p.temperature, p.max_tokens) for p in engine.requests] == [(0.8, 300)] + [(0.3, 200)] * 3


@pytest.mark.parametrize("role", ["validator", "corrector", "verifier"])
async def test_an_engine_that_fails_in_a_role_fails_the_episode_as_infrastructure(role):
    engine = engine_of(**{role: EngineError("lost")})
    t = await episode(engine, EchoEnvironment())
    assert t.ending == Ending.INFRASTRUCTURE and t.samples == []


async def episode(engine, env, *, evidence=None, **config):
    limits = RolloutConfig(max_tokens=300, max_context=20_000)
    return await run_episode(echo_task(**(evidence or {})), env, pipeline(engine, **config), engine.chat, id="g/i0",
                             group_id="g", seed=4, limits=limits, temperature=0.8, intervened=True)


def once_corrected(**replies):
    """Drafts are too early until something was echoed."""
    return engine_of(**{"validator": lambda text: VALID if "<|tool|>" in text else INVALID, **replies})


async def test_an_episode_mixes_corrected_and_sampled_turns():
    engine = once_corrected()
    t = await episode(engine, EchoEnvironment())
    assert t.success and t.intervened and t.n_accepted == 1
    assert [s.intervention.outcome for s in t.steps] == ["accepted", "valid"]
    (sample,) = t.samples
    sample.check()
    assert set(sample.sources[sample.turns == 0].tolist()) == {Source.CORRECTION}
    assert set(sample.sources[sample.turns == 1].tolist()) == {Source.POLICY}
    assert np.isfinite(sample.correction_logps[sample.turns == 0]).all()
    assert np.isnan(sample.correction_logps[sample.turns != 0]).all()


async def test_an_intervened_episode_with_delta_zero_is_the_plain_episode():
    engine = once_corrected()
    limits = RolloutConfig(max_tokens=300, max_context=20_000)
    plain = PlainPolicy(engine, engine.chat, SamplingParams(max_tokens=300, temperature=0.8))
    a = await run_episode(echo_task(), EchoEnvironment(), plain, engine.chat, id="g/0", group_id="g", seed=4, limits=limits,
                          temperature=0.8)
    b = await episode(engine, EchoEnvironment(), delta=0.0)
    assert a.reward == b.reward and b.n_accepted == 0
    for field in ("token_ids", "sources", "behaviour_logps", "correction_logps", "weights", "versions", "turns"):
        np.testing.assert_array_equal(getattr(a.samples[0], field), getattr(b.samples[0], field))


LEAKS = [
    {"corrector": say("The reference says so.", [("echo", {"text": CANARY})])},
    {"corrector": say(f"It is {CANARY}.", [("echo", {"text": "Echo"})])},
    {"corrector": say("So.", content=f"I know {CANARY.upper()}.")},
]


@pytest.mark.parametrize("replies", [{}, *LEAKS, {"corrector": f"not json {CANARY}"}, {"validator": f"{CANARY} {{"},
                                     {"verifier": f"{CANARY}"}, {"verifier": EngineError("replica lost")}])
@pytest.mark.parametrize("fault", [None, "step"])
async def test_evidence_never_reaches_a_rollout_prompt_a_history_or_a_log_line(replies, fault, caplog):
    caplog.set_level(logging.DEBUG)
    engine = once_corrected(**replies)
    env = EchoEnvironment(faults={"step": EngineError("lost")} if fault else None)
    t = await episode(engine, env, evidence={"hidden": CANARY, "deep": [{"id": CANARY}]})
    rollout_prompts = [p for p in engine.prompts if "? {" not in p]
    role_prompts = [p for p in engine.prompts if "? {" in p]
    assert rollout_prompts and all(CANARY in p for p in role_prompts) and role_prompts
    seen_by_policy = [*rollout_prompts, repr(t.prompt), repr(env.seen), repr([(s.message, s.observations) for s in t.steps]),
                      *(engine.chat.decode(s.token_ids.tolist()) for s in t.samples), caplog.text, repr(t.info)]
    assert not any(CANARY in text.casefold() for text in seen_by_policy)
    history_of_roles = [p.split("? {")[0] for p in role_prompts]
    assert not any(CANARY in p for p in history_of_roles)


@pytest.mark.parametrize("replies", LEAKS)
async def test_a_leak_is_refused_even_where_the_verifier_lets_it_pass(replies):
    engine = engine_of(**replies)
    step = await act(engine, context(engine, hidden=CANARY))
    assert step.intervention.outcome == "refused_guard" and step.intervention.guard == "leak:id"
    assert CANARY not in step.intervention.guard


async def test_a_correction_that_the_format_cannot_say_is_malformed():
    engine = engine_of()
    chat = engine.chat

    class Lossy(type(chat)):
        def parse(self, turn_ids, tools=()):
            message = super().parse(turn_ids)
            return Message(role="assistant", reasoning=message.reasoning, content="lost")

    policy = pipeline(engine)
    policy._chat = Lossy(chat._tokenizer)
    step = await policy.act(context(engine))
    assert step.intervention.outcome == "corrector_malformed"


async def test_greedy_rollouts_are_scored_at_temperature_one():
    engine = engine_of()
    await act(engine, temperature=0.0)
    assert [t for _, _, t in engine.scored] == [1.0, 1.0]


class TestBuild:
    def build(self, **config):
        engine = engine_of()
        return build_pipeline(InterventionConfig(**config), "navigation", engine, engine.chat, RolloutConfig())

    async def test_the_default_is_the_policy_in_every_role(self):
        built = self.build()
        assert all(isinstance(p, PolicyPlayer) for p in (built._validator, built._corrector, built._verifier))
        await built.close()

    def test_without_verifier(self):
        assert self.build(verifier=False)._verifier is None

    def test_packs_by_format_and_by_name(self):
        assert self.build()._pack.__name__.endswith("navigation_compact")
        assert self.build(prompts="full")._pack.__name__.endswith("prompts.navigation")
        assert prompts.load_pack("auto", "navigation", "hermes").__name__.endswith("prompts.navigation")

    @pytest.mark.parametrize("config,said", [
        ({"prompts": "nope"}, "auto, full, compact"), ({"prompts": "no.such.module"}, "there is no"),
        ({"validator": RoleConfig(player="oracle")}, "policy, teacher, endpoint, rules"),
        ({"corrector": RoleConfig(player="endpoint")}, "base_url"),
    ])
    def test_what_cannot_be_played_is_refused_with_a_reason(self, config, said):
        with pytest.raises(ValueError, match=said):
            self.build(**config)

    def test_an_environment_without_a_pack_or_rules_is_refused_with_a_reason(self):
        engine = engine_of()
        with pytest.raises(ValueError, match="no full prompt pack for environment 'chess'"):
            build_pipeline(InterventionConfig(prompts="full"), "chess", engine, engine.chat, RolloutConfig())
        with pytest.raises(ValueError, match="'chess' has no rule-based roles"):
            config = InterventionConfig(prompts="rti.mas.prompts.navigation", validator=RoleConfig(player="rules"))
            build_pipeline(config, "chess", engine, engine.chat, RolloutConfig())


def test_perplexity_of_the_made_up_scores_passes_the_default_gate():
    # the tests above rest on it
    assert gate.keeps(math.e, InterventionConfig().delta)
