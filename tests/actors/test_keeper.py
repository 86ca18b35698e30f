"""A pool at the size that its work needs: who is asked for, who joins, who leaves, and when it is no use any more."""

import asyncio

import pytest

from rti.actors.keeper import Keeper, generator_bounds, intervener_bounds, worker_bounds
from rti.actors.pool import Pool
from rti.control.faults import ActorGone, ActorLost
from rti.control.scaling import Bounds
from tests.actors.fakes import FakeWorker, World, make_config
from tests.actors.test_pool import order, settle


class Kept:
    """A pool of fakes that carry out one episode at once, its keeper, and what the keeper asked for."""

    def __init__(self, least=1, most=4, losses=2, patience_s=1e6):
        self.world, self.asked = World(), []
        self.gate = asyncio.Event()
        self.world.before_run = lambda o: self.gate.wait()
        self.bounds = Bounds(least, most, 0.0)
        self.pool = Pool([FakeWorker(self.world, f"w{i}", 1) for i in range(least)])
        self.keeper = Keeper("worker", self.pool, self.ask, lambda: self.bounds, first=least, capacity=1, losses=losses,
                             patience_s=patience_s)

    def ask(self, number):
        self.asked.append(FakeWorker(self.world, f"w{number}", 1))
        return self.asked[-1]

    async def look(self):
        self.keeper.look()
        await settle()

    def orders(self, *names):
        return [asyncio.create_task(self.pool.run(order(name))) for name in names]

    async def lose(self, worker):
        worker.gone = True
        seat = next(s for s in self.pool._seats if s.member is worker)
        self.pool._lose(seat, ActorLost("its node left"))
        await settle()


async def test_it_asks_for_what_the_backlog_needs_and_nothing_waits_for_who_has_no_place():
    kept = Kept()
    runs = kept.orders(*"abcdef")
    await settle()
    await kept.look()
    assert [w.name for w in kept.asked] == ["w1", "w2", "w3"], "not above the bound"
    await kept.look()
    assert len(kept.asked) == 3 and kept.keeper.coming == 3, "what was asked for is not asked for again"
    kept.asked[1].placed.set()
    await settle()
    assert kept.asked[1].busy == 1 and kept.pool.size == 2
    kept.gate.set()
    await asyncio.gather(*runs)


async def test_who_is_not_needed_is_let_go_and_asked_for_no_longer():
    kept = Kept()
    runs = kept.orders(*"abc")
    await settle()
    await kept.look()
    kept.asked[0].placed.set()
    await settle()
    kept.gate.set()
    await asyncio.gather(*runs)
    await kept.look()       # the need of a moment ago
    await asyncio.sleep(0.01)
    await kept.look()
    assert kept.keeper.coming == 0 and kept.asked[1].ended, "one that had no place yet"
    assert kept.pool.size == 1 and kept.asked[0].ended


async def test_bounds_that_change_are_followed_both_ways():
    kept = Kept()
    kept.bounds = Bounds(3, 4, 0.0)
    await kept.look()
    assert [w.name for w in kept.asked] == ["w1", "w2"]
    for worker in kept.asked:
        worker.placed.set()
    await settle()
    assert kept.pool.size == 3
    kept.bounds = Bounds(1, 1, 1000.0)
    await kept.look()
    assert kept.pool.size == 1 and all(w.ended for w in kept.asked)


async def test_one_that_is_gone_is_replaced_under_a_new_name():
    kept = Kept()
    await kept.look()
    await kept.lose(kept.pool.members[0])
    runs = kept.orders("a")
    await kept.look()
    assert [w.name for w in kept.asked] == ["w1"]
    kept.asked[0].placed.set()
    kept.gate.set()
    await asyncio.gather(*runs)
    assert kept.pool.done == 1


async def test_it_gives_up_where_they_are_lost_one_after_the_other_but_not_where_something_is_done_in_between():
    kept = Kept(losses=2)
    for _ in range(5):
        await kept.lose(kept.pool.members[0])
        await kept.look()
        kept.asked[-1].placed.set()
        kept.gate.set()
        await asyncio.gather(*kept.orders("a"))
        await kept.look()
    for _ in range(2):
        await kept.lose(kept.pool.members[0])
        await kept.look()
        kept.asked[-1].placed.set()
        await settle()
    await kept.lose(kept.pool.members[0])
    with pytest.raises(ActorGone, match=r"3 actors of the kind worker were lost .* ray.restarts = 2 .*does not come back"):
        kept.keeper.look()


async def test_it_gives_up_where_there_has_been_none_for_too_long():
    kept = Kept(patience_s=0.02)
    await kept.lose(kept.pool.members[0])
    await kept.look()
    await asyncio.sleep(0.03)
    with pytest.raises(ActorGone, match=r"for 0.02 s \(ray.start_timeout_s\) there has been no actor of the kind worker"):
        kept.keeper.look()


async def test_a_new_member_that_cannot_be_set_up_ends_the_run_with_its_own_words():
    kept = Kept()
    kept.bounds = Bounds(2, 2, 0.0)

    async def refuse():
        raise ValueError("this machine has another task set")

    kept.ask = lambda number: kept.asked[0]
    kept.asked.append(FakeWorker(kept.world, "w1", 1))
    kept.asked[0].arrive = refuse
    kept.keeper._ask = kept.ask
    await kept.look()
    with pytest.raises(ValueError, match="another task set"):
        kept.keeper.look()
    assert kept.asked[0].ended


def test_bounds_come_from_the_configuration_and_0_keeps_a_number_fixed():
    config = make_config(interveners__min=2, interveners__max=5, env_workers__count=3, generators__replicas=2,
                         generators__max=4, ray__idle_s=7.0)
    assert intervener_bounds(config) == Bounds(2, 5, 7.0)
    assert worker_bounds(config) == Bounds(3, 3, 7.0)
    assert generator_bounds(config) == Bounds(2, 4, 7.0)
