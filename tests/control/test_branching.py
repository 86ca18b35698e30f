"""AEPO's balance of a group's budget: the formulas, the bounds, and that chance comes from the stream alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rti.config.schema import AlgoConfig
from rti.control.branching import Site, entropies, probability, sites, whole_rollouts
from tests.factories import make_group

CONFIG = AlgoConfig(name="aepo", branch_base=0.4, branch_gamma=0.2, branch_penalty=0.25)


def test_a_turns_entropy_is_the_mean_surprise_of_its_first_tokens():
    trajectory = make_group(0).members[0]
    (sample,) = trajectory.samples
    found = entropies(trajectory, 3)
    assert len(found) == len(trajectory.steps) > 1
    for turn, value in enumerate(found):
        own = [float(x) for x in sample.behaviour_logps[sample.turns == turn]][:3]
        assert value == pytest.approx(-math.fsum(own) / len(own))
    trajectory.steps[1].n_tokens += 1       # a token whose log-probability the engine could not give
    assert entropies(trajectory, 3) == found[:1]


@pytest.mark.parametrize("first", [[1.0, 1.0], [2.0, 0.5, 0.5], [0.5, 3.0, 4.0], [9.0, 0.0], [0.0, 900.0]])
@pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
def test_the_share_of_whole_rollouts_follows_the_formula(first, beta):
    gap = first[0] - sum(first[1:]) / len(first[1:])
    expected = 8 / (1 + math.exp(-beta * gap)) if beta * gap > -700 else 0.0
    assert whole_rollouts(8, first, beta) == max(1, min(8, round(expected)))


def test_with_nowhere_to_branch_all_rollouts_are_whole():
    assert whole_rollouts(8, [2.0], 1.0) == whole_rollouts(8, [], 1.0) == 8


def test_the_probability_follows_the_formula_and_stays_one():
    assert probability(1.5, 0.5, 0, CONFIG) == pytest.approx(0.4 + 0.2 * 1.0)
    assert probability(1.5, 0.5, 2, CONFIG) == pytest.approx(0.6 * (1 - 2 * 0.25))
    assert probability(1.5, 0.5, 4, CONFIG) == probability(1.5, 0.5, 9, CONFIG) == 0.0
    assert probability(99.0, 0.0, 0, CONFIG) == 1.0 and probability(0.0, 99.0, 0, CONFIG) == 0.0


def test_turns_in_a_row_are_branched_at_as_often_as_the_formula_says():
    """One rollout of three turns, many streams: P(turn 1), P(turn 2 | branched at 1), P(turn 2 | not)."""
    known, n = [0.5, 1.0, 1.5], 4000
    drawn = [{s.turn for s in sites([known], 9, CONFIG, np.random.default_rng(seed))} for seed in range(n)]
    first = [1 in d for d in drawn]
    again = [2 in d for d in drawn if 1 in d]
    fresh = [2 in d for d in drawn if 1 not in d]
    for seen, p in ((first, 0.5), (again, 0.6 * 0.75), (fresh, 0.6)):
        assert abs(np.mean(seen) - p) < 5 * math.sqrt(p * (1 - p) / len(seen))


def test_sites_go_turn_by_turn_within_the_budget_and_repeat_with_the_stream():
    sure = AlgoConfig(name="aepo", branch_base=1.0, branch_gamma=0.0, branch_penalty=0.0)
    rollouts = [[1.0, 1.0, 1.0], [1.0], [1.0, 1.0]]
    every = sites(rollouts, 99, sure, np.random.default_rng(0))
    assert every == [Site(0, 1), Site(2, 1), Site(0, 2)]
    assert sites(rollouts, 2, sure, np.random.default_rng(0)) == every[:2]
    assert sites([], 2, sure, np.random.default_rng(0)) == []
    many = [[1.0] * 6] * 5
    assert sites(many, 8, CONFIG, np.random.default_rng(7)) == sites(many, 8, CONFIG, np.random.default_rng(7))
