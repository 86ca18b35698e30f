"""A rescue under a template that rewrites earlier turns, from rollout to learner's batch: several samples, one reward."""

import random

import numpy as np
import pytest

from rti.algos import load_algorithm
from rti.algos.replace import replace_failed
from rti.config.schema import AlgoConfig, InterventionConfig, RolloutConfig
from rti.engines.base import SamplingParams
from rti.learner.batch import prepare
from rti.rollout import PlainPolicy, run_episode
from rti.trajectory import Group, Source, decode, encode
from tests.mas.scripted import EchoEnvironment, ScriptedEngine, echo_task, forking_chat, say
from tests.mas.test_pipeline import INVALID, OK, VALID, pipeline

ASK = say("Hm.", [("echo", {"text": "ask"})])       # the user answers, so that the next turn begins a new sample
GIVE_UP = say("No.", content="I give up.")
BETTER = say("The user said: go on.", [("finish", {})])


def engine_of():
    """A policy that asks, then gives up; the Validator objects to the giving up alone."""
    def script(text, params):
        if "validator? " in text:
            return INVALID if "[]" in text.split("validator? ")[1] else VALID
        if "corrector? " in text or "verifier? " in text:
            return BETTER if "corrector? " in text else OK
        return GIVE_UP if "Go on." in text else ASK

    return ScriptedEngine(forking_chat(), script)


async def play(policy, engine, id, intervened=False):
    return await run_episode(echo_task(secret="s3cret"), EchoEnvironment(), policy, engine.chat, id=id, group_id="g", seed=3,
                             limits=RolloutConfig(max_tokens=300, max_context=5000), temperature=0.8, intervened=intervened)


async def test_the_samples_of_a_forked_rescue_share_its_reward_advantage_and_length():
    engine = engine_of()
    plain = PlainPolicy(engine, engine.chat, SamplingParams(max_tokens=300, temperature=0.8))
    failed = [await play(plain, engine, f"g/{i}") for i in range(4)]
    rescue = await play(pipeline(engine), engine, "g/i0", intervened=True)
    assert not any(m.success for m in failed) and rescue.success
    group = replace_failed(Group(id="g", task_id="t1", members=failed), [rescue], "first", random.Random(0))
    group = decode(encode(group), Group)

    asked, fixed = group.members[0].samples
    assert set(asked.sources[asked.mask]) == {Source.POLICY} and set(fixed.sources[fixed.mask]) == {Source.CORRECTION}
    assert all(len(m.samples) == 2 for m in group.members)
    text = engine.chat.decode(fixed.token_ids.tolist())
    assert "s3cret" not in text and "Hm." not in text and "Go on." in text   # the earlier thinking is gone

    batch = prepare([group], load_algorithm(AlgoConfig(), InterventionConfig()))
    assert batch.trajectories == 4 and len(batch.samples) == 8
    lengths = [m.n_agent_tokens for m in group.members for _ in m.samples]
    assert [s.scale for s in batch.samples] == pytest.approx([1 / (n * 4) for n in lengths])
    assert [s.advantage for s in batch.samples] == pytest.approx([3 ** 0.5] * 2 + [-1 / 3 ** 0.5] * 6, abs=1e-5)
    first, second = batch.samples[:2]
    assert not first.intervened.any() and (first.weights == 1).all() and second.intervened.all()
    expected = np.clip(np.exp(second.correction_logps.astype(np.float64) - second.behaviour_logps), 0.8, 1.2)
    np.testing.assert_allclose(second.weights, expected, rtol=1e-6)
    assert second.targets.tolist() == [*engine.chat.encode(BETTER), *engine.chat.stop_token_ids]
