"""New weights in a live vLLM: nothing in flight is lost, versions per token, nothing of the old weights left."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rti.engines.base import EngineError, SamplingParams
from rti.engines.weights import WeightsMismatch
from tests.engines import tiny
from tests.engines.mismatch import learner_logps
from tests.engines.test_torch_engine import make_prompt, reference_logps
from tests.engines.test_weight_updates import state_of

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


def untied(seed=0):
    return tiny.qwen3(seed, tied=False, vocab=128)      # two workers can share the vocabulary evenly


def tied_llama(seed=0):
    return tiny.llama(seed, tied=True, hidden=96)       # vLLM's CPU attention takes heads of 32, not of 16


async def until_generated_something(engine, task):
    """vLLM says what it has sampled when a request is done: a second request of one token, in the same batch, tells."""
    await engine.generate([1], SamplingParams(max_tokens=3))
    assert not task.done()


async def scores_equal_the_learners(engine, model, version, atol):
    asked, given = [make_prompt(n) for n in (5, 40, 90)], [make_prompt(30, seed=s) for s in (1, 2, 3)]
    scores = await asyncio.gather(*(engine.score(p, r, 0.8) for p, r in zip(asked, given)))
    for score, expected in zip(scores, learner_logps(model, asked, given, 0.8)):
        assert score.version == version
        np.testing.assert_allclose(score.logps, expected, atol=atol)


async def test_requests_in_flight_go_on_under_the_new_weights(vllm):
    engine = await vllm(version=3)
    prompts = [make_prompt(n) for n in (3, 64, 100, 130, 20, 30)]
    flying = [asyncio.ensure_future(engine.generate(p, SamplingParams(max_tokens=300, seed=i))) for i, p in enumerate(prompts)]
    await until_generated_something(engine, flying[0])
    scoring = asyncio.ensure_future(engine.score(prompts[1], make_prompt(40)))
    await engine.load_weights(state_of(tiny.qwen3(1)), 4)
    assert engine.version == 4
    after = await engine.generate(prompts[0], SamplingParams(max_tokens=5))
    assert after.versions.tolist() == [4] * 5
    score = await scoring
    expected = reference_logps(tiny.qwen3(score.version - 3), prompts[1], make_prompt(40))
    np.testing.assert_allclose(score.logps, expected, atol=1e-4)    # all of one version, whichever it is
    replies = await asyncio.gather(*flying)
    for prompt, reply in zip(prompts, replies):
        assert len(reply.token_ids) == 300
        versions = reply.versions.tolist()
        assert versions == sorted(versions) and set(versions) == {3, 4}
        old = reference_logps(tiny.qwen3(0), prompt, reply.token_ids)
        new = reference_logps(tiny.qwen3(1), prompt, reply.token_ids)
        np.testing.assert_allclose(reply.logps, np.where(reply.versions == 3, old, new), atol=1e-4)


async def test_the_prefix_cache_of_old_weights_is_not_used_and_a_tied_head_may_be_left_out(vllm):
    engine, prompt = await vllm(version=3), make_prompt(200)
    await engine.score(prompt, [1])
    state = state_of(tiny.qwen3(2))
    assert state.pop("lm_head.weight") is not None
    await engine.load_weights(state, 5)
    np.testing.assert_allclose((await engine.score(prompt, [1, 2])).logps, reference_logps(tiny.qwen3(2), prompt, [1, 2]),
                               atol=1e-4)


async def test_wrong_weights_are_refused_whole_and_the_old_ones_serve_on(vllm):
    engine, prompt = await vllm(version=3), make_prompt(12)
    before, good, name = await engine.score(prompt, [5]), state_of(tiny.qwen3(1)), "model.layers.1.mlp.up_proj.weight"
    for change, message in (({name: None}, f"1 missing: {name}"), ({"extra.weight": torch.zeros(1)}, "1 not of this model"),
                            ({name: torch.zeros(2, 3)}, "1 of another shape"),
                            ({"lm_head.weight": torch.zeros(97, 64)}, "ties .* but the values given differ")):
        state = {k: v for k, v in {**good, **change}.items() if v is not None}
        with pytest.raises(WeightsMismatch, match=f"nothing was changed.*{message}"):
            await engine.load_weights(state, 9)
    after = await engine.score(prompt, [5])
    assert after.logps == before.logps and after.version == before.version == engine.version


async def test_damaged_weights_fail_the_requests_and_good_ones_mend_the_engine(vllm):
    engine, prompt = await vllm(version=3), make_prompt(70)
    damaged = state_of(tiny.qwen3(0))
    damaged["model.layers.0.mlp.down_proj.weight"] = torch.full((64, 96), torch.nan)
    await engine.load_weights(damaged, 6)
    for request in (engine.generate(prompt, SamplingParams(max_tokens=4)), engine.score(prompt, [1])):
        with pytest.raises(EngineError, match="not finite under weights version 6"):
            await request
    await engine.load_weights(state_of(tiny.qwen3(0)), 7)
    reply = await engine.generate(prompt, SamplingParams(max_tokens=70, seed=1))
    np.testing.assert_allclose(reply.logps, reference_logps(tiny.qwen3(0), prompt, reply.token_ids), atol=1e-4)


async def test_many_updates_leave_neither_memory_nor_files_behind(vllm):
    engine = await vllm(version=3)
    core, = engine._llm.engine_core.resources.engine_manager.processes

    def resident_mb():
        with open(f"/proc/{core.pid}/status") as file:
            return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024
    states = [state_of(tiny.qwen3(s)) for s in (0, 1)]
    for version in range(8, 68):
        if version == 18:
            start = resident_mb()
        flying = asyncio.ensure_future(engine.generate(make_prompt(100), SamplingParams(max_tokens=4, seed=version)))
        await engine.load_weights(states[version % 2], version)
        assert (await flying).versions[-1] in (version - 1, version)
    assert resident_mb() - start < 20
    await scores_equal_the_learners(engine, tiny.qwen3(1), 67, 1e-4)


async def test_a_bfloat16_engine_takes_the_float32_master_weights_of_a_tied_llama(vllm):
    engine = await vllm(tied_llama, dtype="bfloat16")
    await engine.load_weights(state_of(tied_llama(1)), 1)
    rounded = tied_llama(1).to(torch.bfloat16).float()      # the arithmetic adds its own error
    asked, given = [make_prompt(n) for n in (5, 40, 90)], [make_prompt(30, seed=s) for s in (1, 2, 3)]
    scores = await asyncio.gather(*(engine.score(p, r, 0.8) for p, r in zip(asked, given)))
    errors = [np.abs(s.logps - e).mean() for s, e in zip(scores, learner_logps(rounded, asked, given, 0.8))]
    stale = [np.abs(s.logps - e).mean() for s, e in zip(scores, learner_logps(tied_llama(0), asked, given, 0.8))]
    assert max(errors) < 0.1 < 0.5 < min(stale)


async def test_two_workers_with_a_share_of_each_layer_take_over_whole_weights(vllm):
    engine = await vllm(untied, tensor_parallel=2)
    await scores_equal_the_learners(engine, untied(0), 0, 1e-4)
    await engine.load_weights(state_of(untied(1)), 1)
    await scores_equal_the_learners(engine, untied(1), 1, 1e-4)
    reply = await engine.generate(make_prompt(9), SamplingParams(max_tokens=20, temperature=0.8))
    np.testing.assert_allclose(reply.logps, reference_logps(untied(1), make_prompt(9), reply.token_ids, 0.8), atol=1e-4)


async def test_closing_ends_vllms_processes_and_refuses_what_comes_later(vllm):
    """The last one in this file: it takes an engine of the others."""
    engine = await vllm(version=3)
    core, = engine._llm.engine_core.resources.engine_manager.processes
    flying = asyncio.ensure_future(engine.generate([1], SamplingParams(max_tokens=500)))
    await asyncio.sleep(0.1)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError):
        await flying
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], SamplingParams(max_tokens=1))
    assert not core.is_alive()
