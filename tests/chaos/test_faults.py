"""Faults of every kind in real runs, at moments that a seed draws; which fault is shown where, see docs/reliability.md.

The runs are synchronous, so that the strongest outcome can be demanded: the records of a run in which nothing failed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.runs import Run, assert_clean, lines, record, write_config

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
ACTORS = ("Generator", "EnvWorker", "Intervener", "ReplayBuffer", "LearnerRank")
DELAY_S = 0.3


def slow_run(directory: Path, policy: Path, **more) -> Path:
    """The configuration of `undisturbed`, with environments so slow that a step has moments to be hit at."""
    return write_config(directory, policy, evaluation__before=True, evaluation__after=True, env__options__delay_s=DELAY_S,
                        **more)


def wait_within_a_step(run: Run, moments: random.Random) -> int:
    """Until the run has made a further step (or its first), and for a while that falls into the next; the steps made."""
    before = len(lines(run.directory))
    run.wait_for_step(before + 1)
    time.sleep(moments.uniform(0, 2 * DELAY_S))
    return before + 1


def assert_equal(run: Run, undisturbed: Run) -> None:
    assert_clean(run.directory)
    assert record(run.directory) == record(undisturbed.directory)


@pytest.mark.parametrize("seed", range(2))
def test_every_process_is_killed_once_in_a_drawn_order_at_drawn_moments_and_nothing_is_lost(undisturbed, policy, tmp_path,
                                                                                            seed):
    """Two processes a step, the driver after the first: what is killed may well be coming back from another kill."""
    moments = random.Random(seed)
    order = moments.sample(ACTORS, len(ACTORS))
    config = slow_run(tmp_path, policy, checkpoint__every=1)
    run = Run(config)
    wait_within_a_step(run, moments)
    run.kill_actor(order[0])
    run.process.kill()
    run.process.wait()
    run = Run(config)
    for pair in (order[1:3], order[3:]):
        wait_within_a_step(run, moments)
        for cls in pair:
            run.kill_actor(cls)
    run.finish()
    assert_equal(run, undisturbed)


@pytest.mark.parametrize("cls", ACTORS)
def test_an_actor_that_hangs_is_killed_after_its_limit_and_nothing_is_lost(undisturbed, policy, tmp_path, cls):
    """SIGSTOP: the process lives and says nothing, also to Ray."""
    config = slow_run(tmp_path, policy, checkpoint__every=1, rollout__timeout_s=20, ray__call_timeout_s=25)
    run = Run(config)
    wait_within_a_step(run, random.Random(cls))
    hung = run.actor(cls)
    os.kill(hung, signal.SIGSTOP)
    run.finish()
    if cls != "Intervener":     # one may never be needed again, and ends with the run
        assert json.loads((run.directory / "summary.json").read_text())["restarts"] >= 1
    assert_equal(run, undisturbed)


@pytest.mark.parametrize("cut", [1, 1000])
def test_a_half_written_checkpoint_and_a_torn_journal_after_a_kill_of_the_driver_cost_what_they_held_and_no_more(
        undisturbed, policy, tmp_path, cut):
    """The newest checkpoint loses its marker's end and a file's, the journal its last bytes: as a power cut leaves them."""
    config = slow_run(tmp_path, policy, checkpoint__every=1, checkpoint__keep=3)
    run = Run(config)
    run.wait_for_step(3)
    run.process.kill()
    run.process.wait()
    before, newest = sorted((run.directory / "checkpoints").glob("step-*"))[-2:]
    for name in ("COMPLETE", "extra.msgpack"):
        shorten(newest / name, 1)
    shorten(run.directory / "buffer.journal", cut)
    run = Run(config)
    run.finish()
    assert f"passing over checkpoint {newest}" in run.text() and f"going on from {before.name}" in run.text(), run.text()
    assert_equal(run, undisturbed)


def shorten(path: Path, cut: int) -> None:
    size = path.stat().st_size
    assert size > cut, f"{path} has {size} bytes: cutting {cut} would not tear a record"
    os.truncate(path, size - cut)
