"""What an evaluation writes beside its summary."""

from pathlib import Path

from rti.actors.evaluation import profile_of
from rti.actors.official_results import evaluation_directory
from rti.config.load import load
from rti.evaluation import TaskResult
from rti.run.profile import TaskProfile


def test_a_profile_counts_each_tasks_rollouts_and_what_was_lost_is_in_neither_number():
    config = load("lab.yaml", ["evaluation.samples=4"])
    profile = profile_of(config, [TaskResult(task_id="a", cls="x", outcomes=[True, False, False], lost=1)])
    assert (profile.model, profile.samples, profile.temperature) == ("lab", 4, config.evaluation.temperature)
    assert profile.tasks == [TaskProfile(id="a", cls="x", samples=3, passed=1, lost=1)]


def test_what_an_evaluation_writes_lies_beside_the_runs_directory():
    assert evaluation_directory(load("lab.yaml", ["name=first"])) == Path("runs/first-evaluation")
    assert evaluation_directory(load("lab.yaml", ["run_dir=there/second"])) == Path("there/second-evaluation")
