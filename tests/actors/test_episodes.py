"""Orders in full, groups from tickets, evaluations: seeds by name, losses run again, bounded."""

import asyncio

import pytest

from rti.actors.episodes import EpisodeRunner
from rti.actors.evaluator import evaluate
from rti.actors.groups import GroupMaker, facts_of
from rti.actors.messages import Order
from rti.control.faults import ActorFailed, ActorLost
from rti.control.order import TaskOrder
from rti.control.retry import RetriesExhausted
from rti.trajectory import Ending, decode, encode
from tests.actors.fakes import TASKS, FakeWorker, World, make_config

ORDER = Order(group_id="0-1", split="train", task=3, task_id="train-3", members=(0, 1, 2), seeds=(10, 11, 12), temperature=0.8)


def runner(retries: int = 3) -> EpisodeRunner:
    return EpisodeRunner(retries, first_pause_s=0.0)


async def test_only_what_was_lost_runs_again_and_under_the_same_seed():
    world = World()
    lost = []

    def ending(id):
        if id == "0-1/1" and not lost:
            lost.append(id)
            return Ending.INFRASTRUCTURE
        return Ending.COMPLETED

    world.ending = ending
    r = runner()
    trajectories = await r.run(FakeWorker(world), ORDER)
    assert [(t.id, t.seed) for t in trajectories] == [("0-1/0", 10), ("0-1/1", 11), ("0-1/2", 12)]
    assert [o.seeds for o in world.orders] == [(10, 11, 12), (11,)]
    assert r.lost == {Ending.INFRASTRUCTURE: 1}


async def test_a_lost_worker_loses_all_of_its_order():
    world = World()
    calls = []

    def fail(order):
        calls.append(order)
        if len(calls) < 3:
            raise ActorLost("killed")

    world.before_run = fail
    assert len(await runner().run(FakeWorker(world), ORDER)) == 3
    calls.clear()
    with pytest.raises(RetriesExhausted, match="killed"):
        await runner(retries=1).run(FakeWorker(world), ORDER)


async def test_pauses_grow_with_the_losses(monkeypatch):
    world, pauses = World(), []
    world.ending = lambda id: Ending.ENVIRONMENT if len(world.orders) < 5 else Ending.COMPLETED

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("rti.actors.episodes.asyncio.sleep", sleep)
    one = ORDER.only({0})
    worker = FakeWorker(world)

    async def run(order):
        world.orders.append(order)
        return [encode(world.trajectory(order, id, s)) for id, s in zip(order.ids(), order.seeds)]

    worker.run = run
    await EpisodeRunner(9, first_pause_s=1.0, longest_pause_s=5.0).run(worker, one)
    assert pauses == [1.0, 2.0, 4.0, 5.0]


@pytest.mark.parametrize("answer", [[], ["0-1/0", "0-1/0", "0-1/1"], ["0-1/0", "0-1/1", "9-9/2"]])
async def test_an_answer_to_another_question_is_an_error(answer):
    class Wrong:
        async def run(self, order):
            return [encode(World().trajectory(order, id, 1)) for id in answer]

    with pytest.raises(ActorFailed, match="was answered with"):
        await runner().run(Wrong(), ORDER)


def maker(world: World, intervenes: bool = True, **more) -> GroupMaker:
    return GroupMaker(make_config(**more), TASKS, runner(), FakeWorker(world), FakeWorker(world, "intervener-0"), intervenes)


async def test_a_group_holds_its_members_in_order_with_seeds_of_their_own():
    world = World(percent=100)
    group = await maker(world).make(TaskOrder(10, 7).ticket(3), admitted_version=0)
    assert [m.id for m in group.members] == [f"0-3/{i}" for i in range(4)]
    assert len({m.seed for m in group.members}) == 4
    assert group.rewards_before == [1.0] * 4 and group.replaced is None
    assert all(not o.intervened for o in world.orders)


async def test_attempts_run_until_one_succeeds_and_the_rescue_takes_a_failed_members_place():
    world = World(percent=0)
    world.before_run = lambda order: setattr(world, "percent", 100 if order.intervened and order.members == (2,) else 0)
    group = await maker(world, intervention__attempts=8).make(TaskOrder(10, 7).ticket(3), admitted_version=0)
    assert [o.members for o in world.orders if o.intervened] == [(0,), (1,), (2,)]
    assert group.replaced is not None and group.members[group.replaced].id == "0-3/i2"
    assert [a.id for a in group.attempts] == ["0-3/i0", "0-3/i1"]
    assert group.rewards_before == [0.0] * 4 and group.teaches


async def test_a_group_that_nobody_rescues_stays_as_it_was():
    group = await maker(World(percent=0), intervention__attempts=3).make(TaskOrder(10, 7).ticket(0), admitted_version=0)
    assert group.replaced is None and len(group.attempts) == 3 and not group.teaches


async def test_the_facts_of_a_group_are_over_its_trained_tokens():
    world = World(percent=100)
    world.version = 5
    group = await maker(world).make(TaskOrder(10, 7).ticket(0), admitted_version=4)
    group.members[2].samples[0].versions[-1] = 6
    facts = facts_of(group)
    assert (facts.admitted_version, facts.oldest_version, facts.newest_version) == (4, 5, 6)
    for member in group.members:
        member.samples = []
    assert facts_of(group).oldest_version == facts_of(group).newest_version == 4


async def test_an_evaluation_asks_every_test_task_for_n_samples_and_repeats():
    config, heard = make_config(evaluation__samples=3, evaluation__temperature=0.5), []
    world = World(percent=50)
    first = await evaluate(config, TASKS, runner(), FakeWorker(world), lambda done, total: heard.append((done, total)))
    assert [r.task_id for r in first] == [t.id for t in TASKS.test] and all(len(r.outcomes) == 3 for r in first)
    assert heard[0] == (0, 15) and heard[-1] == (15, 15)
    assert {o.temperature for o in world.orders} == {0.5} and {o.split for o in world.orders} == {"test"}
    assert await evaluate(config, TASKS, runner(), FakeWorker(World(percent=50))) == first
    assert len(await evaluate(make_config(evaluation__tasks=2), TASKS, runner(), FakeWorker(world))) == 2


async def test_evaluation_and_training_share_no_seed():
    world = World()
    await evaluate(make_config(), TASKS, runner(), FakeWorker(world))
    testing = {s for o in world.orders for s in o.seeds}
    world.orders.clear()
    await maker(world, intervention__attempts=2).make(TaskOrder(10, 7).ticket(0), 0)
    assert not testing & {s for o in world.orders for s in o.seeds}


async def test_a_fault_in_one_order_cancels_the_others():
    world = World()
    cancelled = []

    async def hold():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    def fail(order):
        if order.task == 4:
            raise ValueError("a bug")
        return hold()

    world.before_run = fail
    with pytest.raises(ValueError, match="a bug"):
        await evaluate(make_config(), TASKS, runner(), FakeWorker(world))
    assert len(cancelled) == 4


def test_orders_survive_the_way_over_the_wire():
    import pickle
    assert pickle.loads(pickle.dumps(ORDER)) == ORDER
    assert decode(encode(World().trajectory(ORDER, "0-1/0", 1)), type(World().trajectory(ORDER, "0-1/0", 1))).id == "0-1/0"
