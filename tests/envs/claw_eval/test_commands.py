"""launch/data.py claw-eval: what it writes is checked, what it selects follows the profile, and its errors say the mend."""

import json
from fractions import Fraction

import pytest

from launch import data
from rti.envs.claw_eval import commands
from rti.envs.claw_eval.synthesis import synthesise
from rti.envs.task_files import read_tasks
from rti.run.profile import Profile, TaskProfile, read_profile, write_profile

FAMILIES = "payment,restock"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("claw-eval") / "set"
    assert data.main(["claw-eval", "synthesize", "--families", FAMILIES, "--variants", "2", "--out", str(out)]) == 0
    return out


def profile(*tasks, model="policy"):
    return Profile(model=model, samples=3, temperature=0.8, tasks=[TaskProfile(id=i, samples=n, passed=p) for i, p, n in tasks])


def report_of(capsys):
    text = capsys.readouterr().out
    return json.loads(text[text.index("{"):])


def test_the_set_that_is_written_is_the_one_that_the_environment_makes_by_itself(made):
    expected, _ = synthesise(["payment", "restock"], 2)
    for split in ("train", "test"):
        assert read_tasks(made / f"{split}.jsonl") == expected[split]
        assert len(expected[split]) == 4


def test_the_report_counts_the_tasks_by_category(tmp_path, capsys):
    words = ["claw-eval", "synthesize", "--families", "payment", "--variants", "1", "--seed", "5", "--out", str(tmp_path)]
    assert data.main(words) == 0
    report = report_of(capsys)
    assert report["families"] == ["payment"] and report["seed"] == 5 and report["problems"] == 0
    assert report["test"]["tasks"] == sum(report["test"]["by_category"].values()) == 1


def test_nothing_is_written_where_a_task_breaks_a_promise(tmp_path, capsys, monkeypatch):
    def lopsided(families, variants, seed):
        found, redrawn = synthesise(families, variants, seed)
        [task] = found["test"]
        task.evidence["components"][0]["weight"] += 0.5      # the parts no longer add up to the whole
        return found, redrawn

    monkeypatch.setattr(commands, "synthesise", lopsided)
    words = ["claw-eval", "synthesize", "--families", "payment", "--variants", "1", "--out", str(tmp_path / "set")]
    assert data.main(words) == 1
    assert "payment-test-000: " in capsys.readouterr().err
    assert not (tmp_path / "set").exists()


def test_an_unknown_family_is_named(tmp_path, capsys):
    assert data.main(["claw-eval", "synthesize", "--families", "poetry", "--out", str(tmp_path)]) == 2
    assert "there is no family 'poetry'" in capsys.readouterr().err


def test_the_tasks_that_are_seldom_passed_are_selected_and_the_split_that_was_not_profiled_stays(made, tmp_path, capsys):
    write_profile(tmp_path / "profile.json", profile(
        ("payment-test-000", 0, 3), ("payment-test-001", 1, 3), ("restock-test-000", 2, 3)))     # restock-test-001: never run
    words = ["claw-eval", "select", "--profile", str(tmp_path / "profile.json"), "--tasks", str(made)]
    assert data.main([*words, "--max-pass", "1/3", "--out", str(tmp_path / "hard")]) == 0
    report = report_of(capsys)
    assert [t.id for t in read_tasks(tmp_path / "hard" / "test.jsonl")] == ["payment-test-000", "payment-test-001"]
    assert read_tasks(tmp_path / "hard" / "train.jsonl") == read_tasks(made / "train.jsonl")
    assert (report["train"], report["test"]) == (4, 2) and list(report["profiled"]) == ["test"]
    assert report["profiled"]["test"]["unmeasured"] == 1
    rows = report["profiled"]["test"]["by_category"].values()
    assert sum(r["tasks"] for r in rows) == 3 and sum(r["kept"] for r in rows) == 2
    assert sorted((r["kept"], r["passed"], r["kept_passed"]) for r in rows) == [(0, 0.6667, None), (2, 0.1667, 0.1667)]


def test_one_rollout_of_three_is_exactly_a_third(made, tmp_path):
    seen = profile(("payment-test-000", 1, 3), ("restock-test-000", 34, 100))
    commands.select(str(made), seen, Fraction(1, 3), tmp_path / "hard")
    assert [t.id for t in read_tasks(tmp_path / "hard" / "test.jsonl")] == ["payment-test-000"]


def test_a_task_of_which_every_rollout_was_lost_is_unmeasured(made, tmp_path):
    report = commands.select(str(made), profile(("payment-test-000", 0, 3), ("payment-test-001", 0, 0)), Fraction(1, 3),
                             tmp_path / "hard")
    assert report["test"] == 1 and report["profiled"]["test"]["unmeasured"] == 3


@pytest.mark.parametrize("tasks, says", [
    ([("payment-test-000", 3, 3)], "more often than 1/3"), ([("another", 0, 3)], "knows no task of")])
def test_a_selection_without_a_task_is_refused(made, tmp_path, capsys, tasks, says):
    write_profile(tmp_path / "profile.json", profile(*tasks))
    words = ["claw-eval", "select", "--profile", str(tmp_path / "profile.json"), "--tasks", str(made)]
    assert data.main([*words, "--out", str(tmp_path / "hard")]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "hard").exists()


@pytest.mark.parametrize("text, says", [
    (None, "cannot read the profile"), ("{", "is no profile"), (json.dumps({"tasks": []}), "is no profile"),
    (json.dumps({"model": "m", "samples": 3, "temperature": 1, "tasks": [{"id": "a", "samples": 1, "passed": 2}]}),
     "2 of 1 rollouts passed, which cannot be")])
def test_what_is_no_profile_is_refused(tmp_path, capsys, text, says):
    if text is not None:
        (tmp_path / "profile.json").write_text(text)
    assert data.main(["claw-eval", "select", "--profile", str(tmp_path / "profile.json")]) == 2
    assert says in capsys.readouterr().err


def test_a_profile_comes_back_as_it_was_written(tmp_path):
    write_profile(tmp_path / "deep" / "profile.json", profile(("a", 1, 3)))
    assert read_profile(tmp_path / "deep" / "profile.json") == profile(("a", 1, 3))


@pytest.mark.parametrize("text", ["2", "4/3", "1/0", "few"])
def test_a_share_is_from_0_to_1(capsys, text):
    with pytest.raises(SystemExit):
        data.parse(["claw-eval", "select", "--profile", "p", "--max-pass", text])
    assert "is no share" in capsys.readouterr().err


def test_list_says_what_a_checkout_is_and_how_to_name_one(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("CLAW_EVAL_HOME", raising=False)
    assert data.main(["claw-eval", "list"]) == 2
    assert "mend: set env.claw_eval.home or CLAW_EVAL_HOME" in capsys.readouterr().err
    assert data.main(["claw-eval", "list", "--home", str(tmp_path)]) == 2
    assert "is no checkout of Claw-Eval" in capsys.readouterr().err
