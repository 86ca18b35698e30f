"""Weights from one GPU to a vLLM engine on another, over NCCL. Skipped with the reason where there are no two GPUs, or no vLLM.

Has not been run on GPUs yet: none were there when it was written.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket

import pytest
import torch

from rti.engines.base import SamplingParams
from tests.engines import tiny
from tests.engines.nccl import Bridge
from tests.engines.test_vllm_weights import scores_equal_the_learners

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL between two processes needs two CUDA devices"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"),
]


def policy(seed=0):
    return tiny.qwen3(seed, tied=False, vocab=128)


async def test_weights_travel_from_one_gpu_to_an_engine_on_another(tmp_path):
    from rti.engines.vllm_engine import VLLMEngine
    from rti.engines.vllm_nccl import Sender

    policy().save_pretrained(tmp_path / "policy")
    engine = await asyncio.to_thread(VLLMEngine, str(tmp_path / "policy"), dtype="float32", device="cuda", max_concurrency=8,
                                     gpu_share=0.3, transfer="nccl")    # takes the first GPU
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    receiver = Bridge(engine, asyncio.get_running_loop())

    def send_two() -> None:
        torch.cuda.set_device(1)        # of this thread
        states = [{name: p.detach().to("cuda:1") for name, p in policy(seed).named_parameters()} for seed in (1, 2)]
        sender = Sender(receiver, 1, states[0], "127.0.0.1", port)
        for version, state in enumerate(states, 1):
            sender.send(state, version)
        sender.close()

    await asyncio.to_thread(send_two)
    assert engine.version == 2
    assert (await engine.generate([1], SamplingParams(max_tokens=3))).versions.tolist() == [2, 2, 2]
    await scores_equal_the_learners(engine, policy(2), 2, 1e-3)
    await engine.close()
