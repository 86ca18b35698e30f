"""A whole run whose learner broadcasts its weights to two generators, of which one is killed: bit for bit the run
that goes through the object store."""

from __future__ import annotations

import os
import signal

import pytest

from rti.actors.courier import MEETINGS
from tests.end_to_end.runs import Run, assert_clean, descendants, record, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_generators_that_are_sent_their_weights_give_the_same_run_though_one_is_killed(undisturbed, policy, tmp_path):
    run = Run(write_config(tmp_path, policy, evaluation__before=True, evaluation__after=True, env__options__delay_s=0.2,
                           generators__weights="gloo", generators__replicas=2, generators__update="drain"))
    run.wait_for_step(1)
    groups = set(run.directory.glob(f"{MEETINGS}*"))
    assert len(groups) == 2, "each generator has a group of its own"
    killed, _ = [pid for pid, title in descendants(run.process.pid) if title.startswith("ray::Generator")]
    os.kill(killed, signal.SIGKILL)
    run.finish()
    assert_clean(run.directory)
    assert record(run.directory) == record(undisturbed.directory)
