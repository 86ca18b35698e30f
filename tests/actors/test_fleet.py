"""The generators: all serve the newest weights, whatever dies."""

import asyncio

import pytest

from rti.actors.fleet import MAX_LOADS, Fleet
from rti.control.faults import ActorGone, ActorLost
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


async def test_a_generator_that_does_not_come_back_ends_the_tending():
    f = fleet()

    async def gone(loss):
        raise ActorGone("for good")

    f.members[0].revive = gone
    f.members[0].die()
    with pytest.raises(ActorGone, match="for good"):
        await f.tend()


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
