"""Rescued groups that several steps consume (buffer.reuse), through the controller over fakes, whatever dies."""

import asyncio

import pytest

from rti.control.plan import Phase
from rti.run.ledger import read_ledger
from tests.actors.fakes import FakeRun, World, make_config
from tests.actors.test_controller import assert_audit_passes, lines


def uses(path):
    """group id -> the steps that consumed it."""
    found = {}
    for _, entry in read_ledger(path / "ledger.jsonl"):
        if entry.consumed:
            found.setdefault(entry.group_id, []).append(entry.step)
            assert entry.use == len(found[entry.group_id])
    return found


async def test_a_rescued_group_is_used_again_on_top_of_each_steps_own(tmp_path):
    path = tmp_path / "run"
    fake = FakeRun(path, make_config(max_staleness=3, steps=10, buffer__reuse=3), World(percent=25))
    sizes = []
    fake.learner.on_step = lambda step: sizes.append(fake.controller.plan.count(Phase.LEASED))
    assert await fake.run()
    assert set(sizes) == {3} and len(uses(path)) == 30
    steps, rescued = uses(path), {e.group_id for _, e in read_ledger(path / "ledger.jsonl") if e.replaced is not None}
    assert {group_id for group_id in steps if len(steps[group_id]) > 1} <= rescued
    assert max(map(len, steps.values())) == 3
    assert all(used == list(range(used[0], used[0] + len(used))) for used in steps.values())    # in steps one after the other
    assert [line["buffer/reused"] for line in lines(path)] == [
        sum(step in used[1:] for used in steps.values()) for step in range(1, 11)]
    assert all(line["groups/consumed"] == 3 for line in lines(path))
    learnt = [set(ids) for ids in fake.learner.steps]       # by steps with something to learn
    assert sum(map(len, learnt)) == sum(map(len, fake.learner.steps)) and fake.buffer.store.stats()["groups"] == 0
    assert_audit_passes(path)


@pytest.mark.parametrize("what", ["learner", "buffer"])
async def test_no_death_lets_a_group_be_used_more_often_than_allowed(tmp_path, what):
    path = tmp_path / "run"
    fake = FakeRun(path, make_config(max_staleness=3, steps=12, buffer__reuse=4), World(percent=25))
    died = set()

    def die(step):
        if step in (4, 7, 9) and step not in died:
            died.add(step)
            getattr(fake, what).die()

    fake.learner.on_step = die
    assert await fake.run()
    assert died == {4, 7, 9} and 2 <= max(map(len, uses(path).values())) <= 4
    assert len(uses(path)) == 36
    assert_audit_passes(path)


async def test_a_resumed_run_goes_on_using_what_was_kept(tmp_path):
    path = tmp_path / "run"
    config = make_config(max_staleness=3, steps=12, buffer__reuse=4)

    async def stop(controller):
        while controller.plan.step < 4 or not controller.plan.again:
            await asyncio.sleep(0)
        controller.stop()

    first = FakeRun(path, config, World(percent=25))
    assert not await first.run(during=stop)
    kept = {k.ticket.group_id for k in first.controller.plan.again}
    at = len(lines(path))
    assert kept and await FakeRun(path, config, World(percent=25)).run()
    assert all(at + 1 in uses(path)[group_id] for group_id in kept if not _too_old(path, group_id, at))
    assert_audit_passes(path)


def _too_old(path, group_id, at):
    """Whether the step after step `at` may not consume a group any more."""
    entry = next(e for _, e in read_ledger(path / "ledger.jsonl") if e.group_id == group_id and e.consumed)
    return lines(path)[at - 1]["learner/version"] - entry.oldest_version > 3
