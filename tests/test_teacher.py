"""A teacher's part in an episode: its log-probabilities of the policy's tokens, and episodes of its own."""

from __future__ import annotations

import numpy as np
import pytest

from rti.config.schema import InterventionConfig, RoleConfig, RolloutConfig
from rti.engines.base import EngineError, SamplingParams
from rti.mas.pipeline import build_pipeline
from rti.rollout import PlainPolicy, run_episode
from rti.teacher import TeacherPolicy, judge
from rti.trajectory import Ending, Source
from tests.mas.scripted import EchoEnvironment, ScriptedEngine, byte_chat, echo_task, forking_chat, say

ASK, FINISH = say("Again.", [("echo", {"text": "ask"})]), say("Done.", [("finish", {})])
LIMITS = RolloutConfig(max_tokens=500, max_context=5000)


def engine_of(*replies, chat=None, shift=0.0, **options):
    """Gives the replies in turn; its log-probabilities are those of every such engine, less `shift`."""
    left = list(replies)
    engine = ScriptedEngine(chat or byte_chat(), lambda text, params: left.pop(0), **options)
    plain = engine.logps
    engine.logps = lambda prompt, response, temperature: plain(prompt, response, temperature) - np.float32(shift)
    return engine


async def play(engine, policy=PlainPolicy, temperature=0.8):
    step = policy(engine, engine.chat, SamplingParams(max_tokens=500, temperature=temperature))
    return await run_episode(echo_task(secret="s3cret"), EchoEnvironment(), step, engine.chat, id="g/0", group_id="g", seed=5,
                             limits=LIMITS, temperature=temperature)


@pytest.mark.parametrize("temperature, asked", [(0.8, 0.8), (0.0, 1.0)])
@pytest.mark.parametrize("chat", [byte_chat, forking_chat])
async def test_every_trained_token_gets_the_teachers_log_probability_at_its_own_temperature(chat, temperature, asked):
    trajectory = await play(engine_of(ASK, FINISH, chat=chat()), temperature=temperature)
    teacher = engine_of(shift=0.25)
    await judge(trajectory, teacher)
    assert len(trajectory.samples) == len(teacher.scored) == (1 if chat is byte_chat else 2)
    for sample, (prompt, ids, t) in zip(trajectory.samples, teacher.scored):
        sample.check()
        first = int(sample.mask.argmax())
        assert ids == sample.token_ids[first:].tolist() and t == asked
        expected = teacher.logps(sample.token_ids[:first].tolist(), ids, asked)
        np.testing.assert_array_equal(sample.teacher_logps[sample.mask], expected[sample.mask[first:]])
        assert np.isnan(sample.teacher_logps[~sample.mask]).all()
        assert "s3cret" not in prompt


async def test_a_lost_episode_asks_the_teacher_nothing():
    trajectory = await play(engine_of(EngineError("down")))
    teacher = engine_of()
    await judge(trajectory, teacher)
    assert trajectory.ending == Ending.INFRASTRUCTURE and not teacher.scored


async def test_a_teacher_whose_context_is_too_short_says_so():
    trajectory = await play(engine_of(FINISH))
    with pytest.raises(EngineError, match="context holds rollout.max_context"):
        await judge(trajectory, engine_of(max_context=10))


async def test_an_episode_of_the_teachers_is_a_plain_one_under_another_name():
    mine, its = await play(engine_of(ASK, FINISH)), await play(engine_of(ASK, FINISH), TeacherPolicy)
    (one,), (other,) = mine.samples, its.samples
    other.check()
    assert its.success and other.token_ids.tolist() == one.token_ids.tolist()
    np.testing.assert_array_equal(other.behaviour_logps, one.behaviour_logps)
    assert (other.sources[other.mask] == Source.TEACHER).all() and (other.versions == -1).all()
    assert its.oldest_version is None and mine.oldest_version == 0


# --- as a player of the intervention -------------------------------------------------------------------------------
INVALID = '{"diagnosis": "Echo first.", "is_valid": false, "error_types": [], "suggest_next": "Echo."}'
VERDICT = '{"ok": true, "reasons": [], "diagnosis": "Fine."}'


async def test_roles_that_the_teacher_plays_are_asked_of_it_and_scored_by_the_policy():
    policy = engine_of(FINISH)
    teacher = ScriptedEngine(policy.chat, lambda text, params: INVALID if len(teacher.prompts) == 1 else
                             say("Echo first.", [("echo", {"text": "ask"})]) if len(teacher.prompts) == 2 else VERDICT)
    config = InterventionConfig(guards=False, delta=float("inf"))
    for role in ("validator", "corrector", "verifier_role"):
        setattr(config, role, RoleConfig(player="teacher"))
    pipeline = build_pipeline(config, "navigation", policy, policy.chat, LIMITS, teacher)
    task = echo_task(stops=[{"name": "Stop", "province": "P", "location": "101.000000,30.000000"}], order="free")
    trajectory = await run_episode(task, EchoEnvironment(max_turns=1), pipeline, policy.chat, id="g/i0", group_id="g",
                                   seed=5, limits=LIMITS, temperature=0.8, intervened=True)
    assert trajectory.steps[0].intervention.outcome == "accepted"
    assert len(policy.prompts) == 1 and len(teacher.prompts) == 3, "the draft is the policy's, the roles' words the teacher's"
    assert len(policy.scored) == 2 and not teacher.scored, "gate and weight are the policy's probabilities"
    assert (trajectory.samples[0].sources[trajectory.samples[0].mask] == Source.CORRECTION).all()


def test_a_role_of_a_teacher_that_is_not_there_is_refused():
    engine = engine_of()
    with pytest.raises(ValueError, match="name one in teacher.path"):
        build_pipeline(InterventionConfig(validator=RoleConfig(player="teacher")), "navigation", engine, engine.chat, LIMITS)
