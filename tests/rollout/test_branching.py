"""Branches: the shared turns token by token, a turn of their own after them, and what happens where a replay does not agree."""

from __future__ import annotations

import numpy as np
import pytest

from rti.branching import Root
from rti.envs.base import StepResult
from rti.trajectory import Ending, Message, Trajectory, decode, encode
from tests.mas.scripted import EchoEnvironment, byte_chat, forking_chat, say
from tests.rollout.test_episode import ECHO, FINISH, engine_of, play

OTHER = say("Another way.", [("echo", {"text": "elsewhere"})], content="Elsewhere.")


@pytest.mark.parametrize("chat", [byte_chat(), forking_chat()], ids=["one sample", "a sample each turn"])
async def test_a_branch_has_the_parents_turns_and_then_its_own(chat):
    parent = decode(encode(await play(engine_of(ECHO, ECHO, FINISH, chat=chat))), Trajectory)
    engine = engine_of(OTHER, FINISH, chat=chat)
    branch = await play(engine, seed=77, root=Root(parent, 2))
    assert [s.message for s in branch.steps[:2]] == [s.message for s in parent.steps[:2]]
    assert branch.steps[2].message.content == "Elsewhere." and branch.ending is Ending.COMPLETED
    assert (branch.branch.parent, branch.branch.turn, branch.branch.dropped) == (parent.id, 2, "")
    assert len(engine.prompts) == 2, "the shared turns are not sampled again"
    for turn in range(2):
        for field in ("token_ids", "behaviour_logps", "versions", "weights"):
            (ours, theirs) = ([getattr(s, field)[s.turns == turn].tolist() for s in t.samples] for t in (branch, parent))
            assert [x for x in ours if x] == [x for x in theirs if x] != []
    for sample in branch.samples:
        sample.check()


async def test_a_branch_is_the_episode_that_goes_on_from_there():
    """Token for token, prompts included: as if the policy had said the parent's words itself."""
    parent = await play(engine_of(ECHO, ECHO, FINISH))
    branch = await play(engine_of(OTHER, FINISH), root=Root(parent, 1))
    alone = await play(engine_of(ECHO, OTHER, FINISH))
    for field in ("token_ids", "sources", "turns", "behaviour_logps"):
        np.testing.assert_array_equal(getattr(branch.samples[0], field), getattr(alone.samples[0], field))


class Moody(EchoEnvironment):
    """Answers otherwise each time."""

    count = 0

    async def step(self, message: Message) -> StepResult:
        came = await super().step(message)
        Moody.count += 1
        return StepResult(messages=[Message(role="user", content=f"answer {Moody.count}")], done=came.done)


async def test_where_the_environment_does_not_answer_alike_the_branch_is_a_whole_rollout():
    parent = await play(engine_of(ECHO, ECHO, FINISH), Moody())
    whole = await play(engine_of(OTHER, FINISH), Moody(), root=Root(parent, 2))
    assert whole.branch.dropped == "turn 0: the environment answers otherwise"
    assert [s.message.reasoning for s in whole.steps] == ["Another way.", "Done."] and whole.ending is Ending.COMPLETED
    assert set(whole.samples[0].turns.tolist()) == {-1, 0, 1}


async def test_a_turn_with_an_unknown_token_cannot_be_shared():
    parent = await play(engine_of(ECHO, ECHO, FINISH))
    parent.steps[0].n_tokens += 1
    whole = await play(engine_of(FINISH), root=Root(parent, 2))
    assert whole.branch.dropped == "turn 0: not all its tokens are known" and len(whole.steps) == 1
