"""OPD and LUFFY as a user runs them: a second tiny policy is the teacher, behind engines of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rti.run import trajectories
from rti.trajectory import Source
from tests.end_to_end.policy import write_policy
from tests.end_to_end.runs import Run, assert_clean, descendants, lines, record, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights, the same tokenizer."""
    return write_policy(tmp_path_factory.mktemp("teacher"), seed=1)


def start(directory: Path, policy: Path, teacher: Path, algo: str, **more) -> Run:
    settings = dict(steps=2, algo__name=algo, teacher__path=str(teacher), teacher__generators={"threads": 1, "concurrency": 16})
    return Run(write_config(directory, policy, **settings | more))


def groups_of(run: Run):
    return [g for file in trajectories.files(run.directory / "trajectories").values() for g in trajectories.read(file)]


def test_opd_learns_from_every_group_and_repeats_itself_though_its_engines_are_killed(policy, teacher, tmp_path):
    disturbed = start(tmp_path / "a", policy, teacher, "opd", env__options__delay_s=0.3)
    disturbed.wait_for_step(1)
    engines = [pid for pid, title in descendants(disturbed.process.pid) if title.startswith("ray::Generator")]
    assert len(engines) == 2, "the policy's and the teacher's"
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    disturbed.finish()
    assert_clean(disturbed.directory)
    for line in lines(disturbed.directory):
        assert line["groups/trained"] == line["groups/consumed"] == 3 and line["learner/updated"] == 1
        assert line["teacher/judged_tokens"] == line["policy/trained_tokens"] > 0 and line["policy/teacher_kl"] > 0
    plain = start(tmp_path / "b", policy, teacher, "opd")
    plain.finish()
    assert record(disturbed.directory) == record(plain.directory)


def test_luffy_puts_the_teachers_episodes_into_failed_groups(policy, teacher, tmp_path):
    run = start(tmp_path, policy, teacher, "luffy", algo__aggregation="token", intervention__attempts=4,
                env__options__percent=15)
    run.finish()
    assert_clean(run.directory)
    rescued = [g for g in groups_of(run) if g.replaced is not None]
    assert rescued, "no failed group got an episode of the teacher's: the test shows nothing"
    for group in rescued:
        sources = [set(s.sources[s.mask].tolist()) for s in group.members[group.replaced].samples]
        assert sources == [{Source.TEACHER}] and group.failed_before
    taught = sum(m.n_agent_tokens for g in rescued for m in [g.members[g.replaced]])
    assert sum(line.get("policy/teacher_tokens", 0) for line in lines(run.directory)) == taught
    assert all(line["intervention/rollouts"] >= line["groups/failed"] for line in lines(run.directory))
