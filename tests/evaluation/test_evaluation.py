"""pass@k and pass^k against enumeration of every subset, the form of summary.json, the intervals, and the table."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest

from rti.evaluation import KS, TaskResult, pass_at_k, pass_hat_k, summarise, table


def by_enumeration(outcomes: list[bool], k: int) -> tuple[Fraction, Fraction]:
    """(share of k-subsets with a success, share of k-subsets with successes only)."""
    subsets = list(itertools.combinations(outcomes, k))
    return (Fraction(sum(any(s) for s in subsets), len(subsets)), Fraction(sum(all(s) for s in subsets), len(subsets)))


def results(seed: int, tasks: int, rate: float = 0.4, n: int = 4) -> list[TaskResult]:
    rng, classes = np.random.default_rng(seed), ("plain", "ambiguous")
    return [TaskResult(task_id=f"t{i}", cls=classes[i % 2], outcomes=[bool(x) for x in rng.random(n) < rate])
            for i in range(tasks)]


@pytest.mark.parametrize("n", range(1, 8))
def test_the_formulas_equal_enumeration(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            at, hat = by_enumeration(outcomes, k)
            assert pass_at_k(n, c, k) == pytest.approx(float(at), abs=1e-15)
            assert pass_hat_k(n, c, k) == pytest.approx(float(hat), abs=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    for formula in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError):
            formula(n, c, k)


def test_both_are_unbiased() -> None:
    """Over many draws of n samples of a task of known rate p: 1 - (1-p)^k and p^k, within four standard errors."""
    rng, p, n, draws = np.random.default_rng(0), 0.35, 6, 20_000
    counts = rng.binomial(n, p, draws)
    for k in (1, 2, 4):
        for formula, truth in ((pass_at_k, 1 - (1 - p) ** k), (pass_hat_k, p ** k)):
            values = np.array([formula(n, int(c), k) for c in range(n + 1)])[counts]
            assert abs(values.mean() - truth) < 4 * values.std() / np.sqrt(draws)


def test_a_summary_is_the_mean_over_tasks_of_the_enumerated_values() -> None:
    found = summarise(rows := results(1, 30))
    at = [[float(by_enumeration(r.outcomes, k)[0]) for k in KS] for r in rows]
    hat = [[float(by_enumeration(r.outcomes, k)[1]) for k in KS] for r in rows]
    assert found["pass@k"] == pytest.approx(np.mean(at, axis=0)) and found["pass^k"] == pytest.approx(np.mean(hat, axis=0))
    assert found["p@1"] == pytest.approx(np.mean([np.mean(r.outcomes) for r in rows]))
    assert found["p@1"] == pytest.approx(found["pass@k"][0]) and found["p@1"] == pytest.approx(found["pass^k"][0])
    assert found["avg_p@k"] == pytest.approx(np.mean(at)) and found["avg_p^k"] == pytest.approx(np.mean(hat))
    plain = [r for r in rows if r.cls == "plain"]
    assert found["by"]["plain"]["p@1"] == pytest.approx(np.mean([np.mean(r.outcomes) for r in plain]))
    assert found["by"]["plain"]["n_tasks"] == len(plain)


def test_the_form_is_that_of_summary_json() -> None:
    found = json.loads(json.dumps(summarise(results(1, 10))))
    measures = {"p@1", "pass@k", "pass^k", "avg_p@k", "avg_p^k"}
    assert set(found) == measures | {"n_tasks", "samples", "lost_samples", "incomplete", "ci", "by", "passed"}
    assert found["n_tasks"] == 10 and found["samples"] == 4 and found["incomplete"] == [] and found["lost_samples"] == 0
    assert len(found["pass@k"]) == len(found["pass^k"]) == 4
    assert set(found["by"]) == {"plain", "ambiguous"}
    for part in (found, *found["by"].values()):
        assert set(part["ci"]) == measures
        for key in measures:
            values, intervals = part[key], part["ci"][key]
            for value, (low, high) in zip(*((values, intervals) if isinstance(values, list) else ([values], [intervals]))):
                assert 0 <= low <= value <= high <= 1
    assert "by" in summarise([TaskResult(task_id="a", outcomes=[True])], (1,)) and not summarise(
        [TaskResult(task_id="a", outcomes=[True])], (1,))["by"]


def test_intervals_are_seeded_and_touch_no_stream_of_others() -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    one, two, other = summarise(results(1, 40), seed=3), summarise(results(1, 40), seed=3), summarise(results(1, 40), seed=4)
    assert one == two and one["ci"] != other["ci"] and one["p@1"] == other["p@1"]
    assert (np.random.get_state()[1] == before).all()


def test_the_interval_is_that_of_a_bootstrap_written_out() -> None:
    rows = results(5, 60)
    per_task = np.array([np.mean(r.outcomes) for r in rows])
    rng = np.random.default_rng(99)
    drawn = [per_task[rng.integers(0, 60, 60)].mean() for _ in range(4000)]
    low, high = summarise(rows, resamples=4000)["ci"]["p@1"]
    assert low == pytest.approx(np.percentile(drawn, 2.5), abs=0.02)
    assert high == pytest.approx(np.percentile(drawn, 97.5), abs=0.02)


def test_lost_samples_are_reported_and_never_counted_as_failures() -> None:
    rows = [TaskResult(task_id="whole", outcomes=[True] * 4), TaskResult(task_id="half", outcomes=[True, True], lost=2),
            TaskResult(task_id="gone", outcomes=[], lost=4)]
    found = summarise(rows)
    assert found["p@1"] == 1.0 and found["pass@k"] == [1.0] * 4 and found["pass^k"] == [1.0] * 4
    assert found["n_tasks"] == 3 and found["lost_samples"] == 6 and found["incomplete"] == ["half", "gone"]
    rows[0] = TaskResult(task_id="whole", outcomes=[False] * 4)
    found = summarise(rows)
    assert found["p@1"] == 0.5 and found["pass@k"] == [0.5, 0.5, 0.0, 0.0]     # k = 3, 4: the whole task only


def test_what_no_task_can_give_is_none_and_out_of_the_averages() -> None:
    found = summarise([TaskResult(task_id="a", outcomes=[True, False]), TaskResult(task_id="b", outcomes=[False, False])])
    assert found["pass@k"] == [0.25, 0.5, None, None] and found["pass^k"] == [0.25, 0.0, None, None]
    assert found["avg_p@k"] == 0.375 and found["avg_p^k"] == 0.125 and found["ci"]["pass@k"][3] is None
    nothing = summarise([TaskResult(task_id="a", outcomes=[], lost=4)])
    assert nothing["p@1"] is None and nothing["avg_p@k"] is None and nothing["samples"] == 4
    json.dumps(nothing, allow_nan=False)


def test_samples_that_never_came_make_a_task_incomplete() -> None:
    found = summarise([TaskResult(task_id="a", outcomes=[True, True])], samples=4)
    assert found["samples"] == 4 and found["incomplete"] == ["a"]


def test_no_tasks_and_a_task_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="test set is empty"):
        summarise([])
    with pytest.raises(ValueError, match="evaluated twice: b"):
        summarise([TaskResult(task_id=i, outcomes=[True]) for i in "abcb"])


# --- the table -------------------------------------------------------------------------------------------------------
def test_the_table_reads_well_at_a_hundred_columns() -> None:
    before, after = summarise(results(1, 150, 0.1)), summarise(results(2, 150, 0.6))
    text = table({"before": before, "after": after})
    lines = text.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith("150 tasks, 4 samples each")
    assert lines[2].split() == ["before", "after", "change"]
    row = next(line for line in lines if line.startswith("p@1 "))
    assert f"{100 * before['p@1']:.1f}" in row and f"{100 * after['p@1']:.1f}" in row
    assert row.endswith(f"{100 * (after['p@1'] - before['p@1']):+.1f}")
    for label in ("pass@4", "pass^4", "avg pass@k", "avg pass^k", "ambiguous (75 tasks)", "plain (75 tasks)"):
        assert label in text
    assert len({len(line) for line in lines if "[" in line}) == 1       # the columns stand under each other


def test_one_side_alone_has_no_change_column() -> None:
    text = table({"before": summarise(results(1, 20)), "after": None})
    assert "before" in text and "change" not in text and "after" not in text
    assert table({"before": None, "after": None}) == "No evaluation."


def test_the_table_says_what_was_lost() -> None:
    rows = [TaskResult(task_id=f"a-task-with-a-long-name-{i}", cls="a class with quite a long name", outcomes=[True], lost=3)
            for i in range(5)]
    text = table({"before": summarise(results(1, 5)), "after": summarise(rows)})
    assert "after: 15 samples of 5 tasks lost" in text and "before:" not in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_value_that_is_missing_is_a_dash() -> None:
    lost = summarise([TaskResult(task_id="a", cls="x", outcomes=[], lost=4)])
    other = summarise([TaskResult(task_id="a", cls="y", outcomes=[True] * 4)])
    for pair in ((lost, other), (other, lost), (lost, lost)):
        text = table(dict(zip(("before", "after"), pair)))
        assert next(line for line in text.splitlines() if line.startswith("p@1 ")).split()[-1] == "-"


def test_a_k_beyond_the_samples_has_no_row() -> None:
    text = table({"before": summarise(results(1, 9, n=2)), "after": summarise(results(2, 9, n=2))})
    assert "pass@2" in text and "pass@3" not in text and "pass^4" not in text and "2 samples each" in text
