"""How many members a pool should have: at once more, later fewer, never outside the bounds."""

import numpy as np
import pytest

from rti.control.scaling import Bounds, Scaler, needed


@pytest.mark.parametrize("demand, capacity, members", [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (64, 16, 4), (65, 16, 5)])
def test_members_are_reckoned_from_the_work_that_one_carries_out_at_once(demand, capacity, members):
    assert needed(demand, capacity) == members


def test_a_member_that_can_do_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one thing"):
        needed(3, 0)


@pytest.mark.parametrize("observed, wanted", [
    # (time, need) one after the other, and what is wanted at each, with 1 to 4 members and 10 idle seconds
    ([(0, 0)], [1]),
    ([(0, 0), (1, 3)], [1, 3]),                                         # at once by what the backlog needs
    ([(0, 9), (1, 9)], [4, 4]),                                         # not above the bound
    ([(0, 3), (5, 0), (14, 0), (15, 0), (15.1, 0)], [3, 3, 3, 3, 1]),   # 3 were needed until 5, so until 15 they stay
    ([(0, 3), (5, 2), (12, 0), (16, 0), (23, 0)], [3, 3, 3, 2, 1]),     # down by steps
    ([(0, 3), (9, 0), (18, 3), (27, 0), (36, 3)], [3, 3, 3, 3, 3]),     # waves
    ([(0, 2), (100, 0), (101, 0), (111, 0)], [2, 2, 2, 1]),             # needed until somebody looked again
])
def test_it_grows_at_once_and_shrinks_after_the_idle_time(observed, wanted):
    scaler = Scaler()
    assert [scaler.want(now, need, Bounds(1, 4, 10.0)) for now, need in observed] == wanted


def test_bounds_that_change_hold_at_once():
    scaler = Scaler()
    assert scaler.want(0, 8, Bounds(1, 4)) == 4
    assert scaler.want(1, 8, Bounds(1, 8)) == 8
    assert scaler.want(2, 8, Bounds(1, 2)) == 2
    assert scaler.want(3, 0, Bounds(5, 8, 0.5)) == 8, "8 were needed a moment ago"
    assert scaler.want(4, 0, Bounds(5, 8, 0.5)) == 5


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_most_that_was_needed_within_the_idle_time(seed):
    """Against the definition, over the whole history."""
    rng = np.random.default_rng(seed)
    scaler, now, history = Scaler(), 0.0, [(0.0, 0.0, 0)]       # (from, until, need)
    for _ in range(300):
        now += float(rng.exponential(2.0))
        need = int(rng.integers(0, 12))
        bounds = Bounds(int(rng.integers(0, 3)), int(rng.integers(3, 10)), 5.0)
        history[-1] = (history[-1][0], now, history[-1][2])
        history.append((now, now, need))
        most = max(n for _, until, n in history if until >= now - bounds.idle_s)
        assert scaler.want(now, need, bounds) == min(max(most, bounds.least), bounds.most)
