"""Packing as a pure function: budget, balance, equal counts on all ranks, and rows that keep samples apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rti.learner.batch import TrainSample
from rti.learner.packing import collate, plan


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 64), max_size=60), st.integers(64, 200), st.integers(1, 5))
def test_every_sample_is_packed_once_within_the_budget_and_ranks_have_equally_many_rows(lengths, budget, ranks):
    dealt = plan(lengths, budget, ranks)
    assert len(dealt) == ranks and len({len(rows) for rows in dealt}) == 1 and len(dealt[0]) >= 1
    assert sorted(i for rows in dealt for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= budget for rows in dealt for row in rows)
    # at most twice the fewest rounds that any packing could do with (and one round where there is nothing to do)
    assert len(dealt[0]) <= max(1, -(-2 * sum(lengths) // (budget * ranks)) + 1)


def test_the_plan_depends_on_the_lengths_alone():
    lengths = np.random.default_rng(0).integers(1, 300, 64).tolist()
    assert plan(lengths, 1024, 2) == plan(list(lengths), 1024, 2)


def test_real_lengths_fill_micro_batches_and_balance_ranks():
    lengths = np.random.default_rng(1).integers(100, 300, 64).tolist()
    for ranks in (1, 2, 4):
        dealt = plan(lengths, 4096, ranks)
        assert len(dealt[0]) == -(-sum(lengths) // (4096 * ranks))
        loads = [sum(lengths[i] for row in rows for i in row) for rows in dealt]
        assert max(loads) <= 1.05 * min(loads)
        for rows in zip(*dealt):        # ranks wait for each other in every round
            round_loads = [sum(lengths[i] for i in row) for row in rows]
            assert max(round_loads) <= 1.15 * min(round_loads)


def test_fewer_samples_than_ranks_leaves_empty_rows():
    assert sorted(plan([5], 8, 3)) == [[[]], [[]], [[0]]]
    assert plan([], 8, 2) == [[[]], [[]]]


def test_a_sample_beyond_the_budget_is_refused_with_the_mend():
    with pytest.raises(ValueError, match="learner.pack_tokens=64; raise learner.pack_tokens"):
        plan([10, 65], 64, 1)


def sample(seed: int, n: int, advantage: float = 1.0, temperature: float = 0.8) -> TrainSample:
    rng = np.random.default_rng(seed)
    select = np.sort(rng.choice(n, size=max(1, n // 2), replace=False)).astype(np.int64)
    k = len(select)

    def floats() -> np.ndarray:
        return rng.random(k).astype(np.float32)

    return TrainSample(rng.integers(0, 97, n).astype(np.int32), select, rng.integers(0, 97, k), floats(), floats(), floats(),
                       rng.random(k) < 0.5, rng.random(k) < 0.2, floats(), advantage, 0.25, temperature)


def test_a_row_holds_its_samples_back_to_back_without_padding():
    samples = [sample(0, 7, advantage=1.0), sample(1, 4, advantage=-0.5, temperature=1.0), sample(2, 9)]
    row = collate(samples)
    assert row.cu_seqlens == (0, 7, 11, 20) and len(row.token_ids) == 20 and row.padding == 0
    assert row.position_ids.tolist() == [*range(7), *range(4), *range(9)]
    at = 0
    for s, start in zip(samples, row.cu_seqlens):
        n = len(s.select)
        assert (row.token_ids[start:start + len(s.inputs)] == s.inputs).all()
        assert (row.select[at:at + n] == s.select + start).all() and (row.targets[at:at + n] == s.targets).all()
        assert (row.advantages[at:at + n] == np.float32(s.advantage)).all()
        assert (row.temperatures[at:at + n] == np.float32(s.temperature)).all()
        at += n
    assert at == len(row.select)


def test_an_empty_row_has_one_token_that_predicts_nothing():
    row = collate([])
    assert row.token_ids.tolist() == [0] and row.cu_seqlens == (0, 1) and row.padding == 1
    assert len(row.select) == len(row.targets) == len(row.advantages) == 0
