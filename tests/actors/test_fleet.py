"""The generators: all serve the newest weights, whatever dies."""

import asyncio

import pytest

from rti.actors.fleet import MAX_LOADS, Fleet
from rti.control.faults import ActorGone, ActorLost, LearnerLost
from tests.actors.fakes import FakeGenerator, World


def fleet(n: int = 2) -> Fleet:
    world = World()
    return Fleet([FakeGenerator(world, f"generator-{i}") for i in range(n)], poll_s=0.001)


async def test_publication_ends_when_all_serve_the_version():
    f = fleet(3)
    await f.publish("weights 4", 4)
    assert [g.version for g in f.members] == [4, 4, 4]


async def test_a_generator_that_dies_while_it_loads_is_brought_back_and_loads_again():
    f = fleet()
    f.members[1].die()
    await f.publish("weights 1", 1)
    assert [g.version for g in f.members] == [1, 1] and f.restarts == 1


async def test_a_generator_that_came_back_empty_is_found_and_given_the_newest_weights():
    f = fleet()
    await f.publish("weights 1", 1)
    tending = asyncio.create_task(f.tend())
    f.members[0].version = None     # restarted by Ray between two questions
    f.members[1].die()
    while [g.version for g in f.members] != [1, 1]:
        await asyncio.sleep(0.001)
    tending.cancel()


async def test_nothing_is_loaded_before_the_first_publication():
    f = fleet()
    tending = asyncio.create_task(f.tend())
    await asyncio.sleep(0.02)
    assert [g.loads for g in f.members] == [[], []]
    tending.cancel()


async def test_a_generator_that_does_not_come_back_is_dropped_and_the_last_one_ends_the_tending():
    f = fleet()
    first, last = f.members
    first.gone = last.gone = True
    await f.publish("weights 1", 1)
    first.die()
    tending = asyncio.create_task(f.tend())
    while f.size == 2:
        await asyncio.sleep(0.001)
    assert f.members == [last] and first.ended and f.gone == 1 and f.roster.names == ("generator-1",)
    last.die()
    with pytest.raises(ActorGone, match="generator-1 does not come back"):
        await tending


async def test_one_that_joins_is_named_to_episodes_only_once_it_serves_the_newest_weights():
    f = fleet(1)
    await f.publish("weights 1", 1)
    before = f.roster
    new, loading = FakeGenerator(f.members[0].world, "generator-7"), asyncio.Event()
    load = new.load

    async def slow(weights, version):
        await loading.wait()
        await load(weights, version)

    new.load = slow
    joining = asyncio.create_task(f.add(new))
    await asyncio.sleep(0)
    assert f.roster == before and before.names == ("generator-0",)
    publishing = asyncio.create_task(f.publish("weights 2", 2))     # while it loads version 1
    await asyncio.sleep(0)
    loading.set()
    await asyncio.gather(joining, publishing)
    assert new.version == 2 and f.roster.names == ("generator-0", "generator-7") and f.roster.number > before.number


async def test_one_that_leaves_is_named_no_more_and_ended_once_no_request_is_left_with_it():
    f = fleet(2)
    await f.publish("weights 1", 1)
    busy, idle = f.members
    busy.requests = 3
    await f.work()
    f.retire(1)
    assert f.roster.names == ("generator-0",) and f.size == 1 and not idle.ended
    while not idle.ended:
        await asyncio.sleep(0.001)
    f.retire(1)
    await asyncio.sleep(0.02)
    assert not busy.ended and f.size == 0
    await f.publish("weights 2", 2)
    assert busy.version == 2, "while it drains it serves what is newest"
    busy.requests = 0
    while not busy.ended:
        await asyncio.sleep(0.001)
    assert f.members == []
    assert (await f.work()).sampled == 10, "what it did since the last count is not lost with it"


async def test_weights_that_kill_each_time_are_given_up():
    f = fleet(1)

    async def load(weights, version):
        raise ActorLost("died of it")

    f.members[0].load = load
    with pytest.raises(ActorGone, match=f"lost {MAX_LOADS} times while it loaded version 2: died of it"):
        await f.publish("weights 2", 2)


async def test_work_is_counted_once_and_also_over_a_restart():
    f = fleet(2)
    await f.publish("weights 1", 1)
    assert (await f.work()).sampled == 20
    assert (await f.work()).sampled == 0
    await f.publish("weights 2", 2)
    work = await f.work()
    assert (work.sampled, work.count) == (20, 2) and work.busy_s == pytest.approx(0.2)
    f.members[0].loads = [1]        # counters begin anew after a restart
    f.members[0].loads = []
    assert (await f.work()).sampled == 0


async def test_a_lost_learner_ends_a_publication_but_neither_the_tending_nor_a_joining_which_wait_for_the_next_one():
    f = fleet(1)
    await f.publish("weights 1", 1)
    old, new = f.members[0], FakeGenerator(f.members[0].world, "generator-7")
    kept = {g: g.load for g in (old, new)}

    async def lost(weights, version):
        raise LearnerLost("rank 0 died")

    old.load = new.load = lost
    old.version = None
    tending = asyncio.create_task(f.tend())
    await f.add(new)
    await asyncio.sleep(0.02)
    assert not tending.done() and f.roster.names == ("generator-0",), "episodes hear of it once it serves"
    with pytest.raises(LearnerLost):
        await f.publish("weights 2", 2)
    for g, load in kept.items():
        g.load = load
    await f.publish("weights 2", 2)
    assert (old.version, new.version) == (2, 2) and f.roster.names == ("generator-0", "generator-7")
    tending.cancel()
