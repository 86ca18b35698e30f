"""The replay buffer in whole runs: groups on the disk alone, groups used again, its death, and a disk without room."""

from __future__ import annotations

import resource

import pytest

from rti.run.ledger import read_ledger
from tests.end_to_end.runs import Run, assert_clean, lines, record, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_rescued_groups_are_used_again_from_the_disk_also_where_the_buffer_is_killed(policy, tmp_path):
    config = write_config(tmp_path, policy, steps=6, async__max_staleness=2, buffer__reuse=3, buffer__memory_mb=0,
                          env__options__delay_s=0.05)
    run = Run(config)
    for step in (2, 4):
        run.wait_for_step(step)
        run.kill_actor("ReplayBuffer")
    run.finish()
    ledger = [entry for _, entry in read_ledger(run.directory / "ledger.jsonl")]
    again = [entry for entry in ledger if entry.use > 1]
    assert again and all(entry.replaced is not None and entry.disposition == "trained" for entry in again)
    assert sum(line["buffer/reused"] for line in lines(run.directory)) == len(again)
    assert all(line["system/buffer_spilled"] == line["system/buffer_groups"] for line in lines(run.directory))
    assert all(line["system/buffer_mb"] == 0 for line in lines(run.directory))
    assert_clean(run.directory)


def test_a_disk_without_room_ends_the_run_with_the_mend_and_nothing_is_lost(undisturbed, policy, tmp_path):
    """The system lets the buffer's files grow no further, as a full disk does; see setrlimit(2), RLIMIT_FSIZE."""
    config = write_config(tmp_path, policy, evaluation__before=True, evaluation__after=True, env__options__delay_s=0.2,
                          checkpoint__every=1, buffer__memory_mb=0)
    run = Run(config)
    run.wait_for_step(2)
    size = (run.directory / "buffer.journal").stat().st_size
    resource.prlimit(run.actor("ReplayBuffer"), resource.RLIMIT_FSIZE, (size, size))
    assert run.wait() == 1
    last = run.text().splitlines()[-2:]
    assert "error:" in last[0] and "buffer.journal could not take" in last[0], run.text()
    assert "start the same command again" in last[0] and "Traceback" not in run.text()
    Run(config).finish()
    assert_clean(run.directory)
    assert record(run.directory) == record(undisturbed.directory)
