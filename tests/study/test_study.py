"""A study from its command: two methods on a tiny policy, killed in the middle and taken up again, then read and checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rti.study import records
from rti.study.command import Order, check, conduct, show
from rti.study.plan import scale_of
from rti.study.runner import StudyError
from tests.end_to_end.policy import write_policy
from tests.end_to_end.runs import ROOT, assert_clean, descendants, lines, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FIELDS = ["algorithms=rti,grpo", "parts=methods", "seeds=0", "rates=1e-3", "budget=30", "samples=2", "every=0", "groups=0"]


def command(directory: Path, *words: str) -> list[str]:
    return [sys.executable, str(ROOT / "launch" / "study.py"), "--config", str(directory / "tiny.yaml"), "--runs",
            str(directory / "runs"), "--out", str(directory / "out"), *words]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}


def test_a_study_that_was_killed_goes_on_and_ends_with_its_folder(tmp_path, capsys):
    write_config(tmp_path, write_policy(tmp_path / "policy"), intervention__attempts=1)
    with (tmp_path / "first.txt").open("wb") as out:
        first = subprocess.Popen(command(tmp_path, *FIELDS), cwd=tmp_path, env=environment(), stdout=out, stderr=out)
    run = tmp_path / "runs" / "rti-0"
    deadline = time.monotonic() + 200
    while not lines(run):
        assert first.poll() is None and time.monotonic() < deadline, (tmp_path / "first.txt").read_text()
        time.sleep(0.02)
    drivers = [pid for pid, title in descendants(first.pid) if "launch/rti.py" in title]
    for pid in (first.pid, *drivers):
        os.kill(pid, signal.SIGKILL)
    first.wait()

    done = subprocess.run(command(tmp_path, *FIELDS), cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "base-0: begins" not in done.stdout, "what is complete is not run again"
    study = records.read(tmp_path / "out" / "study.json")
    assert not study.missing and [o.name for o in study.outcomes] == ["base-0", "rti-0", "grpo-0"]
    rti, grpo = study.of("rti")[0].account, study.of("grpo")[0].account
    assert (rti.steps, rti.plain, grpo.steps, grpo.plain, grpo.intervened) == (2, 24, 2, 24, 0)
    assert rti.intervened == rti.failed > 0 and rti.rollouts <= 30
    assert all(set(o.passed) == set(study.classes) for o in study.outcomes)
    assert study.parameters["policy"] > 10_000
    for name in ("rti-0", "grpo-0"):
        assert_clean(tmp_path / "runs" / name)
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"README.md", "study.json", "dynamics.png", "turns.png"}
    assert "| GRPO | 1 |" in (tmp_path / "out" / "README.md").read_text()

    capsys.readouterr()
    assert check(tmp_path / "out") == 0 and "GRPO stays within 5 points of the base policy" in capsys.readouterr().out
    assert show(order(tmp_path, "seeds=0,1")) == 0
    complete = [line.startswith("complete") for line in capsys.readouterr().out.splitlines()]
    assert complete == [True, False, True, False, True, False]
    with pytest.raises(StudyError, match="now it would be steps=4.*another --runs"):
        conduct(order(tmp_path, "budget=60"))


def order(directory: Path, *words: str) -> Order:
    return Order(scale=scale_of("hour", [*FIELDS, *words]), config=str(directory / "tiny.yaml"), runs=directory / "runs",
                 out=directory / "out")


def test_a_folder_without_a_study_is_refused_with_the_mend(tmp_path):
    done = subprocess.run(command(tmp_path, "--check"), cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "`python launch/study.py` makes it" in done.stderr
