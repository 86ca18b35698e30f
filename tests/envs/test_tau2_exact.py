"""Rewards, their parts and tool outputs are the official ones, over every task of the base splits and many trajectories.

The official side is the installed evaluator with environments of its own. RTI_TAU2_DATA tests with other data as well.
"""

from __future__ import annotations

import gc
import random

import pytest

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from rti.envs.tau2 import official, reward  # noqa: E402
from rti.envs.tau2.judge import Unjudged  # noqa: E402
from tests.envs.tau2_pairs import construct, domain, official_reward, play, reference, variants  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")      # wrong values, stored as they came

PAIRS = {"airline": 3, "retail": 2, "telecom": 16}
"""Trajectories a base task."""
CHUNKS = 8


def chunk(name, index):
    return domain(name).tasks("base")[index::CHUNKS]


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_collection():
    """The official side makes millions of objects that live long; going through them again and again takes half the time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _a_judge_that_is_content(monkeypatch):
    """Where the reward names natural-language assertions, both sides have them judged alike."""
    def content(trajectory, nl_assertions):
        model = official.load().simulation.NLAssertionCheck
        return [model(nl_assertion=a, met=True, justification="not judged") for a in nl_assertions]
    monkeypatch.setattr(official.load().nl.NLAssertionsEvaluator, "evaluate_nl_assertions", content)


async def ours(name, task, dialogue, termination="user_stop"):
    return await reward.evaluate(domain(name), task, dialogue.messages, dialogue.world, termination, Unjudged())


def test_at_least_two_thousand_pairs_are_compared():
    assert sum(n * len(domain(name).tasks("base")) for name, n in PAIRS.items()) >= 2000


@pytest.mark.parametrize("index", range(CHUNKS))
@pytest.mark.parametrize("name", PAIRS)
async def test_every_part_of_the_reward_is_the_official_one(name, index):
    before = domain(name).fingerprint()
    for task in chunk(name, index):
        for i, trajectory in enumerate(variants(task, random.Random(task.id), PAIRS[name])):
            dialogue = await play(domain(name), task, trajectory)
            got = await ours(name, task, dialogue)
            assert got.model_dump() == official_reward(name, task, dialogue.messages).model_dump(), (task.id, i)
    assert domain(name).fingerprint() == before


@pytest.mark.parametrize("name", PAIRS)
async def test_the_reference_actions_give_one(name):
    for task in domain(name).tasks("base"):
        assert (await ours(name, task, await play(domain(name), task, reference(task)))).reward == 1.0, task.id


@pytest.mark.parametrize("name", PAIRS)
async def test_tool_outputs_and_errors_are_the_official_ones_to_the_letter(name):
    o = official.load().message
    for task in domain(name).tasks("base")[::5]:
        state = task.initial_state
        for trajectory in list(variants(task, random.Random(task.id), 2 if name != "telecom" else 5))[1:]:
            dialogue = await play(domain(name), task, trajectory)
            calls = [c for m in dialogue.messages for c in getattr(m, "tool_calls", None) or ()]
            answers = [m for m in dialogue.messages if isinstance(m, o.ToolMessage)]
            fresh = construct(name)()
            fresh.set_state(state.initialization_data if state else None, state.initialization_actions if state else None, [])
            for call, answer in zip(calls, answers, strict=True):
                expected = fresh.get_response(call)
                assert (answer.content, answer.error) == (expected.content, expected.error), (task.id, call)


@pytest.mark.parametrize("termination", ["max_steps", "too_many_errors", "agent_error", "user_error"])
async def test_a_conversation_that_did_not_end_properly_scores_as_officially(termination):
    task = domain("retail").tasks("base")[0]
    dialogue = await play(domain("retail"), task, reference(task))
    got = await ours("retail", task, dialogue, termination)
    assert got.reward == 0 and got.model_dump() == official_reward("retail", task, dialogue.messages, termination).model_dump()
