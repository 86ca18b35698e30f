"""Figures out of range, trajectory files that are missing or copied, and evaluations that summary or metrics contradict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rti.run import metrics, trajectories
from rti.run.audit import main
from tests.run.breaking import edit_groups, edit_lines, expect
from tests.run.made_run import make_config


# --- ranges ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("key", "value", "word"), [
    ("weight/max", 1.3, "can be 0.8 to 1.2"), ("weight/mean", 0.7, "can be 0.8 to 1.2"),
    ("policy/weight_max", 2, "can be 0.8 to 1.2"), ("learner/padding_share", 3, "can be 0 to 1"),
    ("reward/before_mean", -0.1, "can be 0 to 1"), ("groups/branches", -1, "can be 0 or more"),
    ("ppl/accepted_mean", 5.5, "can be 1 to 5"), ("ppl/refused_mean", 0.5, "can be 1 or more"),
    ("staleness/mean", 2, "can be 0 to 1"), ("reward/class/plain", 7, "can be 0 to 1"),
    ("learner/padding_share", None, "always a number"), ("learner/tokens", None, "always a number"),
])
def test_a_figure_out_of_its_range(run: Path, key: str, value: float | None, word: str) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[1].update({key: value}))
    expect(run, "metrics-in-range", "metrics.jsonl:2", f"{key} is {value}", word)


@pytest.mark.parametrize(("key", "value"), [
    ("weight/max", 1.2000000476837158), ("learner/grad_norm", None), ("policy/loss", -3.0), ("policy/teacher_kl", -0.5),
    ("policy/importance_mean", 1.9), ("weight/std", 0.1),
])
def test_a_figure_within_its_range(run: Path, key: str, value: float | None) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[1].update({key: value}))
    assert main([str(run)]) == 0


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_figure_that_json_does_not_have(run: Path, text: str) -> None:
    path = run / "metrics.jsonl"
    edit_lines(path, lambda lines: lines[1].update({"learner/padding_share": 0.125}))
    path.write_text(path.read_text().replace("0.125", text))
    expect(run, "records-readable", "metrics.jsonl:2", only=False)


def test_a_key_that_nobody_knows_is_noted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[1].update({"learner/paddings": 1}))
    assert main([str(run)]) == 0
    assert "does not know: learner/paddings" in capsys.readouterr().out


def test_every_metric_has_a_range() -> None:
    bounds = {m.key: metrics.bounds(m, make_config()) for m in metrics.METRICS}
    assert all(low < high for low, high in bounds.values())
    assert bounds["groups/consumed"][0] == 0 and bounds["eval/class/*"] == (0, 1) and bounds["step"][0] == 1


# --- trajectory files ------------------------------------------------------------------------------------------------
def test_a_missing_trajectory_file(run: Path) -> None:
    trajectories.path_of(run / "trajectories", 2).unlink()
    expect(run, "trajectory-files", "step-000002.rti is missing; 3 groups of its step were stored")


@pytest.mark.parametrize("name", ["step-0000002.rti", "step-000002 (copy).rti", "step-000002.rti.bak"])
def test_a_copy_of_a_trajectory_file(run: Path, name: str) -> None:
    shutil.copy(trajectories.path_of(run / "trajectories", 2), run / "trajectories" / name)
    expect(run, "trajectory-files", "a copy of one was put there", only=False)


def test_a_group_that_is_stored_twice(run: Path) -> None:
    edit_groups(run, lambda groups: groups.append(groups[0]))
    expect(run, "trajectory-files", "step-000001.rti: it holds group 0-0 twice")


def test_a_group_that_is_no_longer_stored(run: Path) -> None:
    edit_groups(run, lambda groups: groups.pop(), step=2)
    expect(run, "trajectory-files", "step-000002.rti holds 2 groups, and 3 of its step were stored")


def test_steps_before_a_resume_that_stored_fewer_are_noted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectories.path_of(run / "trajectories", 1).unlink()
    edit_groups(run, lambda groups: groups.pop(), step=2)
    assert main([str(run)]) == 0
    assert "step-000001.rti is missing" in (out := capsys.readouterr().out) and "unless a resume raised it" in out


# --- evaluations -----------------------------------------------------------------------------------------------------
def _edit(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_summary_that_the_evaluation_contradicts(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    _edit(run / "summary.json", {"after": summary["after"] | {"p@1": 0.9}})
    expect(run, "evaluations", "summary.json: after is not the evaluation of step 3: its p@1 is 0.9, the file's 0.25")


def test_a_summary_whose_evaluation_is_gone(run: Path) -> None:
    (run / "evaluations/step-000000.json").unlink()
    expect(run, "evaluations", "summary.json: before is not the evaluation of step 0", "the file's missing")


def test_a_metric_that_the_evaluation_contradicts(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[2].update({"eval/p@1": 0.5}))
    expect(run, "evaluations", "metrics.jsonl:3", "eval/p@1 is 0.5, the evaluation's file says 0.25")


def test_an_evaluation_whose_classes_give_another_mean(run: Path) -> None:
    for path in sorted((run / "evaluations").iterdir()):
        _edit(path, {"p@1": 0.75})
    expect(run, "evaluations", "p@1 is 0.75, its classes give 0.25")


@pytest.mark.parametrize("text", ["[]", "{", '{"by": 3}', '{"by": {"plain": {}}}'])
def test_an_evaluation_that_is_none(run: Path, text: str) -> None:
    (run / "evaluations/step-000000.json").write_text(text)
    expect(run, "evaluations", "step-000000.json", "cannot be read as an evaluation")
