"""What of a step's groups trains, and with which denominators."""

from __future__ import annotations

import numpy as np
import pytest

from rti.algos import load_algorithm
from rti.config.schema import AlgoConfig, InterventionConfig
from rti.learner.batch import prepare
from rti.trajectory import Ending, Source
from tests.factories import make_group

RTI = load_algorithm(AlgoConfig(), InterventionConfig())


def test_scales_make_the_mean_over_trajectories_of_the_mean_over_agent_tokens():
    groups = [make_group(0, rewards=(1, 0), turns=[4, 5]), make_group(1, rewards=(0, 0, 1), turns=[2, 3, 1], forks=True)]
    batch = prepare(groups, RTI)
    assert batch.trajectories == 5 and len(batch.samples) == 2 + 9
    assert [s.scale for s in batch.samples] == pytest.approx([1 / (9 * 5)] * 2 + [1 / (6 * 5)] * 9)
    assert sum(s.scale * len(s.select) for s in batch.samples) == pytest.approx(1)


def test_the_mean_over_tokens_gives_every_token_of_the_step_the_same_scale():
    which = load_algorithm(AlgoConfig(name="grpo", aggregation="token"), InterventionConfig())
    batch = prepare([make_group(0, rewards=(1, 0), turns=[4, 5]), make_group(1, rewards=(0, 1), turns=[3])], which)
    assert {s.scale for s in batch.samples} == {1 / batch.trained_tokens} and batch.trained_tokens == 2 * 9 + 2 * 3


def test_a_group_that_teaches_nothing_is_in_no_denominator():
    teaching, silent = make_group(0, rewards=(1, 0)), make_group(1, rewards=(1, 1))
    both, alone = prepare([teaching, silent], RTI), prepare([teaching], RTI)
    assert both.groups_no_signal == 1 and both.trajectories == alone.trajectories == 2
    assert [s.scale for s in both.samples] == [s.scale for s in alone.samples]
    assert prepare([silent], RTI).samples == []


def test_a_lost_member_leaves_the_denominator_too():
    group = make_group(0, rewards=(1, 0, 0))
    group.members[2].ending = Ending.INFRASTRUCTURE
    batch = prepare([group], RTI)
    assert batch.trajectories == 2 and batch.members_left_out == 1 and len(batch.samples) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_tokens_without_a_finite_behaviour_log_probability_leave_loss_and_denominator(bad):
    group = make_group(0, rewards=(1, 0), turns=[4, 5])
    sample = group.members[0].samples[0]
    at = np.flatnonzero(sample.mask)[[0, 3]]
    sample.behaviour_logps[at] = bad
    batch = prepare([group], RTI)
    assert batch.nonfinite_tokens == 2 and batch.trained_tokens == 7 + 9
    assert batch.samples[0].scale == pytest.approx(1 / (7 * 2)) and np.isfinite(batch.samples[0].behaviour_logps).all()


def test_an_intervened_token_needs_a_finite_weight_and_correction():
    group = make_group(0, rewards=(0, 0), rescued=0, turns=[4, 5])
    sample = group.members[0].samples[0]
    fixed = np.flatnonzero(sample.sources == Source.CORRECTION)
    sample.weights[fixed[0]], sample.correction_logps[fixed[1]] = np.nan, np.nan
    assert prepare([group], RTI).nonfinite_tokens == 2


def test_a_trajectory_without_usable_tokens_still_counts_as_a_member():
    group = make_group(0, rewards=(1, 0), turns=[4])
    group.members[1].samples[0].behaviour_logps[:] = np.nan
    batch = prepare([group], RTI)
    assert len(batch.samples) == 1 and batch.trajectories == 2 and batch.nonfinite_tokens == 4


def test_inputs_end_with_the_last_token_that_predicts_a_trained_one():
    group = make_group(0, rewards=(1, 0), turns=[4, 5])
    sample = group.members[0].samples[0]
    sample.sources[-5:] = Source.CONTEXT        # the last turn is context: nothing after the first turn is predicted
    made = prepare([group], RTI).samples[0]
    last = np.flatnonzero(sample.mask)[-1]
    assert len(made.inputs) == last and made.select[-1] == last - 1 and made.targets[-1] == sample.token_ids[last]


def test_a_sample_that_begins_with_a_trained_token_is_refused():
    group = make_group(0, rewards=(1, 0))
    group.members[0].samples[0].sources[0] = Source.POLICY
    with pytest.raises(ValueError, match="no prompt"):
        prepare([group], RTI)


def test_a_greedy_trajectory_is_scored_at_temperature_one():
    assert prepare([make_group(0, rewards=(1, 0), temperature=0.0)], RTI).samples[0].temperature == 1.0


# --- a teacher ---------------------------------------------------------------------------------------------------
OPD = load_algorithm(AlgoConfig(name="opd"), InterventionConfig())


def judged(seed=0, rewards=(0, 0), **how):
    group = make_group(seed, rewards=rewards, **how)
    for member in group.members:
        for sample in member.samples:
            sample.teacher_logps = np.where(sample.mask, sample.behaviour_logps - 1, np.nan).astype(np.float32)
    return group


def test_under_opd_every_group_trains_with_the_teachers_log_probabilities():
    batch = prepare([judged(0), judged(1, rewards=(1, 0))], OPD)
    assert batch.groups_no_signal == 0 and batch.trajectories == 4 and {s.advantage for s in batch.samples} == {0.0}
    for sample in batch.samples:
        np.testing.assert_array_equal(sample.teacher_logps, sample.behaviour_logps - 1)
    assert sum(s.scale * len(s.select) for s in batch.samples) == pytest.approx(1)


def test_a_token_that_the_teacher_finds_impossible_leaves_loss_and_denominator():
    group = judged(turns=[4, 5])
    sample = group.members[0].samples[0]
    sample.teacher_logps[np.flatnonzero(sample.mask)[0]] = -np.inf
    batch = prepare([group], OPD)
    assert batch.nonfinite_tokens == 1 and batch.samples[0].scale == pytest.approx(1 / (8 * 2))


def test_groups_that_no_teacher_judged_are_refused_under_opd():
    with pytest.raises(ValueError, match="no log-probabilities of the teacher.*another algo.name"):
        prepare([make_group(0, rewards=(1, 0))], OPD)


def test_a_teachers_tokens_are_told_from_the_policys():
    group = make_group(0, rewards=(1, 0), turns=[4, 5])
    shown = group.members[0].samples[0]
    shown.sources[shown.mask], shown.versions[shown.mask] = Source.TEACHER, -1
    one, other = prepare([group], load_algorithm(AlgoConfig(name="luffy"), InterventionConfig())).samples
    assert one.from_teacher.all() and not other.from_teacher.any() and not one.intervened.any()
    assert np.isnan(one.teacher_logps).all(), "nobody judged them"
