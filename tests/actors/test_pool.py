"""The pool: least loaded first, first come first served, losses to whoever gave the order."""

import asyncio

import pytest

from rti.actors.messages import Order
from rti.actors.pool import Pool
from rti.control.faults import ActorGone, ActorLost
from rti.engines.usage import Usage
from tests.actors.fakes import FakeWorker, World


def order(name: str, cost: int = 1) -> Order:
    return Order(group_id=name, split="train", task=0, task_id="t", members=tuple(range(cost)), seeds=tuple(range(cost)),
                 temperature=1.0)


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_orders_go_to_the_least_loaded_member_within_its_capacity():
    world = World()
    gate = asyncio.Event()
    world.before_run = lambda o: gate.wait()
    workers = [FakeWorker(world, f"w{i}", capacity=4) for i in range(3)]
    pool = Pool(workers)
    runs = [asyncio.create_task(pool.run(order(str(i), 2))) for i in range(8)]
    await settle()
    assert [w.busy for w in workers] == [4, 4, 4]
    gate.set()
    await asyncio.gather(*runs)
    assert [w.most_busy for w in workers] == [4, 4, 4] and [w.busy for w in workers] == [0, 0, 0]


async def test_waiting_orders_are_served_first_come_first_served_also_behind_a_large_one():
    world = World()
    pool = Pool([FakeWorker(world, capacity=4)])
    runs = [asyncio.create_task(pool.run(order(name, cost))) for name, cost in (("a", 3), ("large", 4), ("b", 1), ("c", 1))]
    await asyncio.gather(*runs)
    assert [o.group_id for o in world.orders] == ["a", "large", "b", "c"]


async def test_an_order_larger_than_any_member_runs_on_an_idle_one():
    world = World()
    pool = Pool([FakeWorker(world, capacity=2)])
    await asyncio.gather(pool.run(order("small", 1)), pool.run(order("huge", 9)), pool.run(order("small", 1)))
    assert len(world.orders) == 3


async def test_a_lost_member_gets_no_orders_until_it_is_back():
    world = World()
    back = asyncio.Event()
    workers = [FakeWorker(world, "w0"), FakeWorker(world, "w1")]

    async def revive(loss):
        await back.wait()

    workers[0].revive = revive
    failing = [True]

    def fail(o):
        if failing.pop() if failing else False:
            raise ActorLost("killed")

    world.before_run = fail
    pool = Pool(workers)
    with pytest.raises(ActorLost, match="killed"):
        await pool.run(order("a"))
    assert pool.alive == 1
    await asyncio.gather(*(pool.run(order(str(i), 40)) for i in range(3)))
    assert workers[1].most_busy == 40       # they waited for w1 rather than go to w0
    back.set()
    await settle()
    assert pool.alive == 2 and pool.restarts == 1


async def test_those_who_wait_hear_that_the_last_member_is_gone():
    world = World()
    worker = FakeWorker(world, capacity=1)
    worker.gone = True

    def fail(o):
        raise ActorLost("killed")

    world.before_run = fail
    pool = Pool([worker])
    results = await asyncio.gather(*(pool.run(order(str(i))) for i in range(3)), return_exceptions=True)
    assert isinstance(results[0], ActorLost) and all(isinstance(r, ActorGone) for r in results[1:])
    with pytest.raises(ActorGone):
        await pool.run(order("later"))


async def test_a_cancelled_order_leaves_its_place():
    world = World()
    gate = asyncio.Event()
    world.before_run = lambda o: gate.wait()
    worker = FakeWorker(world, capacity=2)
    pool = Pool([worker])
    first, second, third = (asyncio.create_task(pool.run(order(n, 2))) for n in "abc")
    await settle()
    second.cancel()
    first.cancel()
    await settle()
    assert worker.busy == 2
    gate.set()
    await third
    assert [o.group_id for o in world.orders] == ["c"]
    assert pool.demand == 0


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="at least one member"):
        Pool([])


async def test_usage_of_endpoints_is_summed_over_the_members_that_live():
    world = World()
    workers = [FakeWorker(world, f"w{i}") for i in range(3)]
    for worker in workers:
        worker.used.of("judge").requests += 2
    workers[2].used.of("user").prompt_tokens += 7

    async def lost():
        raise ActorLost("killed")

    workers[0].usage = lost
    pool = Pool(workers)
    assert (await pool.usage()).take() == {"judge": Usage(requests=4), "user": Usage(prompt_tokens=7)}
    await settle()
    assert pool.alive == 3 and pool.restarts == 1


# --- joining and leaving ---------------------------------------------------------------------------------------------
async def test_a_member_that_joins_takes_the_orders_that_wait():
    world = World()
    gate = asyncio.Event()
    world.before_run = lambda o: gate.wait()
    pool = Pool([FakeWorker(world, "w0", capacity=1)])
    runs = [asyncio.create_task(pool.run(order(str(i)))) for i in range(3)]
    await settle()
    assert pool.demand == 3
    new = FakeWorker(world, "w1", capacity=2)
    await pool.add(new)
    await settle()
    assert new.busy == 2 and pool.size == 2
    gate.set()
    await asyncio.gather(*runs)
    assert pool.done == 3 and pool.demand == 0


async def test_a_member_that_leaves_takes_no_orders_and_ends_with_its_last_one():
    world = World()
    gates = {name: asyncio.Event() for name in "abc"}
    world.before_run = lambda o: gates[o.group_id].wait()
    workers = [FakeWorker(world, f"w{i}", capacity=2) for i in range(2)]
    pool = Pool(workers)
    runs = [asyncio.create_task(pool.run(order(name, 2))) for name in "abc"]
    await settle()
    pool.retire(1)
    assert pool.size == 1 and not workers[1].ended
    workers[1].used.of("judge").requests += 1
    gates["b"].set()
    await settle()
    assert workers[1].ended and pool.members == [workers[0]] and runs[1].done() and not runs[2].done()
    assert (await pool.usage()).take()["judge"].requests == 1, "what it used is counted once more before its end"
    gates["a"].set(), gates["c"].set()
    await asyncio.gather(*runs)
    assert not workers[0].ended


async def test_the_idle_and_the_lost_leave_first():
    world = World()
    gate = asyncio.Event()
    world.before_run = lambda o: gate.wait()
    workers = [FakeWorker(world, f"w{i}", capacity=2) for i in range(3)]
    pool = Pool(workers)
    run = asyncio.create_task(pool.run(order("a")))
    await settle()
    pool.retire(1)
    await settle()
    assert [w.ended for w in workers] == [False, False, True], "of equals the newest"

    async def never(loss):
        await asyncio.get_running_loop().create_future()

    workers[1].revive = never
    pool._lose(pool._seats[1], ActorLost("killed"))
    pool.retire(1)
    await settle()
    assert [w.ended for w in workers] == [False, True, True] and pool.size == 1
    gate.set()
    await run


async def test_a_member_that_does_not_come_back_is_dropped_and_the_others_go_on():
    world = World()
    workers = [FakeWorker(world, f"w{i}") for i in range(2)]
    workers[0].gone = True
    failing = [True]

    def fail(o):
        if failing and failing.pop():
            raise ActorLost("its node left")

    world.before_run = fail
    pool = Pool(workers)
    with pytest.raises(ActorLost):
        await pool.run(order("a"))
    await settle()
    assert pool.members == [workers[1]] and workers[0].ended and (pool.gone, pool.restarts) == (1, 0)
    await pool.run(order("b"))


async def test_orders_wait_for_a_replacement_where_somebody_keeps_the_pool():
    world = World()
    first = FakeWorker(world, "w0")
    first.gone, pool = True, Pool([first])
    pool.kept = True
    pool._lose(pool._seats[0], ActorLost("its node left"))
    await settle()
    waiting = asyncio.create_task(pool.run(order("a")))
    await settle()
    assert pool.size == 0 and not waiting.done()
    await pool.add(FakeWorker(world, "w1"))
    assert len(await waiting) == 1
