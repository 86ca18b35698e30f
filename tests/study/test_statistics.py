"""Measures against hand-made numbers, intervals against what theory says of them."""

import math

import numpy as np
import pytest

from rti.study.statistics import MEASURES, at, difference, entropy, mean, of_parts, values
from rti.evaluation import pass_at_k, pass_hat_k


def test_measures_of_a_task_by_hand():
    counts = np.array([[0, 2, 4]])
    assert values(counts, 4, MEASURES["p@1"]).tolist() == [[0, 0.5, 1]]
    # two of four: pass@1..4 = 1/2, 5/6, 1, 1 and pass^1..4 = 1/2, 1/6, 0, 0
    assert values(counts, 4, MEASURES["avg p@k"]) == pytest.approx(np.array([[0, (1 / 2 + 5 / 6 + 2) / 4, 1]]))
    assert values(counts, 4, MEASURES["avg p^k"]) == pytest.approx(np.array([[0, (1 / 2 + 1 / 6) / 4, 1]]))
    assert values(counts, 4, at(pass_at_k, 2)) == pytest.approx(np.array([[0, 5 / 6, 1]]))
    assert values(counts, 4, at(pass_hat_k, 2)) == pytest.approx(np.array([[0, 1 / 6, 1]]))


def test_the_interval_of_a_mean_is_as_wide_as_tasks_and_seeds_make_it():
    rng = np.random.default_rng(1)
    table = np.tile((rng.random(400) < 0.3).astype(float), (3, 1))      # the seeds agree: tasks alone are uncertain
    found = mean(table)
    half = 1.96 * table[0].std() / math.sqrt(400)
    assert found.value == table.mean() and (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)
    seeds = np.repeat([[0.2], [0.5], [0.8]], 400, axis=1)               # the tasks agree: seeds alone are
    found = mean(seeds)
    assert found.low == pytest.approx(0.2) and found.high == pytest.approx(0.8)


def test_a_difference_is_taken_task_by_task():
    rng = np.random.default_rng(2)
    hard = (rng.random(200) < 0.5).astype(float)
    better = np.tile(hard, (3, 1)) * 0.9 + 0.1
    found = difference(better, np.tile(hard, (3, 1)))
    assert found.value == pytest.approx(0.1 * (1 - hard.mean()))
    assert found.low > 0.03, "which tasks are hard is common to both and leaves no doubt"
    same = difference(better, better)
    assert same.value == 0 and same.low <= 0 <= same.high


def test_methods_tested_on_other_tasks_are_not_compared():
    with pytest.raises(ValueError, match="3 and 4 tasks"):
        difference(np.zeros((1, 3)), np.zeros((1, 4)))


def test_parts_without_pairs_and_the_entropy_of_counts():
    found = of_parts([1, 1, 1], [0, 0])
    assert found == (1, 1, 1)
    assert entropy([5, 5]) == pytest.approx(math.log(2)) and entropy([7]) == 0 and entropy([0, 3]) == 0
