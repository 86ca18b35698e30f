"""Deliveries of the learner's snapshot: by a group, through the object store where that fails, never another version."""

from __future__ import annotations

import asyncio

import pytest

from rti.actors.courier import MEETINGS, Courier
from rti.control.faults import ActorLost, LearnerLost
from rti.engines.transfer import TensorInfo, TransferFailed

TENSORS = (TensorInfo("a", "float32", (2,)),)


class Pair:
    """The sender's end: a send returns when the receiver's call with the same transfer has come."""

    def __init__(self):
        self.sent, self.abandoned, self.copies = [], [], 0
        self.lost = False
        self.arrived: dict[str, asyncio.Future] = {}

    def at(self, meeting):
        return self.arrived.setdefault(meeting, asyncio.get_running_loop().create_future())

    async def send(self, transfer):
        if self.lost:
            raise LearnerLost("rank 0 died")
        await self.at(transfer.meeting)
        self.sent.append(transfer)

    async def abandon(self, meeting):
        self.abandoned.append(meeting)
        self.at(meeting).set_exception(TransferFailed("given up"))

    async def stored(self):
        if self.lost:
            raise LearnerLost("rank 0 died")
        self.copies += 1
        return f"copy {self.copies}"


class Generator:
    def __init__(self, pair, name="generator-0"):
        self.pair, self.name, self.calls = pair, name, []
        self.fault = None
        self.go = asyncio.Event()
        self.go.set()

    async def call(self, method, *args):
        self.calls.append((method, args[-1] if args else None))
        if method == "receive":
            await self.go.wait()
            if self.fault is not None:
                raise self.fault
            meeting = self.pair.at(args[0].meeting)
            if not meeting.done():
                meeting.set_result(None)


def courier(tmp_path):
    pair = Pair()
    return pair, Courier(pair, "gloo", 1, tmp_path)


def served(generator):
    return [call for call in generator.calls if call[0] != "make_way"]


async def test_a_group_is_made_with_the_first_delivery_and_kept(tmp_path):
    (tmp_path / f"{MEETINGS}left").touch()
    pair, c = courier(tmp_path)
    assert not list(tmp_path.iterdir()), "what a killed run left behind is gone"
    g = Generator(pair)
    for version in (1, 2):
        await c.hold()
        c.offer(version, TENSORS)
        await c.deliver(g)
    assert served(g) == [("receive", 1), ("receive", 2)] and [t.fresh for t in pair.sent] == [True, False]
    assert len({t.meeting for t in pair.sent}) == 1 and not c.failures


@pytest.mark.parametrize("fault", [TransferFailed("no network"), TransferFailed("it was restarted")])
async def test_a_failed_delivery_goes_through_the_object_store_and_the_next_one_by_a_new_group(tmp_path, fault):
    pair, c = courier(tmp_path)
    bad, good = Generator(pair, "generator-0"), Generator(pair, "generator-1")
    c.offer(1, TENSORS)
    bad.fault = fault
    await asyncio.gather(c.deliver(bad), c.deliver(good))
    assert served(bad) == [("receive", 1), ("load", 1)] and served(good) == [("receive", 1)]
    assert len(pair.abandoned) == 1 and (c.failures, pair.copies) == (1, 1)
    bad.fault = None
    await c.hold()
    c.offer(2, TENSORS)
    await c.deliver(bad)
    assert served(bad)[-1] == ("receive", 2) and pair.sent[-1].fresh and pair.sent[-1].meeting != pair.abandoned[0]


async def test_a_generator_that_dies_is_told_to_the_fleet_and_gets_that_version_through_the_object_store(tmp_path):
    pair, c = courier(tmp_path)
    g = Generator(pair)
    c.offer(7, TENSORS)
    g.fault = ActorLost("killed")
    with pytest.raises(ActorLost):
        await c.deliver(g)
    g.fault = None
    await c.deliver(g)
    assert served(g) == [("receive", 7), ("load", 7)] and len(pair.abandoned) == 1


async def test_a_lost_learner_is_told_at_once_though_the_generator_still_waits(tmp_path):
    pair, c = courier(tmp_path)
    g = Generator(pair)
    g.go.clear()
    c.offer(1, TENSORS)
    pair.lost = True
    with pytest.raises(LearnerLost):
        await asyncio.wait_for(c.deliver(g), 10)
    pair.lost = False
    g.go.set()
    await c.hold()
    c.forget()
    c.offer(1, TENSORS)
    await c.deliver(g)
    assert pair.sent[-1].fresh


async def test_the_snapshot_is_not_replaced_under_a_delivery_and_one_that_comes_meanwhile_gets_the_new_version(tmp_path):
    pair, c = courier(tmp_path)
    slow, late = Generator(pair, "generator-0"), Generator(pair, "generator-1")
    slow.go.clear()
    c.offer(1, TENSORS)
    first = asyncio.create_task(c.deliver(slow))
    await asyncio.sleep(0.01)
    holding = asyncio.create_task(c.hold())
    second = asyncio.create_task(c.deliver(late))
    await asyncio.sleep(0.01)
    assert not holding.done() and not late.calls
    slow.go.set()
    await asyncio.gather(first, holding)
    assert not late.calls
    c.offer(2, TENSORS)
    await second
    assert served(slow) == [("receive", 1)] and served(late) == [("receive", 2)]
