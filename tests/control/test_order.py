"""The order of tasks: every task once an epoch, the same for the same seed, nothing stored."""

import pytest

from rti.control.order import TaskOrder


def test_each_epoch_has_every_task_once_and_its_own_order():
    order = TaskOrder(50, seed=3)
    epochs = [[order.ticket(e * 50 + i).task for i in range(50)] for e in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(50))


def test_the_order_depends_on_the_seed_alone_and_not_on_what_was_asked_before():
    one, other = TaskOrder(30, seed=3), TaskOrder(30, seed=3)
    late = [other.ticket(k).task for k in reversed(range(90))]
    assert [one.ticket(k).task for k in range(90)] == late[::-1]
    assert [TaskOrder(30, seed=4).ticket(k).task for k in range(90)] != late[::-1]


def test_group_ids_name_epoch_and_position_and_lead_back():
    order = TaskOrder(7, seed=0)
    assert order.ticket(16).group_id == "2-2"
    assert [order.ordinal(order.ticket(k).group_id) for k in range(40)] == list(range(40))


@pytest.mark.parametrize("text", ["", "x", "1", "1-", "-1-2", "0-7", "1-2-3", "eval-4"])
def test_what_is_no_group_id_is_refused(text):
    with pytest.raises(ValueError, match="not a group id"):
        TaskOrder(7, seed=0).ordinal(text)


def test_an_empty_task_set_is_refused():
    with pytest.raises(ValueError, match="no training tasks"):
        TaskOrder(0, seed=0)


def test_a_voided_group_is_sampled_anew_and_a_lost_episode_is_not():
    order = TaskOrder(7, seed=0)
    again = order.ticket(3, round=1)
    assert again.group_id == order.ticket(3).group_id
    assert again.seed(5, "rollout", 0) != order.ticket(3).seed(5, "rollout", 0)
    assert order.ticket(3).seed(5, "rollout", 0) == order.ticket(3).seed(5, "rollout", 0)
