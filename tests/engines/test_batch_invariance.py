"""The same request gives bit for bit the same tokens and log-probabilities, whatever the engine does beside it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rti.engines.base import SamplingParams
from rti.engines.forward import LlamaForward
from rti.engines.torch_engine import TorchEngine
from tests.engines import tiny

MODELS = {
    "qwen3": tiny.qwen3,
    "lab-sized qwen3": lambda: tiny.qwen3(layers=4, hidden=128, intermediate=384, vocab=1201, kv_heads=2, std=0.05),
    "llama": tiny.llama,
}


def requests(rng, n, vocab=tiny.VOCAB):
    """Requests of all kinds: lengths around block bounds, shared prefixes, sampling and scoring."""
    stem = rng.integers(0, vocab, 200)
    made = []
    for i in range(n):
        length = int(rng.choice([1, 2, 31, 63, 64, 65, 100, 127, 128, 129, 180]))
        prompt = stem[:length].copy() if rng.random() < 0.5 else rng.integers(0, vocab, length)
        prompt[-1] = rng.integers(0, vocab)
        if rng.random() < 0.3:
            made.append(("score", prompt.tolist(), rng.integers(0, vocab, int(rng.integers(1, 90))).tolist(), 0.8))
        else:
            params = SamplingParams(max_tokens=int(rng.integers(1, 70)), seed=int(rng.integers(0, 2 ** 62)),
                                    temperature=float(rng.choice([0.0, 0.8, 1.0])), top_p=float(rng.choice([1.0, 1.0, 0.9])))
            made.append(("generate", prompt.tolist(), params))
    return made


async def answer(engine, request, delay=0.0):
    await asyncio.sleep(delay)
    kind, *arguments = request
    result = await getattr(engine, kind)(*arguments)
    tokens = result.token_ids.tobytes() if kind == "generate" else b""
    return tokens, result.logps.tobytes()


async def alone(maker, made, **options):
    """Each request by itself, without anything shared."""
    engine = TorchEngine(maker(), max_concurrency=64, prefix_cache_mb=0, **options)
    assert engine.batch_invariant
    answers = [await answer(engine, request) for request in made]
    await engine.close()
    return answers


@pytest.mark.parametrize("name, threads", [("qwen3", 2), ("lab-sized qwen3", 1), ("lab-sized qwen3", 2), ("llama", 1)])
async def test_answers_do_not_depend_on_batch_order_slot_or_shared_prefixes(name, threads):
    maker, rng = MODELS[name], np.random.default_rng(11)
    before = torch.get_num_threads()
    made = requests(rng, 16)
    expected = await alone(maker, made, threads=threads)
    for concurrency, prefill_rows, cache_mb in ((64, 256, 64), (64, 64, 0), (3, 1000, 1)):
        engine = TorchEngine(maker(), max_concurrency=concurrency, prefill_rows=prefill_rows, prefix_cache_mb=cache_mb,
                             threads=threads)
        order = rng.permutation(len(made)).tolist()
        answers = await asyncio.gather(*(answer(engine, made[i], float(rng.choice([0, rng.random() * 0.1]))) for i in order))
        reused = engine.stats()["reused_tokens"]
        await engine.close()
        assert [answers[order.index(i)] for i in range(len(made))] == expected
        assert (reused > 0) == (cache_mb > 0)
    torch.set_num_threads(before)


async def test_random_subsets_of_the_requests_give_the_same_answers():
    rng = np.random.default_rng(5)
    made = requests(rng, 24)
    expected = await alone(tiny.qwen3, made)
    engine = TorchEngine(tiny.qwen3(), max_concurrency=16)
    for _ in range(8):
        chosen = rng.permutation(len(made))[:int(rng.integers(1, len(made)))].tolist()
        answers = await asyncio.gather(*(answer(engine, made[i]) for i in chosen))
        assert answers == [expected[i] for i in chosen]
    await engine.close()


async def test_transformers_own_loop_is_invariant_too(monkeypatch):
    monkeypatch.setattr(LlamaForward, "serves", classmethod(lambda *_: False))
    rng = np.random.default_rng(6)
    made = requests(rng, 12)
    expected = await alone(tiny.qwen3, made)
    engine = TorchEngine(tiny.qwen3())
    assert await asyncio.gather(*(answer(engine, request) for request in made)) == expected
    await engine.close()


async def test_a_cancelled_neighbour_changes_nothing():
    made = requests(np.random.default_rng(7), 12)
    expected = await alone(tiny.qwen3, made)
    engine = TorchEngine(tiny.qwen3())
    neighbours = [asyncio.ensure_future(engine.generate([i], SamplingParams(max_tokens=500))) for i in range(9)]
    answers = [asyncio.ensure_future(answer(engine, request)) for request in made]
    for i, neighbour in enumerate(neighbours):
        await asyncio.sleep(0.005 * (i % 3))
        neighbour.cancel()
    assert await asyncio.gather(*answers) == expected
    await engine.close()


async def test_prefixes_are_read_once():
    """Eight members of a group with one prompt cost one prefill, and a next turn only reads what is new."""
    engine = TorchEngine(tiny.qwen3())
    prompt = np.random.default_rng(0).integers(0, tiny.VOCAB, 64 * 3 + 10).tolist()
    replies = await asyncio.gather(*(engine.generate(prompt, SamplingParams(max_tokens=70, seed=s)) for s in range(8)))
    assert engine.stats()["prefilled_tokens"] == 64 * 3 + 8 * 10
    assert engine.stats()["reused_tokens"] == 7 * 64 * 3
    await engine.generate(prompt + replies[0].token_ids.tolist() + [1, 2, 3], SamplingParams(max_tokens=1))
    assert engine.stats()["prefilled_tokens"] == 64 * 3 + 8 * 10 + (10 + 70 + 3)
    await engine.close()


async def test_shared_prefixes_stay_within_their_memory():
    engine = TorchEngine(tiny.qwen3(), prefix_cache_mb=1)
    rng = np.random.default_rng(0)
    for _ in range(4):
        await asyncio.gather(*(engine.generate(rng.integers(0, tiny.VOCAB, 200).tolist(), SamplingParams(max_tokens=1))
                               for _ in range(8)))
    cache = engine._stepper._prefixes
    held = sum(block.numel() * block.element_size() for block in cache._blocks.values())
    assert 0 < held <= 1 << 20
    await engine.close()


async def test_the_same_seed_repeats_and_another_does_not():
    engine = TorchEngine(tiny.qwen3())

    async def tokens(seed):
        return (await engine.generate([1, 2, 3], SamplingParams(max_tokens=40, seed=seed))).token_ids.tolist()
    runs = await asyncio.gather(*(tokens(s) for s in (0, 0, 1, -1, 2 ** 63 - 1)))
    assert runs[0] == runs[1]
    assert len({tuple(r) for r in runs}) == 4
    await engine.close()
