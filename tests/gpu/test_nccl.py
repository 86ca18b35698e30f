"""Weights from one GPU to engines on another, over NCCL. Skipped with the reason where there are no two GPUs, or no vLLM.

Has not been run on GPUs yet: none were there when it was written. tests/engines/test_broadcast.py runs the same code over gloo.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal

import pytest
import torch

from rti.engines.base import SamplingParams
from rti.engines.broadcast import Inbox, Outbox
from rti.engines.transfer import Transfer, TransferFailed
from tests.engines import tiny
from tests.engines.receiver import SPAWN
from tests.engines.test_vllm_weights import scores_equal_the_learners

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL between two processes needs two CUDA devices"),
]
LEARNER = torch.device("cuda:1")        # an engine takes the first GPU


def policy(seed=0):
    return tiny.qwen3(seed, tied=False, vocab=128)


def transfer(outbox, path, version, fresh, limit_s=60.0):
    tensors = outbox.put((name, p.detach().to(LEARNER)) for name, p in policy(version).named_parameters())
    return Transfer(backend="nccl", meeting=str(path), fresh=fresh, receivers=1, tensors=tensors, limit_s=limit_s)


def send(outbox, told):
    torch.cuda.set_device(LEARNER)      # of this thread
    outbox.send(told)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
async def test_weights_travel_from_one_gpu_to_an_engine_on_another_and_through_the_object_store_in_between(tmp_path):
    from rti.engines.vllm_engine import VLLMEngine

    policy().save_pretrained(tmp_path / "policy")
    engine = await asyncio.to_thread(VLLMEngine, str(tmp_path / "policy"), dtype="float32", device="cuda", max_concurrency=8,
                                     gpu_share=0.3)
    outbox = Outbox(LEARNER)
    for version, group, fresh in ((1, "a", True), (2, "a", False), (4, "b", True)):
        told = transfer(outbox, tmp_path / group, version, fresh)
        await asyncio.gather(engine.receive(told, version), asyncio.to_thread(send, outbox, told))
        assert (await engine.generate([1], SamplingParams(max_tokens=3))).versions.tolist() == [version] * 3
        await scores_equal_the_learners(engine, policy(version), version, 1e-3)
        if version == 2:
            await engine.load_weights(dict(policy(3).state_dict()), 3)
            await scores_equal_the_learners(engine, policy(3), 3, 1e-3)
    await engine.close()


def dies(told):
    """A receiver that meets the sender and is killed before it takes anything."""
    torch.cuda.set_device(0)
    Inbox(torch.device("cuda:0")).meet(told, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_receiver_that_dies_neither_holds_nor_ends_the_sender(tmp_path):
    outbox = Outbox(LEARNER)
    told = transfer(outbox, tmp_path / "a", 1, True, limit_s=20.0)
    process = SPAWN.Process(target=dies, args=(told,), daemon=True)
    process.start()
    with pytest.raises(TransferFailed):
        for _ in range(100):        # NCCL may take small tensors into its buffers before it sees that nobody reads them
            send(outbox, told)
    process.join()
    assert outbox.copy()
