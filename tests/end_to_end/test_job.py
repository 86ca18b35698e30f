"""A run submitted to a standing cluster with `ray job submit`, as the documents say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator

import pytest

from tests.end_to_end.nodes import Head
from tests.end_to_end.runs import assert_clean, lines, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    cluster = Head(tmp_path)
    try:
        cluster.wait_for_jobs()
        yield cluster
    finally:
        cluster.end()


def test_a_submitted_job_trains_on_the_cluster_that_it_was_submitted_to(head, policy, tmp_path):
    config = write_config(tmp_path, policy, steps=2)
    run_dir = tmp_path / "submitted"
    done = head.job("submit", "--", sys.executable, "launch/rti.py", "--config", str(config), f"run_dir={run_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout and "step 2/2" in done.stdout
    assert len(lines(run_dir)) == 2
    assert_clean(run_dir)
