"""New weights while requests are in flight: nothing lost, versions per token, nothing of the old weights left."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
import torch

from rti.engines.base import EngineError, SamplingParams
from rti.engines.forward import LlamaForward
from rti.engines.torch_engine import TorchEngine
from rti.engines.weights import WeightsMismatch
from tests.engines import tiny
from tests.engines.test_torch_engine import make_prompt, reference_logps

MAKERS = {"tied": tiny.qwen3, "untied": lambda seed=0: tiny.qwen3(seed, tied=False), "llama": tiny.llama,
          "tied llama": lambda seed=0: tiny.llama(seed, tied=True)}


def state_of(model, dtype=torch.float32):
    return {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}


async def until_generated(engine, n):
    while engine.stats()["generated_tokens"] < n:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("loop", ["own", "transformers"])
@pytest.mark.parametrize("name", MAKERS)
async def test_requests_in_flight_go_on_under_the_new_weights(name, loop, monkeypatch):
    if loop == "transformers":
        monkeypatch.setattr(LlamaForward, "serves", classmethod(lambda *_: False))
    maker = MAKERS[name]
    engine = TorchEngine(maker(0), version=3, max_concurrency=5)
    prompts = [make_prompt(n) for n in (3, 64, 100, 130, 20, 30)]    # the last one waits for a place
    flying = [asyncio.ensure_future(engine.generate(p, SamplingParams(max_tokens=150, seed=i))) for i, p in enumerate(prompts)]
    scoring = asyncio.ensure_future(engine.score(prompts[0], [1, 2, 3]))
    await until_generated(engine, 100)
    await engine.load_weights(state_of(maker(1)), 4)
    assert engine.version == 4
    after = asyncio.ensure_future(engine.generate(prompts[0], SamplingParams(max_tokens=5)))
    replies = await asyncio.gather(*flying)
    assert (await after).versions.tolist() == [4] * 5
    assert (await scoring).version in (3, 4)
    for prompt, reply in zip(prompts, replies):
        assert len(reply.token_ids) == 150
        versions = reply.versions.tolist()
        assert versions == sorted(versions) and set(versions) <= {3, 4} and versions[-1] == 4
        old = reference_logps(maker(0), prompt, reply.token_ids)
        new = reference_logps(maker(1), prompt, reply.token_ids)
        np.testing.assert_allclose(reply.logps, np.where(reply.versions == 3, old, new), atol=1e-4)
    assert {3, 4} == set(np.concatenate([r.versions for r in replies]).tolist())
    await engine.close()


async def test_the_prefix_cache_of_old_weights_is_not_used():
    engine = TorchEngine(tiny.qwen3(0))
    prompt = make_prompt(200)
    await engine.score(prompt, [1])
    await engine.load_weights(state_of(tiny.qwen3(1)), 1)
    score = await engine.score(prompt, [1, 2])
    assert score.version == 1 and engine.stats()["reused_tokens"] == 0
    np.testing.assert_allclose(score.logps, reference_logps(tiny.qwen3(1), prompt, [1, 2]), atol=1e-4)
    await engine.close()


@pytest.mark.parametrize("name", MAKERS)
async def test_every_tensor_is_replaced_and_an_engine_is_as_one_made_of_them(name):
    maker, prompt, params = MAKERS[name], make_prompt(70), SamplingParams(max_tokens=70, seed=1)
    fresh, updated = TorchEngine(maker(1)), TorchEngine(maker(0))
    await updated.load_weights(state_of(maker(1)), 0)
    for tensor_name, tensor in maker(1).state_dict().items():
        assert torch.equal(updated._stepper.model.state_dict()[tensor_name], tensor), tensor_name
    a, b = await fresh.generate(prompt, params), await updated.generate(prompt, params)
    assert a.token_ids.tolist() == b.token_ids.tolist() and a.logps.tobytes() == b.logps.tobytes()
    await fresh.close()
    await updated.close()


async def test_a_tied_head_may_be_left_out_and_other_dtypes_are_converted():
    engine = TorchEngine(tiny.qwen3(0))
    state = state_of(tiny.qwen3(1), torch.bfloat16)
    assert state.pop("lm_head.weight") is not None
    await engine.load_weights(state, 1)
    rounded = tiny.qwen3(1)
    rounded.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
    prompt = make_prompt(12)
    np.testing.assert_allclose((await engine.score(prompt, [5, 6])).logps, reference_logps(rounded, prompt, [5, 6]), atol=1e-4)
    await engine.load_weights({name: tensor.float().numpy() for name, tensor in state.items()}, 2)
    assert engine.version == 2
    await engine.close()


async def test_wrong_weights_are_refused_whole_naming_what_is_wrong():
    engine = TorchEngine(tiny.qwen3(0))
    prompt, good = make_prompt(12), state_of(tiny.qwen3(1))
    before = (await engine.score(prompt, [5])).logps
    name = "model.layers.1.mlp.up_proj.weight"
    for change, message in (
            ({name: None}, f"1 missing: {name}"),
            ({"extra.weight": torch.zeros(1)}, "1 not of this model: extra.weight"),
            ({name: torch.zeros(2, 3)}, r"1 of another shape: .*up_proj.weight \(2, 3\) instead of \(96, 64\)"),
            ({"model.embed_tokens.weight": None, "lm_head.weight": None}, "2 missing: model.embed_tokens.weight, lm_head"),
            ({"lm_head.weight": torch.zeros(97, 64)}, "ties .* but the values given differ")):
        state = {k: v for k, v in {**good, **change}.items() if v is not None}
        with pytest.raises(WeightsMismatch, match=f"nothing was changed.*{message}"):
            await engine.load_weights(state, 9)
        assert engine.version == 0
        assert (await engine.score(prompt, [5])).logps == before
    await engine.close()


async def test_damaged_weights_fail_the_requests_and_good_ones_mend_the_engine():
    engine, prompt = TorchEngine(tiny.qwen3(0)), make_prompt(70)
    damaged = state_of(tiny.qwen3(0))
    damaged["model.layers.0.mlp.down_proj.weight"] = torch.full_like(damaged["model.layers.0.mlp.down_proj.weight"], torch.nan)
    flying = asyncio.ensure_future(engine.generate(prompt, SamplingParams(max_tokens=400)))
    await until_generated(engine, 5)
    await engine.load_weights(damaged, 1)
    for request in (flying, engine.generate(prompt, SamplingParams(max_tokens=4)), engine.score(prompt, [1])):
        with pytest.raises(EngineError, match="not finite under weights version 1"):
            await request
    await engine.load_weights(state_of(tiny.qwen3(0)), 2)
    reply = await engine.generate(prompt, SamplingParams(max_tokens=70, seed=1))
    np.testing.assert_allclose(reply.logps, reference_logps(tiny.qwen3(0), prompt, reply.token_ids), atol=1e-4)
    await engine.close()


async def test_memory_is_flat_over_many_updates():
    engine = TorchEngine(tiny.qwen3(0), max_concurrency=4)
    states = [state_of(tiny.qwen3(s)) for s in (0, 1)]

    def resident_mb():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20
    for version in range(240):
        if version == 40:
            start = resident_mb()
        flying = asyncio.ensure_future(engine.generate(make_prompt(100), SamplingParams(max_tokens=4, seed=version)))
        await engine.load_weights(states[version % 2], version)
        await flying
    assert resident_mb() - start < 20
    await engine.close()
