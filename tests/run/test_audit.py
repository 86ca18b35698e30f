"""Each invariant of the audit that ledger, metrics and files show is broken on purpose: exit code 1, and the place named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rti.run import trajectories
from rti.run.audit import GROUP_CHECKS, RUN_CHECKS, audit, main
from rti.run.lock import DirectoryLock
from tests.run.breaking import edit_lines, expect
from tests.run.made_run import make_config, make_run


def test_a_whole_run_passes_and_each_check_looked_at_something(
        whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMAP_API_KEY", "not-in-any-file")
    assert main([str(whole)]) == 0
    results = audit(whole)
    assert [r.check for r in results] == [*RUN_CHECKS, *GROUP_CHECKS]
    assert all(r.findings.checked > 0 for r in results)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("ok ") for line in lines) == len(RUN_CHECKS) + len(GROUP_CHECKS)
    assert lines[-1] == f"all {len(RUN_CHECKS) + len(GROUP_CHECKS)} invariants hold"


def test_the_command_line_works_without_torch_and_ray(whole: Path) -> None:
    code = ("import sys, runpy; sys.argv = ['audit', sys.argv[1]]\n"
            "try: runpy.run_module('rti.run.audit', run_name='__main__')\n"
            "except SystemExit as e: assert e.code == 0, e.code\n"
            "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)")
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(whole)], check=True, capture_output=True)


@pytest.mark.parametrize("missing", ["config.yaml", "metrics.jsonl", "ledger.jsonl"])
def test_a_directory_that_is_no_run_gives_2(run: Path, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / missing).unlink()
    assert main([str(run)]) == 2
    assert missing in capsys.readouterr().err


def test_no_directory_and_a_broken_configuration_give_2(run: Path, tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    (run / "config.yaml").write_text("learner: {lr: fast}\n")
    assert main([str(run)]) == 2


# --- records ---------------------------------------------------------------------------------------------------------
def test_a_line_that_is_not_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines()
    lines[3] = lines[3][:-7]
    (run / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    expect(run, "records-readable", "ledger.jsonl:4")
    assert "not checked, mend the records first" in capsys.readouterr().out


def test_a_ledger_line_without_its_fields(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[1].pop("group_id"))
    expect(run, "records-readable", "ledger.jsonl:2", "group_id")


def test_a_truncated_trajectory_file(run: Path) -> None:
    path = trajectories.path_of(run / "trajectories", 2)
    path.write_bytes(path.read_bytes()[:-40])
    expect(run, "records-readable", "step-000002.rti", "record 3 at byte", "truncated")


@pytest.mark.parametrize("value, word", [("[1]", "expected an object, found list"),
                                         ("null", "expected an object, found NoneType")])
def test_a_summary_that_is_no_object(run: Path, value: str, word: str) -> None:
    (run / "summary.json").write_text(value)
    expect(run, "records-readable", "summary.json", word)


def test_a_metric_that_is_no_number(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[0].update({"reward/mean": "abc"}))
    expect(run, "records-readable", "metrics.jsonl:1", "reward/mean is 'abc', not a number", only=False)


def test_a_trajectory_file_that_cannot_be_read(run: Path) -> None:
    path = trajectories.path_of(run / "trajectories", 1)
    path.unlink()
    path.mkdir()
    expect(run, "records-readable", path.name, "cannot be read")


def test_a_torn_last_line_is_noted_not_a_breach(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "summary.json").unlink()
    with (run / "ledger.jsonl").open("a") as f:
        f.write('{"step":4,"group_')
    assert main([str(run)]) == 0
    assert "ledger.jsonl:11 has no end" in capsys.readouterr().out


def test_a_run_that_is_going_on_is_noted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = DirectoryLock(run)
    assert main([str(run)]) == 0
    assert f"process {os.getpid()}" in capsys.readouterr().out
    lock.release()


# --- ledger ----------------------------------------------------------------------------------------------------------
def test_a_group_consumed_twice(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[-1].update(group_id="0-0", ids=[f"0-0/{i}" for i in range(4)]))
    expect(run, "consumed-once", "ledger.jsonl:10", "group 0-0", "line 1", only=False)


def test_a_consumed_group_that_is_voided_afterwards(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[3].update(group_id="0-0"))
    expect(run, "consumed-once", "group 0-0 is voided", "line 1")


@pytest.fixture
def reusing(tmp_path: Path) -> Path:
    """A whole run in whose second step the group rescued in the first is consumed once more."""
    config = make_config()
    config.buffer.reuse = 2
    path = make_run(tmp_path / "reusing", config=config)
    _use_again(path, 1, step=2)
    return path


def _use_again(path: Path, index: int, step: int, **change: Any) -> None:
    def ledger(lines: list[dict[str, Any]]) -> None:
        at = max(i for i, line in enumerate(lines) if line["step"] == step)
        again = {**lines[index], "step": step, "learner_version": step - 1, "use": 2, **change}
        lines.insert(at + 1, again | {"staleness": step - 1 - again["oldest_version"]})

    def metrics(lines: list[dict[str, Any]]) -> None:
        line = lines[step - 1]
        line["buffer/reused"], line["staleness/max"] = line["buffer/reused"] + 1, 1
        line["policy/trained_tokens"] += tokens

    tokens = json.loads((path / "ledger.jsonl").read_text().splitlines()[index])["tokens"]
    edit_lines(path / "ledger.jsonl", ledger)
    edit_lines(path / "metrics.jsonl", metrics)


def test_a_rescued_group_may_be_used_as_often_as_allowed(reusing: Path) -> None:
    assert not [result for result in audit(reusing) if not result.holds]


def test_a_use_beyond_the_allowance(reusing: Path) -> None:
    _use_again(reusing, 1, step=2, use=3)       # by the same step, and one more than buffer.reuse
    expect(reusing, "consumed-once", "use 3 of group 0-1 follows use 2 at step 2", "buffer.reuse is 2")


@pytest.mark.parametrize("change", [{"use": 3}, {"replaced": 1}, {"oldest_version": 1}])
def test_a_use_that_is_not_the_next_one_of_the_same_group(reusing: Path, change: dict[str, Any]) -> None:
    edit_lines(reusing / "ledger.jsonl", lambda lines: next(e for e in lines if e["use"] == 2).update(change))
    expect(reusing, "consumed-once", "of group 0-1 follows use 1 at step 1", only=False)


def test_a_second_use_of_a_group_that_was_not_rescued(run: Path) -> None:
    _use_again(run, 0, step=2)
    expect(run, "consumed-once", "use 2 of group 0-0 follows use 1 at step 1; buffer.reuse is 1")


def test_a_second_use_without_a_first(reusing: Path) -> None:
    edit_lines(reusing / "ledger.jsonl", lambda lines: lines.pop(1))
    expect(reusing, "consumed-once", "use 2 of group 0-1 follows no other", only=False)


def test_a_rollout_counted_twice(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[0].update(ids=["0-0/0", "0-0/0", "0-0/2", "0-0/3"]))
    expect(run, "consumed-once", "ledger.jsonl:1", "0-0/0", only=False)


def test_groups_that_were_passed_over(run: Path) -> None:
    def skip(lines: list[dict[str, Any]]) -> None:
        lines[-1].update(group_id="0-40", ids=[f"0-40/{i}" for i in range(4)])

    edit_lines(run / "ledger.jsonl", skip)
    expect(run, "nothing-skipped", "32 groups before 0-40", "0-8", only=False)


def test_an_epoch_left_in_the_middle(run: Path) -> None:
    def leap(lines: list[dict[str, Any]]) -> None:
        for line in lines[7:]:      # step 3 goes on in the second epoch, three positions of the first were never consumed
            line["group_id"] = line["group_id"].replace("0-", "1-")
            line["ids"] = [i.replace("0-", "1-") for i in line["ids"]]

    edit_lines(run / "ledger.jsonl", leap)
    expect(run, "nothing-skipped", "before 1-8", only=False)


@pytest.mark.parametrize("step", [2, 4, 9])
def test_a_step_that_is_missing_or_stands_twice(run: Path, step: int) -> None:
    (run / "summary.json").unlink()
    edit_lines(run / "metrics.jsonl", lambda lines: lines[2].update(step=step))
    expect(run, "steps-contiguous", "metrics.jsonl:3", f"step {step} stands where step 3 belongs", only=False)


def test_ledger_steps_out_of_order(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines.append(lines.pop(0)))
    expect(run, "steps-contiguous", "ledger.jsonl:10", "step 1 comes after step 3", only=False)


def test_a_ledger_step_without_metrics(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines.pop())
    edit_lines(run / "ledger.jsonl", lambda lines: None)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"steps": 2}))
    shutil.rmtree(run / "checkpoints" / "step-000003")
    expect(run, "steps-contiguous", "ledger.jsonl:8", "step 3 has no metrics")


def test_a_run_killed_between_ledger_and_metrics_is_whole(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines.pop())
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000003")
    assert main([str(run)]) == 0


def test_versions_that_go_back(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[1].update({"learner/version": 0}))
    expect(run, "versions-monotonic", "metrics.jsonl:2", "from version 1 to 0")


def test_versions_that_leap(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[2].update({"learner/version": 7}))
    expect(run, "versions-monotonic", "from version 2 to 7")


def test_an_update_without_a_trained_group(run: Path) -> None:
    def nothing_trained(lines: list[dict[str, Any]]) -> None:
        for line in lines[:3]:
            line["disposition"] = "no_signal"

    edit_lines(run / "ledger.jsonl", nothing_trained)
    expect(run, "versions-monotonic", "without a trained group", only=False)


def test_a_group_too_old(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[-1].update(oldest_version=0, staleness=2))
    expect(run, "staleness-bounded", "ledger.jsonl:10", "staleness 2", "max_staleness is 1", only=False)


def test_a_staleness_that_is_not_the_difference(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[0].update(staleness=1))
    expect(run, "staleness-bounded", "ledger.jsonl:1", only=False)


def test_a_group_without_an_advantage_counted_as_trained(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[2].update(disposition="trained"))
    expect(run, "advantage", "ledger.jsonl:3", "group 0-2 counts as trained", only=False)


def test_a_group_with_an_advantage_counted_as_no_signal(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[0].update(disposition="no_signal"))
    expect(run, "advantage", "group 0-0 counts as no_signal", only=False)


def test_a_group_that_lost_a_member(run: Path) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: [lines[0][k].pop() for k in ("rewards", "rewards_before", "ids")])
    expect(run, "advantage", "group 0-0 has 3 rewards", "group_size is 4", only=False)


@pytest.mark.parametrize(("change", "word"), [
    ({"rewards_before": [0.0, 1.0, 0.0, 0.0]}, "a plain rollout had succeeded"),
    ({"rewards": [1.0, 0.0, 1.0, 0.0]}, "the reward of a member that was not replaced changed"),
    ({"rewards": [0.0, 0.0, 0.0, 0.0]}, "is no success"),
    ({"ids": ["0-1/0", "0-1/1", "0-1/2", "0-1/3"]}, "member 2 was replaced, and is 0-1/2"),
    ({"ids": ["0-1/0", "0-9/1", "0-1/i1", "0-1/3"]}, "0-9/1"),
    ({"replaced": 7}, "there are 4"),
    ({"attempts": 0}, "without a failed group and an intervened rollout"),
    ({"attempts": 3}, "intervention.attempts is 2"),
])
def test_a_replacement_that_is_not_one(run: Path, change: dict[str, Any], word: str) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: lines[1].update(change))
    expect(run, "replacement", "ledger.jsonl:2", "group 0-1", word, only=False)


def test_grpo_with_intervened_rollouts(tmp_path: Path) -> None:
    config = make_config()
    config.algo.name = "grpo"
    expect(make_run(tmp_path / "run", 1, config), "replacement", "algo.name is grpo")


@pytest.mark.parametrize("key", ["groups/consumed", "groups/trained", "groups/no_signal", "groups/voided", "groups/failed",
                                 "groups/rescued", "reward/mean", "staleness/max", "policy/trained_tokens"])
def test_a_metric_that_the_ledger_contradicts(run: Path, key: str) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[1].update({key: lines[1][key] + 1}))
    expect(run, "metrics-agree", "metrics.jsonl:2", key, only=key != "staleness/max")     # that is out of its range, too


def test_tokens_that_the_learner_says_it_left_out_are_no_breach(run: Path) -> None:
    changes = {"policy/trained_tokens": 60, "learner/nonfinite_tokens": 12}
    edit_lines(run / "metrics.jsonl", lambda lines: lines[1].update(changes))
    assert main([str(run)]) == 0


def test_a_metric_that_is_missing(run: Path) -> None:
    edit_lines(run / "metrics.jsonl", lambda lines: lines[0].pop("groups/failed"))
    expect(run, "metrics-agree", "metrics.jsonl:1", "groups/failed is None")


@pytest.mark.parametrize("key", ["steps", "groups_consumed", "groups_trained", "groups_voided", "groups_failed",
                                 "groups_rescued", "intervened_rollouts"])
def test_a_summary_that_the_records_contradict(run: Path, key: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {key: 77}))
    expect(run, "metrics-agree", "summary.json", key)


# --- checkpoints, secrets --------------------------------------------------------------------------------------------
def test_a_checkpoint_that_lost_a_file(run: Path) -> None:
    (run / "checkpoints/step-000002/dcp/.metadata").unlink()
    expect(run, "checkpoints-whole", "step-000002", "dcp/.metadata is missing")


def test_a_checkpoint_cut_short(run: Path) -> None:
    os.truncate(run / "checkpoints/step-000003/dcp/__0_0.distcp", 10)
    expect(run, "checkpoints-whole", "step-000003", "10 bytes instead of 5000")


def test_a_checkpoint_with_a_flipped_bit(run: Path) -> None:
    path = run / "checkpoints/step-000003/dcp/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    expect(run, "checkpoints-whole", "is damaged")


@pytest.mark.parametrize("marker", ["", "{}", '{"files": {}}', "[1]"])
def test_a_checkpoint_with_a_marker_that_says_nothing(run: Path, marker: str) -> None:
    (run / "checkpoints/step-000003/COMPLETE").write_text(marker)
    expect(run, "checkpoints-whole", "step-000003", "COMPLETE")


def test_the_newest_checkpoint_without_a_marker(run: Path) -> None:
    (run / "checkpoints/step-000003/COMPLETE").unlink()
    expect(run, "checkpoints-whole", "step-000003", "no COMPLETE marker")


def test_what_is_left_of_a_removed_checkpoint_is_noted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints/step-000002/COMPLETE").unlink()
    (run / "checkpoints/.step-000004.tmp").mkdir()
    assert main([str(run)]) == 0
    assert "step-000002 has no marker" in capsys.readouterr().out


def test_a_checkpoint_beyond_the_records(run: Path) -> None:
    (run / "checkpoints/step-000003").rename(run / "checkpoints/step-000008")
    expect(run, "checkpoints-whole", "step-000008", "ends at step 3")


@pytest.mark.parametrize("form", ["{}", '"{}"', "key=%s&x=1"])
def test_a_key_in_a_file(run: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    secret = "s3cr3t-Amap/key+9"
    monkeypatch.setenv("AMAP_API_KEY", secret)
    assert main([str(run)]) == 0
    where = run / "checkpoints/step-000003/notes.txt"
    # across the border of two blocks as they are read
    text = form.format(secret) if "{}" in form else form % quote(secret, safe="")
    where.write_bytes(b"x" * ((1 << 22) - 7) + text.encode() + b"y" * 50)
    assert secret not in expect(run, "no-secrets", "checkpoints/step-000003/notes.txt", "AMAP_API_KEY")


def test_a_key_named_by_a_role_or_an_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    config.intervention.corrector.endpoint.key_env = "ROLE_KEY"
    config.env.options = {"token_env": "OWN_TOKEN"}
    run = make_run(tmp_path / "run", 1, config)
    monkeypatch.setenv("ROLE_KEY", "role-secret-1")
    monkeypatch.setenv("OWN_TOKEN", "own-secret-2")
    assert main([str(run)]) == 0
    (run / "evaluations/a.txt").write_text("role-secret-1")
    (run / "evaluations/b.txt").write_text("own-secret-2")
    expect(run, "no-secrets", "a.txt: holds the value of ROLE_KEY", "b.txt: holds the value of OWN_TOKEN")


def test_no_secrets_says_what_it_looked_for(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AMAP_API_KEY", raising=False)
    assert main([str(run)]) == 0
    assert "no variable that the configuration names has a value here" in capsys.readouterr().out
    monkeypatch.setenv("AMAP_API_KEY", "not-in-any-file")
    assert main([str(run)]) == 0
    assert "looked for the values of AMAP_API_KEY" in capsys.readouterr().out
    config = make_config()
    config.env.navigation.key_env = ""
    assert main([str(make_run(tmp_path / "nameless", 1, config))]) == 0
    assert "no *_env key of the configuration names a variable" in capsys.readouterr().out


def test_many_breaches_are_counted_not_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_lines(run / "ledger.jsonl", lambda lines: [line.update(staleness=9) for line in lines])
    assert main([str(run)]) == 1
    out = capsys.readouterr().out
    assert "and 5 more" in out and "invariants are broken" in out
