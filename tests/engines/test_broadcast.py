"""Weights by broadcast, over gloo between real processes: they arrive whole, a dead receiver is noticed, another one joins."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from rti.engines.broadcast import Outbox
from rti.engines.torch_engine import TorchEngine
from rti.engines.transfer import Transfer, TransferFailed
from rti.engines.weights import WeightsMismatch
from tests.engines import tiny
from tests.engines.receiver import Receiver
from tests.engines.test_weight_updates import state_of

CPU = torch.device("cpu")


def numbers(version):
    return {"a": torch.arange(15).reshape(3, 5).to(torch.bfloat16) * version, "b": torch.tensor(float(version)),
            "empty": torch.empty(0, 4), "c": torch.full((100, 1000), version / 8)}


def said(version):
    return {name: (str(t.dtype), t.tolist()) for name, t in numbers(version).items()}


def send(outbox, tensors, *receivers):
    for r in receivers:
        transfer = r.transfer(tensors)
        r.orders.put(transfer)
        outbox.send(transfer)


@pytest.mark.timeout(300)
def test_two_receive_every_version_one_is_killed_and_a_third_joins(tmp_path):
    first, second, third = (Receiver(tmp_path / str(i)) for i in range(3))
    assert [r.says() for r in (first, second, third)] == ["ready"] * 3
    outbox = Outbox(CPU)
    for version in (1, 2):
        tensors = outbox.put(numbers(version).items())
        send(outbox, tensors, first, second)
        assert first.says() == second.says() == said(version)
    first.kill()
    tensors = outbox.put(numbers(3).items())
    with pytest.raises(TransferFailed, match="sending broke off"):
        send(outbox, tensors, first)
    with pytest.raises(TransferFailed, match="the sender has closed this group"):
        outbox.send(first.transfer(tensors))
    send(outbox, tensors, second, third)
    assert second.says() == third.says() == said(3)
    restarted = Receiver(second.path)       # Ray's restart: the sender does not know of it
    second.kill()
    assert restarted.says() == "ready"
    restarted.fresh = False
    restarted.orders.put(restarted.transfer(tensors))
    assert "it was restarted" in restarted.says()
    third.kill()
    restarted.kill()


def test_who_waits_for_one_that_does_not_come_stops_when_it_is_given_up_or_the_time_is_over(tmp_path):
    outbox = Outbox(CPU)
    tensors = outbox.put(numbers(1).items())
    told = Transfer(backend="gloo", meeting=str(tmp_path / "a"), fresh=True, receivers=1, tensors=tensors)
    failures = []

    def sending():
        with pytest.raises(TransferFailed) as failure:
            outbox.send(told)
        failures.append(str(failure.value))

    thread = threading.Thread(target=sending)
    thread.start()
    outbox.abandon(told.meeting)
    thread.join(30)
    assert failures == ["the other end was not met: it was given up"]
    late = Transfer(backend="gloo", meeting=str(tmp_path / "b"), fresh=True, receivers=1, tensors=tensors, limit_s=0.05)
    with pytest.raises(TransferFailed, match=r"not met within 0.05 s"):
        outbox.send(late)
    outbox.put(numbers(2).items())      # nobody is being sent to any more: the snapshot is free


def test_the_snapshot_is_a_copy_and_waits_for_those_who_are_being_sent_the_one_before(tmp_path):
    outbox, source = Outbox(CPU), numbers(1)
    outbox.put((name, t.clone()) for name, t in source.items())
    source["c"].zero_()
    assert torch.equal(outbox.copy()["c"], numbers(1)["c"])
    with outbox._reading():
        putting = threading.Thread(target=outbox.put, args=(numbers(2).items(),))
        putting.start()
        time.sleep(0.05)
        assert putting.is_alive()
    putting.join(30)
    assert torch.equal(outbox.copy()["c"], numbers(2)["c"])


async def test_an_engine_takes_over_what_is_sent_and_refuses_another_models_before_anybody_waits(tmp_path):
    engine, outbox = TorchEngine(tiny.qwen3(0, tied=False), version=3), Outbox(CPU)
    for version, fresh in ((4, True), (5, False)):
        tensors = outbox.put(state_of(tiny.qwen3(version, tied=False)).items())
        told = Transfer(backend="gloo", meeting=str(tmp_path / "a"), fresh=fresh, receivers=1, tensors=tensors, limit_s=60.0)
        await asyncio.gather(engine.receive(told, version), asyncio.to_thread(outbox.send, told))
        assert engine.version == version
        mine = engine._stepper.model.state_dict()
        assert all(torch.equal(mine[name], t) for name, t in state_of(tiny.qwen3(version, tied=False)).items())
    other = Outbox(CPU)
    told = Transfer(backend="gloo", meeting=str(tmp_path / "b"), fresh=True, receivers=1,
                    tensors=other.put(state_of(tiny.qwen3(0, tied=False, vocab=96)).items()))
    with pytest.raises(WeightsMismatch, match="of another shape"):
        await engine.receive(told, 6)
    assert engine.version == 5
    await engine.close()
