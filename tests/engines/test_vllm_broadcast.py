"""Weights that are broadcast to vLLM's workers, over gloo: the code that NCCL runs on GPUs, but for NCCL itself."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rti.engines.base import SamplingParams
from rti.engines.broadcast import Outbox
from rti.engines.transfer import Transfer, TransferFailed
from rti.engines.weights import WeightsMismatch
from tests.engines import tiny
from tests.engines.test_vllm_weights import scores_equal_the_learners, untied
from tests.engines.test_weight_updates import state_of

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


def transfer(outbox, path, model, *, fresh=True, limit_s=60.0):
    tensors = outbox.put(state_of(model).items())
    return Transfer(backend="gloo", meeting=str(path), fresh=fresh, receivers=1, tensors=tensors, limit_s=limit_s)


async def test_a_live_engine_takes_either_way_at_any_update(vllm, tmp_path):
    engine, outbox = await vllm(untied), Outbox(torch.device("cpu"))
    flying = asyncio.ensure_future(engine.generate([1, 2, 3], SamplingParams(max_tokens=300)))
    for version, group, fresh in ((1, "a", True), (2, "a", False), (4, "b", True)):
        told = transfer(outbox, tmp_path / group, untied(version), fresh=fresh)
        await asyncio.gather(engine.receive(told, version), asyncio.to_thread(outbox.send, told))
        await scores_equal_the_learners(engine, untied(version), version, 1e-4)
        if version == 2:
            await engine.load_weights(state_of(untied(3)), 3)
            await scores_equal_the_learners(engine, untied(3), 3, 1e-4)
    assert len((await flying).token_ids) == 300


async def test_an_engine_that_met_nobody_goes_on_as_it_was(vllm, tmp_path):
    engine, outbox = await vllm(untied), Outbox(torch.device("cpu"))
    before = engine.version
    with pytest.raises(TransferFailed, match="not met within"):
        await engine.receive(transfer(outbox, tmp_path / "a", untied(9), limit_s=0.2), 9)
    with pytest.raises(TransferFailed, match="it was restarted"):
        await engine.receive(transfer(outbox, tmp_path / "b", untied(9), fresh=False), 9)
    with pytest.raises(WeightsMismatch, match="of another shape"):
        await engine.receive(transfer(Outbox(torch.device("cpu")), tmp_path / "c", tiny.qwen3(0, tied=False, vocab=96)), 9)
    assert engine.version == before and len((await engine.generate([1], SamplingParams(max_tokens=3))).token_ids) == 3
