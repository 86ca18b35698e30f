"""Advantages against the formula, and the groups that must teach nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rti.algos import load_algorithm
from rti.algos.functional import group_advantages
from rti.config.schema import AlgoConfig, InterventionConfig
from rti.trajectory import Ending
from tests.factories import make_group


def algorithm(name: str = "rti", train_truncated: bool = True):
    return load_algorithm(AlgoConfig(name=name), InterventionConfig(), train_truncated)


def by_formula(rewards: list[float], eps: float = 1e-6) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (std + eps) for r in rewards]


@pytest.mark.parametrize("name", ["rti", "grpo"])
@pytest.mark.parametrize("rewards", [[1, 0, 0, 1], [0.25, -3.0, 0.5], [1, 0, 0, 0, 0, 0, 0, 0]])
def test_advantages_are_the_reward_standardised_with_the_population_std(name, rewards):
    got = algorithm(name).advantages(make_group(0, rewards=rewards))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, by_formula(rewards), rtol=1e-6)


def test_without_division_advantages_are_the_reward_less_its_mean():
    which = load_algorithm(AlgoConfig(name="grpo", advantage_std=False), InterventionConfig())
    np.testing.assert_allclose(which.advantages(make_group(0, rewards=[1, 0, 0, 1])), [0.5, -0.5, -0.5, 0.5])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_give_exactly_zero(reward):
    assert (algorithm().advantages(make_group(0, rewards=[reward] * 7)) == 0).all()


def test_a_group_of_one_has_advantage_zero_not_its_reward():
    assert algorithm().advantages(make_group(0, rewards=[1])).tolist() == [0.0]


@pytest.mark.parametrize("lost", [Ending.ENVIRONMENT, Ending.INFRASTRUCTURE])
def test_a_lost_member_is_in_no_statistic(lost):
    group = make_group(0, rewards=[1, 0, 1, 0])
    group.members[1].ending = lost
    np.testing.assert_allclose(algorithm().advantages(group)[[0, 2, 3]], by_formula([1, 1, 0]), rtol=1e-6)
    assert algorithm().advantages(group)[1] == 0


def test_a_group_that_lost_all_but_one_member_teaches_nothing():
    group = make_group(0, rewards=[1, 0, 0])
    group.members[1].ending = group.members[2].ending = Ending.INFRASTRUCTURE
    assert not algorithm().advantages(group).any()


def test_truncated_members_train_only_where_the_configuration_says_so():
    group = make_group(0, rewards=[1, 0, 0])
    group.members[1].ending = Ending.TRUNCATED
    np.testing.assert_allclose(algorithm().advantages(group), by_formula([1, 0, 0]), rtol=1e-6)
    without = algorithm(train_truncated=False).advantages(group)
    np.testing.assert_allclose(without[[0, 2]], by_formula([1, 0]), rtol=1e-6)
    assert without[1] == 0


@pytest.mark.parametrize("ending", [Ending.TURN_LIMIT, Ending.EMPTY_REPLY])
def test_failures_of_the_agent_itself_count(ending):
    group = make_group(0, rewards=[1, 0])
    group.members[1].ending = ending
    np.testing.assert_allclose(algorithm().advantages(group), by_formula([1, 0]), rtol=1e-6)


def test_a_reward_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="finite"):
        group_advantages(np.array([1.0, float("nan")]), np.array([True, True]), 1e-6)
