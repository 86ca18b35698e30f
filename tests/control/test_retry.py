"""The truth table of endings, and the bound on running again."""

import itertools

import pytest

from rti.algos import load_algorithm
from rti.config.schema import AlgoConfig, InterventionConfig
from rti.control.retry import RetriesExhausted, RetryBook, Use, teaches, use_of
from rti.trajectory import Ending, Group, Trajectory
from tests.factories import make_group


def test_every_ending_is_in_the_table_and_agrees_with_what_the_trajectory_says_of_it():
    for ending in Ending:
        use = use_of(ending)
        assert use.again is not ending.is_agents
        assert use.trained is use.counted is ending.is_agents


def test_an_infrastructure_loss_is_no_reward_of_zero():
    assert use_of(Ending.INFRASTRUCTURE) == Use(trained=False, counted=False, again=True)
    assert use_of(Ending.ENVIRONMENT) == Use(trained=False, counted=False, again=True)


def test_one_setting_decides_whether_a_cut_episode_is_trained_on():
    assert use_of(Ending.TRUNCATED, train_truncated=True).trained
    assert use_of(Ending.TRUNCATED, train_truncated=False) == Use(trained=False, counted=True, again=False)
    assert use_of(Ending.COMPLETED, train_truncated=False).trained


@pytest.mark.parametrize("train_truncated", [True, False])
def test_a_group_teaches_exactly_where_the_algorithm_finds_an_advantage(train_truncated):
    algorithm = load_algorithm(AlgoConfig(), InterventionConfig(), train_truncated)
    kinds = list(itertools.product((Ending.COMPLETED, Ending.TRUNCATED, Ending.INFRASTRUCTURE), (0.0, 1.0)))
    for chosen in itertools.product(kinds, repeat=3):
        members = [Trajectory(id=f"0-0/{i}", group_id="0-0", task_id="t", ending=ending, reward=reward)
                   for i, (ending, reward) in enumerate(chosen)]
        group = Group(id="0-0", task_id="t", members=members)
        assert teaches(group, train_truncated) == bool(algorithm.advantages(group).any()), chosen


@pytest.mark.parametrize("ending, tokens, taught", [
    (Ending.COMPLETED, 4, True), (Ending.COMPLETED, 0, False), (Ending.TRUNCATED, 4, False), (Ending.INFRASTRUCTURE, 4, False)])
def test_where_a_teacher_judges_tokens_one_member_that_trains_is_enough(ending, tokens, taught):
    group = make_group(0, rewards=(0, 0), turns=[4])
    for member in group.members:
        member.ending = ending
        if not tokens:
            member.samples = []
    assert teaches(group, train_truncated=False, distils=True) is taught
    assert not teaches(group, train_truncated=False)


def test_each_episode_has_its_own_bound_and_the_message_says_what_why_and_the_mend():
    book = RetryBook(2, "group 0-3 (task t7)")
    for _ in range(2):
        book.lost([0, 1], "the worker died")
    book.lost([2], "the worker died")
    assert book.total == 5
    with pytest.raises(RetriesExhausted, match=r"group 0-3 \(task t7\): episode 1 was lost 3 times.*gone.*rollout.retries"):
        book.lost([1], "the engine has gone away")


def test_no_retries_means_the_first_loss_ends_the_run():
    with pytest.raises(RetriesExhausted):
        RetryBook(0, "group 0-0").lost([0], "x")
