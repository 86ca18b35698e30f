"""What is read from a run's lines, by hand-made lines; the form of study.json; what cannot be read."""

import pytest

from rti.run.files import RecordError
from rti.study import records
from rti.study.records import account, score, statistics, turns_of
from rti.trajectory import Group, Message, Step, Trajectory
from tests.study.made import outcome, study

LINES = [
    {"step": 1, "rollouts/plain": 64, "learner/updated": 1, "groups/failed": 5, "groups/rescued": 2, "intervention/rollouts": 5,
     "intervention/success_share": 0.4, "intervention/accepted_trajectories_share": 0.8, "intervention/steps": 15,
     "intervention/flagged": 6, "intervention/accepted": 4, "intervention/refused/gate": 2, "ppl/accepted_mean": 3.0,
     "intervention/calls_original": 1.0, "weight/tokens": 50},
    {"step": 2, "rollouts/plain": 64, "groups/failed": 1, "intervention/rollouts": 1, "intervention/success_share": 0.0,
     "intervention/accepted_trajectories_share": 1.0, "intervention/steps": 3, "intervention/flagged": 1,
     "intervention/accepted": 1, "ppl/accepted_mean": 2.0, "intervention/calls_original": 2.0, "weight/tokens": 9},
]


def test_the_account_counts_every_rollout():
    spent = account(LINES, {"wall_s": 12.34})
    assert (spent.steps, spent.updates, spent.plain, spent.intervened, spent.rollouts) == (2, 1, 128, 6, 134)
    assert (spent.failed, spent.rescued, spent.wall_s) == (6, 2, 12.3)


def test_statistics_add_counts_and_weigh_means_by_the_accepted_steps():
    found = statistics(LINES)
    assert (found["intervention/flagged"], found["intervention/refused/gate"], found["weight/tokens"]) == (7, 2, 59)
    assert (found["successes"], found["with_accepted"]) == (2, 5)
    assert found["ppl/accepted_mean"] == pytest.approx((4 * 3 + 1 * 2) / 5)
    assert found["intervention/calls_original"] == pytest.approx(6 / 5)
    assert statistics([{"step": 1, "rollouts/plain": 64}]) == {}


def test_turns_are_those_of_plain_rollouts():
    def made(turns):
        return Trajectory(id="", group_id="", task_id="", steps=[Step(message=Message(role="assistant"))] * turns)
    assert turns_of([Group(id="", task_id="", members=[made(2), made(3), made(2)], replaced=1)]) == {2: 2}


def test_a_search_is_scored_by_the_last_quarter():
    curve = [0.9, None, 0.9, 0.9, 0.8, 0.7, 0.9, 0.2, 0.4]
    assert score(outcome("rti", 9, 0, 0, curves={"reward/before_mean": curve})) == pytest.approx(0.3)


def test_a_study_is_read_as_it_was_written(tmp_path):
    made = study([outcome("rti", 0, 4, 1, turns={2: 5}, evaluations={6: {"p@1": 0.5, "pass@k": [0.5, 0.6]}},
                          curves={"ppl/accepted_mean": [None, 2.5]})])
    records.write(tmp_path / "study.json", made)
    read = records.read(tmp_path / "study.json")
    assert read.outcomes == made.outcomes and read.classes == made.classes and read.scale["seeds"] == [0, 1, 2]


def test_what_is_no_study_is_refused_with_the_mend(tmp_path):
    with pytest.raises(RecordError, match="launch/study.py` makes it"):
        records.read(tmp_path / "study.json")
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(RecordError, match="--report"):
        records.read(tmp_path / "study.json")
