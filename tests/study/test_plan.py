"""What each run may spend, in which order the runs come, and what the search takes."""

import pytest

from rti.study.plan import ALGORITHMS, SCALES, SETTINGS, PlanError, Scale, Shape, chosen_rates, plan, scale_of

LAB = Shape(size=8, groups=4)


def most(entry):
    """Rollouts that an entry can come to: every group failed and every attempt was made."""
    again = entry.method in ("rti", "luffy") or entry.part in SETTINGS
    attempts = next((int(w[-1]) for w in entry.words if w.startswith("intervention.attempts=")), 1) if again else 0
    return entry.steps * LAB.groups * (LAB.size + attempts)


@pytest.mark.parametrize("name", SCALES)
def test_no_run_can_spend_more_than_the_budget_and_no_baseline_has_less_than_one_that_runs_again(name):
    scale = SCALES[name]
    entries = [e for e in plan(scale, LAB) if e.trains and not e.makes_teacher]
    for entry in entries:
        budget = scale.search_budget if entry.part == "search" else scale.budget
        assert budget - LAB.groups * (LAB.size + 4) < most(entry) <= budget, entry.name
    steps = {e.method: e.steps for e in entries if e.part == "methods"}
    assert steps["grpo"] == steps["gspo"] == steps["aepo"] == steps["opd"] >= steps["rti"] == steps["luffy"]


def test_the_hour_is_what_its_comment_says():
    steps = {e.name: e.steps for e in plan(scale_of("hour"), LAB)}
    assert (steps["grpo-0"], steps["rti-0"], steps["attempts_4-0"]) == (36, 32, 24)


def test_every_method_has_every_seed_and_the_same_search_on_a_seed_of_its_own():
    scale = scale_of("hour")
    entries = plan(scale, LAB)
    assert len({e.name for e in entries}) == len(entries)
    for algorithm in ALGORITHMS:
        own = [e for e in entries if e.method == algorithm]
        assert [e.seed for e in own if e.part == "methods"] == [0, 1, 2]
        searched = [e for e in own if e.part == "search"]
        assert {e.words[-1] for e in searched} == {"learner.lr=0.0001", "learner.lr=0.0002", "learner.lr=0.0004"}
        assert {e.seed for e in searched} == {scale.search_seed} and searched[0].words[-1] == "learner.lr=0.0002"
    settings = {e.method for e in entries if e.part in SETTINGS}
    assert settings == {name for part in SETTINGS.values() for name in part}
    assert all(e.searched == "rti" for e in entries if e.part in SETTINGS)


def test_a_search_and_the_teacher_stand_before_what_needs_them():
    names = [e.name for e in plan(scale_of("hour"), LAB)]
    for algorithm in ALGORITHMS:
        assert names.index(f"search-{algorithm}-0.0004") < names.index(f"{algorithm}-0")
    assert names.index("make-teacher") < names.index("teacher") < names.index("search-luffy-0.0002")
    alone = [e.name for e in plan(scale_of("hour", ["algorithms=rti", "parts=intervener"]), LAB)]
    assert alone.index("make-teacher") < alone.index("external-0")
    assert "make-teacher" not in [e.name for e in plan(scale_of("hour", ["algorithms=rti,grpo", "parts=methods"]), LAB)]


def test_the_best_rate_is_taken_and_of_equal_ones_the_middle():
    scale = Scale(rates=(1.0, 2.0, 4.0))
    scores = {"rti": {1.0: 0.3, 2.0: 0.3, 4.0: 0.3}, "grpo": {1.0: 0.1, 2.0: 0.2, 4.0: 0.5}, "opd": {2.0: 0.9}}
    assert chosen_rates(scale, scores) == {"rti": 2.0, "grpo": 4.0}, "opd waits for the rest of its search"
    assert chosen_rates(Scale(rates=(3.0,), algorithms=("rti",)), {}) == {"rti": 3.0}


@pytest.mark.parametrize("words, told", [
    (["seed=1"], "one of budget"), (["seeds=a"], "seeds=a: expected int"), (["seeds=0,100"], "none of the seeds"),
    (["parts=method"], "parts=method: there are methods"), (["algorithms=ppo"], "algorithms=ppo"),
    (["budget=ten"], "budget=ten")])
def test_a_scale_that_cannot_be_is_refused(words, told):
    with pytest.raises(PlanError, match=told):
        scale_of("hour", words)


def test_a_budget_below_one_step_is_refused_with_the_least():
    with pytest.raises(PlanError, match="give at least 36"):
        plan(scale_of("hour", ["budget=35", "algorithms=rti"]), LAB)
    with pytest.raises(PlanError, match="--scale week: there are hour, day"):
        scale_of("week")
