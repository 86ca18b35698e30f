"""The transfer over NCCL without a GPU: both of vLLM's ends are real, and only the wire between them is a queue.

What this cannot show is NCCL itself, the packing of tensors on CUDA streams, and an update within vLLM's own process:
tests/gpu/test_nccl.py does, on two GPUs.
"""

from __future__ import annotations

import asyncio
import queue
from types import SimpleNamespace

import pytest
import torch

from rti.engines.base import EngineError, SamplingParams
from rti.engines.weights import WeightsMismatch, check_weights
from tests.engines import tiny
from tests.engines.nccl import Bridge
from tests.engines.test_vllm_weights import untied
from tests.engines.test_weight_updates import state_of

pytestmark = pytest.mark.vllm
OTHER = dict(tied=False, vocab=96)


class Wire(queue.Queue):
    """In the place of both ends' communicators."""

    def destroy(self):
        """Nothing is held."""


def produce(iterator, group, src, post_iter_func, **_):
    for item in iterator:
        group.put(post_iter_func(item).clone())


def consume(iterator, group, src, post_unpack_func, **_):
    for name, (shape, dtype) in iterator:
        tensor = group.get(timeout=60)
        assert (list(tensor.shape), tensor.dtype) == (list(shape), dtype)
        post_unpack_func([(name, tensor)])


class Worker:
    """A Receiver: vLLM's own end of a worker, over a model that keeps what it is given."""

    def __init__(self):
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

        self.loaded, self.versions = {}, []
        config = SimpleNamespace(parallel_config=SimpleNamespace(), model_config=None)
        model = SimpleNamespace(load_weights=lambda pairs: self.loaded.update(pairs))
        self._end = NCCLWeightTransferEngine(None, config, torch.device("cpu"), model)

    def check(self, shapes):
        check_weights(untied(), {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})

    def join(self, init_info):
        self._end.init_transfer_engine(self._end.parse_init_info(init_info))

    def receive(self, update_info, version):
        self._end.receive_weights(self._end.parse_update_info(update_info))
        self.versions.append(version)


@pytest.fixture
def wire(monkeypatch):
    nccl_engine = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    made, met = Wire(), []

    def worker(info, parallel):
        met.append((info.rank_offset, info.world_size, info.master_address, info.master_port, info.packed))
        return made

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: made)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", worker)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", produce)
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_consumer", consume)
    made.met = met
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_version_arrives_whole_in_the_dtype_it_was_sent_in(wire, dtype):
    from rti.engines.vllm_nccl import Sender

    worker = Worker()
    sender = Sender(worker, 4, state_of(untied(1), dtype), "127.0.0.1", 29_500)
    assert wire.met == [(1, 5, "127.0.0.1", 29_500, True)]      # the sender is rank 0, then four workers
    for version in (1, 2):
        sender.send(state_of(untied(version), dtype), version)
        for name, tensor in state_of(untied(version), dtype).items():
            assert worker.loaded[name].dtype == dtype and torch.equal(worker.loaded[name], tensor)
    assert worker.versions == [1, 2] and wire.empty()
    sender.close()


def test_weights_of_another_model_are_refused_before_anybody_waits(wire):
    from rti.engines.vllm_nccl import Sender

    worker = Worker()
    with pytest.raises(WeightsMismatch, match="of another shape"):
        Sender(worker, 1, state_of(tiny.qwen3(0, **OTHER)), "127.0.0.1", 29_500)
    assert wire.met == []
    sender = Sender(worker, 1, state_of(untied()), "127.0.0.1", 29_500)
    with pytest.raises(ValueError, match="other names, shapes"):
        sender.send(state_of(tiny.qwen3(0, **OTHER)), 1)
    assert worker.versions == [] and wire.empty()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_engine_checks_names_and_shapes_and_one_that_cannot_join_is_down(vllm):
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload

    engine = await vllm(untied, transfer="nccl")
    engine.check({name: list(tensor.shape) for name, tensor in state_of(untied()).items()})
    with pytest.raises(WeightsMismatch, match="of another shape"):
        engine.check({name: list(tensor.shape) for name, tensor in state_of(tiny.qwen3(0, **OTHER)).items()})
    assert len((await engine.generate([1], SamplingParams(max_tokens=3))).token_ids) == 3
    if torch.cuda.is_available():
        pytest.skip("the rest is what happens without an accelerator")
    info = NCCLWeightTransferInitInfo(master_address="127.0.0.1", master_port=29_500, rank_offset=1, world_size=2)
    bridge = Bridge(engine, asyncio.get_running_loop())
    with pytest.raises(EngineError, match="vLLM failed"):
        await asyncio.to_thread(bridge.join, worker_init_payload(info))
    with pytest.raises(EngineError, match="failed earlier"):
        await engine.generate([1], SamplingParams(max_tokens=3))
