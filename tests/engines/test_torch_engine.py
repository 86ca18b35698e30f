"""The torch engine against plain full forward passes of the same model: probabilities, limits, faults."""

from __future__ import annotations

import asyncio
import importlib.util
import math

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from rti.engines import kv_cache, load_engine
from rti.engines.attention import UnsupportedModel
from rti.engines.base import EngineError, PromptTooLong, SamplingParams
from rti.engines.forward import GenericForward, LlamaForward
from rti.engines.torch_engine import TorchEngine
from tests.engines import tiny
from tests.engines.mismatch import mean_log_ratio

MAKERS = {"qwen3": tiny.qwen3, "qwen3-untied": lambda: tiny.qwen3(tied=False, kv_heads=4), "llama": tiny.llama}


def make_prompt(n, seed=0):
    return np.random.default_rng([seed, n]).integers(0, tiny.VOCAB, n).tolist()


def reference_logps(model, prompt, reply, temperature=1.0):
    """log softmax(logits / temperature) by one eager forward over everything."""
    model.set_attn_implementation("eager")
    ids = torch.tensor([list(prompt) + list(reply)])
    with torch.no_grad():
        logps = torch.log_softmax(model(ids, use_cache=False).logits[0].double() / temperature, -1)
    return logps[len(prompt) - 1:-1].gather(1, ids[0, len(prompt):, None])[:, 0].numpy()


def next_token_probabilities(model, prompt, temperature):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double() / temperature, -1).numpy()


@pytest.fixture(params=["own loop", "transformers' loop"])
def any_loop(request, monkeypatch):
    """Both ways through a model, also where the faster one would be taken."""
    if request.param != "own loop":
        monkeypatch.setattr(LlamaForward, "serves", classmethod(lambda *_: False))
    return GenericForward if request.param != "own loop" else LlamaForward


async def test_a_long_sequence_leaves_no_keys_and_values_behind_on_its_way(monkeypatch):
    """It grows from pool to pool, and a pool of a large model takes gigabytes: here each counts as large."""
    prompts, params = [make_prompt(n) for n in (10, 70, 130)], SamplingParams(max_tokens=250, temperature=0.7, seed=3)
    engine = TorchEngine(tiny.qwen3(), max_context=512)
    usual = [await engine.generate(prompt, params) for prompt in prompts]
    assert len(engine._stepper._decode._pools) >= 4
    await engine.close()
    monkeypatch.setattr(kv_cache, "KEPT_BYTES", 0)
    engine = TorchEngine(tiny.qwen3(), max_context=512)
    replies = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
    assert not engine._stepper._decode._pools
    await engine.close()
    for reply, expected in zip(replies, usual):
        np.testing.assert_array_equal(reply.token_ids, expected.token_ids)
        np.testing.assert_array_equal(reply.logps, expected.logps)


@pytest.mark.parametrize("name", MAKERS)
async def test_log_probabilities_equal_a_plain_forward(name, any_loop):
    engine = TorchEngine(MAKERS[name](), max_context=300)
    assert type(engine._stepper._forward) is any_loop
    prompts = [make_prompt(n) for n in (1, 7, 63, 64, 65, 129, 200)]
    replies = await asyncio.gather(*(
        engine.generate(p, SamplingParams(max_tokens=90, temperature=0.7, seed=i)) for i, p in enumerate(prompts)))
    scores = await asyncio.gather(*(engine.score(p, r.token_ids, 0.7) for p, r in zip(prompts, replies)))
    for prompt, reply, score in zip(prompts, replies, scores):
        expected = reference_logps(MAKERS[name](), prompt, reply.token_ids, 0.7)
        assert len(expected) == 90
        np.testing.assert_allclose(reply.logps, expected, atol=1e-4)
        np.testing.assert_allclose(score.logps, expected, atol=1e-4)
        assert reply.token_ids.dtype == np.int32 and reply.logps.dtype == np.float32 and reply.versions.dtype == np.int32
    await engine.close()


def gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=tiny.VOCAB, n_positions=256,
                                      initializer_range=0.1)).eval()


async def test_another_architecture_is_served_through_transformers():
    engine, prompt = TorchEngine(gpt2()), make_prompt(70)
    replies = await asyncio.gather(*(engine.generate(prompt, SamplingParams(max_tokens=70, seed=s)) for s in range(3)))
    for reply in replies:
        np.testing.assert_allclose(reply.logps, reference_logps(gpt2(), prompt, reply.token_ids), atol=1e-4)
    await engine.close()


def test_an_architecture_that_cannot_be_served_is_refused_with_the_reason():
    config = Gemma2Config(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
                          num_key_value_heads=2, vocab_size=tiny.VOCAB, max_position_embeddings=256)
    with pytest.raises(UnsupportedModel, match="cannot serve Gemma2ForCausalLM.*softcap"):
        TorchEngine(Gemma2ForCausalLM(config))


async def test_bfloat16_is_served_within_its_precision():
    engine, prompt = TorchEngine(tiny.qwen3().to(torch.bfloat16)), make_prompt(70)
    reply = await engine.generate(prompt, SamplingParams(max_tokens=70))
    assert reply.logps.dtype == np.float32
    expected = reference_logps(tiny.qwen3().to(torch.bfloat16), prompt, reply.token_ids)
    assert np.abs(reply.logps - expected).mean() < 0.1
    await engine.close()


async def test_greedy_equals_transformers_generate():
    model, prompt = tiny.qwen3(), make_prompt(20)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=80, do_sample=False, eos_token_id=None, pad_token_id=0)
    engine = TorchEngine(tiny.qwen3())
    reply = await engine.generate(prompt, SamplingParams(max_tokens=80, temperature=0))
    assert reply.token_ids.tolist() == expected[0, 20:].tolist()
    np.testing.assert_allclose(reply.logps, reference_logps(tiny.qwen3(), prompt, reply.token_ids), atol=1e-4)
    await engine.close()


async def test_sampled_frequencies_are_those_of_the_distribution():
    prompt, n = make_prompt(5), 2000
    engine = TorchEngine(tiny.qwen3(std=0.05), max_concurrency=128)
    params = [SamplingParams(max_tokens=1, temperature=0.8, seed=s) for s in range(n)]
    replies = await asyncio.gather(*(engine.generate(prompt, p) for p in params))
    await engine.close()
    counts = np.bincount([int(r.token_ids[0]) for r in replies], minlength=tiny.VOCAB)
    expected = n * next_token_probabilities(tiny.qwen3(std=0.05), prompt, 0.8)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (tiny.VOCAB - 1)) < 5 * math.sqrt(2 * tiny.VOCAB)    # five standard deviations


async def test_top_p_keeps_the_smallest_set_and_renormalises():
    prompt, top_p = make_prompt(9), 0.6
    model = tiny.qwen3(std=0.3)
    p = next_token_probabilities(model, prompt, 1.0)
    order = np.argsort(-p)
    kept = set(order[:int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1].tolist())
    mass = p[list(kept)].sum()
    engine = TorchEngine(tiny.qwen3(std=0.3))
    replies = await asyncio.gather(*(
        engine.generate(prompt, SamplingParams(max_tokens=1, top_p=top_p, seed=s)) for s in range(300)))
    await engine.close()
    for reply in replies:
        token = int(reply.token_ids[0])
        assert token in kept
        assert reply.logps[0] == pytest.approx(math.log(p[token] / mass), abs=1e-4)
    assert 1 < len({int(r.token_ids[0]) for r in replies}) <= len(kept) < tiny.VOCAB


async def test_a_reply_ends_with_any_of_its_stop_tokens_or_at_its_limits():
    engine = TorchEngine(tiny.qwen3(), max_context=64)
    prompt = make_prompt(10)
    free = await engine.generate(prompt, SamplingParams(max_tokens=30, seed=3))
    tokens = free.token_ids.tolist()
    assert (free.finish_reason, len(tokens)) == ("length", 30)
    for stops in ((tokens[7],), (tokens[12], tokens[7]), (tokens[7], 96)):
        reply = await engine.generate(prompt, SamplingParams(max_tokens=30, seed=3, stop_token_ids=stops))
        end = min(tokens.index(s) for s in stops if s in tokens)
        assert reply.token_ids.tolist() == tokens[:end + 1] and reply.finish_reason == "stop"
        np.testing.assert_array_equal(reply.logps, free.logps[:end + 1])
    whole = await engine.generate(prompt, SamplingParams(max_tokens=1000, seed=3))
    assert (len(whole.token_ids), whole.finish_reason) == (54, "length")
    assert whole.token_ids.tolist()[:30] == tokens
    nothing = await engine.generate(prompt, SamplingParams(max_tokens=0))
    assert (len(nothing.token_ids), nothing.finish_reason) == (0, "length")
    await engine.close()


async def test_the_engine_s_own_stop_tokens_apply_to_every_request():
    engine = TorchEngine(tiny.qwen3(), eos_token_ids=range(tiny.VOCAB))
    reply = await engine.generate([1], SamplingParams(max_tokens=5))
    assert (len(reply.token_ids), reply.finish_reason) == (1, "stop")
    await engine.close()


async def test_a_prompt_that_leaves_no_room_is_refused():
    engine = TorchEngine(tiny.qwen3(), max_context=64)
    assert len((await engine.generate(make_prompt(63), SamplingParams(max_tokens=9))).token_ids) == 1
    with pytest.raises(PromptTooLong, match="64 tokens leaves no room .* context of 64"):
        await engine.generate(make_prompt(64), SamplingParams(max_tokens=9))
    with pytest.raises(PromptTooLong, match="60 [+] 5 tokens"):
        await engine.score(make_prompt(60), [1] * 5)
    await engine.close()


async def test_nonsense_is_refused_and_harms_nobody_else():
    engine = TorchEngine(tiny.qwen3())
    good = asyncio.ensure_future(engine.generate(make_prompt(5), SamplingParams(max_tokens=50)))
    for prompt in ([], [97], [-1], [1.5], [[1]]):
        with pytest.raises(ValueError, match="token ids must be"):
            await engine.generate(prompt, SamplingParams(max_tokens=5))
    for params in (SamplingParams(max_tokens=5, temperature=-1), SamplingParams(max_tokens=5, top_p=0),
                   SamplingParams(max_tokens=5, temperature=float("nan"))):
        with pytest.raises(ValueError, match="temperature must be at least 0 and top_p"):
            await engine.generate([1], params)
    assert len((await engine.score([1], [])).logps) == 0
    assert len((await good).token_ids) == 50
    await engine.close()
    with pytest.raises(ValueError, match="max_context 1000 .* limit of 512"):
        TorchEngine(tiny.qwen3(), max_context=1000)


async def test_a_cancelled_task_gives_its_place_to_another():
    engine = TorchEngine(tiny.qwen3(), max_concurrency=1)
    endless = asyncio.ensure_future(engine.generate([1], SamplingParams(max_tokens=500)))
    queued = asyncio.ensure_future(engine.generate([2], SamplingParams(max_tokens=500)))
    last = asyncio.ensure_future(engine.generate([3], SamplingParams(max_tokens=2)))
    while not engine.stats()["generated_tokens"]:
        await asyncio.sleep(0.001)
    endless.cancel()
    queued.cancel()
    assert len((await last).token_ids) == 2
    assert endless.cancelled() and queued.cancelled()
    assert engine.stats()["generated_tokens"] < 500
    await engine.close()


async def test_a_fault_in_the_loop_fails_everybody_and_later_calls():
    engine = TorchEngine(tiny.qwen3(), max_concurrency=2)

    def broken(*_):
        raise RuntimeError("out of memory, say")
    pending = [asyncio.ensure_future(engine.generate([i], SamplingParams(max_tokens=400))) for i in range(5)]
    await asyncio.sleep(0.01)
    engine._stepper._forward.logits = broken
    for result in await asyncio.gather(*pending, return_exceptions=True):
        assert isinstance(result, EngineError) and "out of memory, say" in str(result)
    with pytest.raises(EngineError, match="failed earlier: RuntimeError: out of memory, say"):
        await engine.generate([1], SamplingParams(max_tokens=1))
    with pytest.raises(EngineError, match="failed earlier"):
        await engine.load_weights({}, 1)
    await engine.close()


async def test_closing_fails_what_is_in_flight_and_ends_the_thread():
    engine = TorchEngine(tiny.qwen3(), max_concurrency=1)
    pending = [asyncio.ensure_future(engine.generate([i], SamplingParams(max_tokens=500))) for i in range(3)]
    await asyncio.sleep(0.01)
    await engine.close()
    for result in await asyncio.gather(*pending, return_exceptions=True):
        assert isinstance(result, EngineError) and "closed" in str(result)
    assert not engine._thread.is_alive()
    with pytest.raises(EngineError, match="the engine is closed"):
        await engine.generate([1], SamplingParams(max_tokens=1))
    await engine.close()


async def test_an_engine_is_loaded_from_the_configuration(tmp_path):
    from rti.config.schema import GeneratorsConfig, ModelConfig
    tiny.qwen3().save_pretrained(tmp_path)
    engine = load_engine(ModelConfig(path=str(tmp_path)), GeneratorsConfig(concurrency=4, threads=1), version=7)
    reply = await engine.generate([1, 2], SamplingParams(max_tokens=3))
    assert reply.versions.tolist() == [7, 7, 7] and engine.max_context == 512
    await engine.close()
    with pytest.raises(ValueError, match="generators.engine='vlm'.*torch and vllm"):
        load_engine(ModelConfig(), GeneratorsConfig(engine="vlm"))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_configured_engine_is_refused_with_the_mend(tmp_path):
    from rti.config.schema import GeneratorsConfig, ModelConfig
    from rti.engines.vllm_engine import VLLMMissing
    tiny.qwen3().save_pretrained(tmp_path)
    with pytest.raises(VLLMMissing, match="Install RTI with its extra `vllm`"):
        load_engine(ModelConfig(path=str(tmp_path)), GeneratorsConfig(engine="vllm"))


async def test_on_fresh_weights_the_learner_agrees_at_temperature_08():
    engine = TorchEngine(tiny.qwen3())
    assert await mean_log_ratio(engine, tiny.qwen3(), 0.8) < 1e-3
    await engine.close()
