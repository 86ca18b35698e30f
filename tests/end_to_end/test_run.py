"""The whole system through Ray, as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.end_to_end.runs import ROOT, Run, assert_clean, lines, record, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_run_leaves_what_the_documents_promise_and_the_audit_finds_it_whole(undisturbed):
    run = undisturbed.directory
    assert [line["step"] for line in lines(run)] == [1, 2, 3, 4]
    assert {"config.yaml", "metrics.jsonl", "ledger.jsonl", "tensorboard", "checkpoints", "trajectories", "summary.json"} <= {
        p.name for p in run.iterdir()}
    summary = json.loads((run / "summary.json").read_text())
    for side in ("before", "after"):
        assert len(summary[side]["pass@k"]) == len(summary[side]["pass^k"]) == 4
        assert set(summary[side]["by"]) == {"odd", "even"}
    assert summary["steps"] == 4 and summary["groups_failed"] >= summary["groups_rescued"] >= 0
    assert summary["wall_s"] > 0 and 0.1 < summary["peak_gb"] < 6
    assert sum(line["groups/trained"] for line in lines(run)) > 0, "the policy of the test never succeeds: it shows nothing"
    assert "p@1" in undisturbed.text() and "tensorboard --logdir" in undisturbed.text()
    page = (run / "report.html").read_text()
    assert "4 of 4 steps" in page and summary["before"]["by"].keys() <= set(page.replace("(", " ").split())
    assert f"open {run / 'report.html'}" in undisturbed.text().splitlines()[-1]
    assert_clean(run)


def test_a_run_stopped_by_sigterm_and_resumed_equals_the_uninterrupted_one(undisturbed, policy, tmp_path):
    config = write_config(tmp_path, policy, evaluation__before=True, evaluation__after=True, env__options__delay_s=0.2)
    first = Run(config)
    first.wait_for_step(1)
    first.process.send_signal(signal.SIGTERM)
    first.finish()
    done = len(lines(first.directory))
    assert 1 <= done < 4 and "To go on: the same command again" in first.text()
    refused = Run(config, "learner.lr=0.5")
    assert refused.wait() == 1 and "learner.lr: 0.001 in the run directory, 0.5 now" in refused.text()
    Run(config).finish()
    assert_clean(first.directory)
    numbers, ledger, weights = record(first.directory)
    expected = record(undisturbed.directory)
    assert numbers == expected[0] and ledger == expected[1] and weights == expected[2]


def test_a_run_whose_actors_are_killed_finishes_equal_to_the_undisturbed_one(undisturbed, policy, tmp_path):
    config = write_config(tmp_path, policy, evaluation__before=True, evaluation__after=True, env__options__delay_s=0.3,
                          checkpoint__every=1)
    run = Run(config)
    run.wait_for_step(1)
    run.kill_actor("Generator")
    run.kill_actor("EnvWorker")
    run.wait_for_step(2)
    run.kill_actor("ReplayBuffer")
    run.kill_actor("Intervener")
    run.wait_for_step(3)
    run.kill_actor("LearnerRank")
    run.finish()
    assert_clean(run.directory)
    # generator, worker, buffer and learner; a dead intervener comes back when it is next needed, which may be never
    assert json.loads((run.directory / "summary.json").read_text())["restarts"] >= 4
    assert record(run.directory) == record(undisturbed.directory)


def test_an_asynchronous_run_keeps_its_bound(policy, tmp_path):
    config = write_config(tmp_path, policy, steps=8, async__max_staleness=1, env__options__delay_s=0.05)
    run = Run(config, "env_workers.count=2", "generators.replicas=2", "learner.world_size=2")
    run.finish()
    assert max(line["staleness/max"] for line in lines(run.directory)) <= 1
    assert_clean(run.directory)


def test_a_checkpoint_is_evaluated_by_itself(undisturbed, policy, tmp_path):
    config = write_config(tmp_path, policy)
    run = Run(config, "--checkpoint", str(undisturbed.directory), "--samples", "2", script="eval.py")
    run.finish()
    result = json.loads(run.text().strip().splitlines()[-1])
    after = json.loads((undisturbed.directory / "summary.json").read_text())["after"]
    assert result == after, "evaluating the same weights with the same seed gives the same numbers"


@pytest.mark.parametrize("words, message", [
    (["learner.learning_rate=1"], "learner.learning_rate"),
    (["rollout.group_size=four"], "rollout.group_size"),
    (["model.path=/nowhere"], "/nowhere"),
    (["env.class=tests.end_to_end.luck.Nothing"], "tests.end_to_end.luck.Nothing"),
    (["--resume", "/nowhere/step-000001"], "not a whole checkpoint"),
])
def test_what_cannot_work_is_refused_with_a_message_and_no_stack_trace(policy, tmp_path, words, message):
    run = Run(write_config(tmp_path, policy), *words)
    assert run.wait() == 1
    assert message in run.text() and "Traceback" not in run.text()


def test_help_explains_resume():
    words = [sys.executable, ROOT / "launch" / "rti.py", "--help"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "moved aside" in text and "key=value" in text
