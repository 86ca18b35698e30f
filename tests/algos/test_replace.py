"""The rescue takes the place of one failed member, and advantages are those of the group afterwards."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rti.algos import load_algorithm
from rti.algos.replace import replace_failed
from rti.config.schema import AlgoConfig, InterventionConfig
from rti.trajectory import Ending, encode
from tests.factories import make_group, make_trajectory


def attempt(k: int, reward: float, **changes):
    made = make_trajectory(np.random.default_rng(100 + k), member=f"i{k}", reward=reward, intervened=True)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def failed_group(n: int = 8):
    group = make_group(0, rewards=[0] * n)
    group.rewards_before = []
    return group


def test_the_first_successful_attempt_is_taken_and_the_others_are_kept():
    attempts = [attempt(0, 0), attempt(1, 1), attempt(2, 1)]
    group = replace_failed(failed_group(), attempts, "first", random.Random(0))
    assert group.replaced == 0 and group.members[0] is attempts[1]
    assert group.attempts == [attempts[0], attempts[2]]
    assert group.rewards_before == [0.0] * 8 and group.failed_before and group.teaches


def test_random_replacement_depends_on_nothing_but_the_generator():
    places = [replace_failed(failed_group(), [attempt(0, 1)], "random", random.Random(s)).replaced for s in range(200)]
    assert set(places) == set(range(8))
    assert places == [replace_failed(failed_group(), [attempt(0, 1)], "random", random.Random(s)).replaced for s in range(200)]
    assert replace_failed(failed_group(), [attempt(0, 1)], "random", np.random.default_rng(3)).replaced in range(8)


def test_advantages_are_computed_after_the_replacement():
    group = replace_failed(failed_group(4), [attempt(0, 1)], "first", random.Random(0))
    got = load_algorithm(AlgoConfig(), InterventionConfig()).advantages(group)
    std = np.sqrt(0.25 * 0.75)
    np.testing.assert_allclose(got, np.array([0.75, -0.25, -0.25, -0.25]) / (std + 1e-6), rtol=1e-6)


def test_without_a_rescue_the_members_stay_and_no_random_number_is_drawn():
    rng = random.Random(0)
    state = rng.getstate()
    group = failed_group()
    out = replace_failed(group, [attempt(0, 0), attempt(1, 0)], "random", rng)
    assert out.members == group.members and out.replaced is None and len(out.attempts) == 2 and not out.teaches
    assert rng.getstate() == state


def test_the_group_given_is_not_changed():
    group = failed_group()
    before = encode(group)
    replace_failed(group, [attempt(0, 1)], "random", random.Random(0))
    assert encode(group) == before


def test_success_is_read_from_the_outcome_bit_not_from_a_shaped_reward():
    shaped = failed_group(3)
    for member in shaped.members:
        member.reward = 0.3                      # shaped, yet failed
    out = replace_failed(shaped, [attempt(0, 0.9, success=False)], "first", random.Random(0))
    assert out.replaced is None and out.failed_before
    assert replace_failed(shaped, [attempt(0, 0.9, success=True)], "first", random.Random(0)).replaced == 0


def test_an_attempt_that_was_lost_rescues_nothing():
    lost = attempt(0, 1, ending=Ending.INFRASTRUCTURE)
    assert replace_failed(failed_group(), [lost], "first", random.Random(0)).replaced is None


def test_a_group_with_a_success_of_its_own_is_not_rescued():
    with pytest.raises(ValueError, match="failed as a whole"):
        replace_failed(make_group(0, rewards=[1, 0]), [attempt(0, 1)], "first", random.Random(0))
    with pytest.raises(ValueError, match="random, first"):
        replace_failed(failed_group(), [], "last", random.Random(0))
