"""The vLLM engine against plain full forward passes of the same model: probabilities, limits, faults."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from rti.config.schema import GeneratorsConfig, ModelConfig
from rti.engines import load_engine
from rti.engines.base import EngineError, PromptTooLong, SamplingParams
from rti.engines.vllm_engine import VLLMEngine, VLLMMissing
from tests.engines import tiny
from tests.engines.mismatch import mean_log_ratio
from tests.engines.test_torch_engine import make_prompt, next_token_probabilities, reference_logps

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


async def test_sampled_and_scored_log_probabilities_are_those_of_the_temperature(vllm):
    engine = await vllm()
    assert engine.max_context == 512 and engine.version == 0
    prompts = [make_prompt(n) for n in (1, 7, 31, 32, 33, 200)]
    for temperature in (0.8, 1.0):
        replies = await asyncio.gather(*(
            engine.generate(p, SamplingParams(max_tokens=50, temperature=temperature, seed=i)) for i, p in enumerate(prompts)))
        scores = await asyncio.gather(*(engine.score(p, r.token_ids, temperature) for p, r in zip(prompts, replies)))
        for prompt, reply, score in zip(prompts, replies, scores):
            expected = reference_logps(tiny.qwen3(), prompt, reply.token_ids, temperature)
            assert len(expected) == 50 and reply.finish_reason == "length"
            np.testing.assert_allclose(reply.logps, expected, atol=1e-4)
            np.testing.assert_allclose(score.logps, expected, atol=1e-4)
            assert reply.token_ids.dtype == np.int32 and reply.logps.dtype == np.float32
            assert reply.versions.tolist() == [0] * 50 and score.version == 0


async def test_on_fresh_weights_the_learner_agrees_at_temperature_08(vllm):
    assert await mean_log_ratio(await vllm(), tiny.qwen3(), 0.8) < 1e-3


async def test_greedy_equals_transformers_generate_and_scores_of_temperature_0_are_of_1(vllm):
    engine, prompt = await vllm(), make_prompt(20)
    expected = tiny.qwen3().generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, eos_token_id=None,
                                     pad_token_id=0)
    reply = await engine.generate(prompt, SamplingParams(max_tokens=60, temperature=0))
    assert reply.token_ids.tolist() == expected[0, 20:].tolist()
    logps = reference_logps(tiny.qwen3(), prompt, reply.token_ids)
    np.testing.assert_allclose(reply.logps, logps, atol=1e-4)
    np.testing.assert_allclose((await engine.score(prompt, reply.token_ids, 0)).logps, logps, atol=1e-4)


async def test_sampled_frequencies_are_those_of_the_distribution(vllm):
    engine, prompt, n = await vllm(), make_prompt(5), 2000
    replies = await asyncio.gather(*(
        engine.generate(prompt, SamplingParams(max_tokens=1, temperature=2.0, seed=s)) for s in range(n)))
    counts = np.bincount([int(r.token_ids[0]) for r in replies], minlength=tiny.VOCAB)
    expected = n * next_token_probabilities(tiny.qwen3(), prompt, 2.0)    # the highest that vLLM takes
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (tiny.VOCAB - 1)) < 5 * math.sqrt(2 * tiny.VOCAB)    # five standard deviations


async def test_top_p_keeps_the_smallest_set_and_renormalises(vllm):
    engine, prompt = await vllm(), make_prompt(9)
    p = next_token_probabilities(tiny.qwen3(), prompt, 1.0)
    order = np.argsort(-p)
    kept = order[:int(np.searchsorted(np.cumsum(p[order]), 0.6)) + 1].tolist()
    replies = await asyncio.gather(*(
        engine.generate(prompt, SamplingParams(max_tokens=1, top_p=0.6, seed=s)) for s in range(100)))
    for reply in replies:
        token = int(reply.token_ids[0])
        assert token in kept
        assert reply.logps[0] == pytest.approx(math.log(p[token] / p[kept].sum()), abs=1e-4)


async def test_a_seed_fixes_the_reply_and_a_stop_token_ends_and_closes_it(vllm):
    engine, prompt = await vllm(), make_prompt(12)
    one, same, other = [await engine.generate(prompt, SamplingParams(max_tokens=40, seed=s)) for s in (5, 5, 6)]
    assert one.token_ids.tolist() == same.token_ids.tolist() != other.token_ids.tolist()
    stop = int(one.token_ids[25])
    first = one.token_ids.tolist().index(stop)
    reply = await engine.generate(prompt, SamplingParams(max_tokens=40, seed=5, stop_token_ids=(stop,)))
    assert reply.token_ids.tolist() == one.token_ids[:first + 1].tolist() and reply.finish_reason == "stop"
    assert len(reply.logps) == len(reply.versions) == first + 1


async def test_a_reply_ends_with_the_context_and_what_does_not_fit_is_refused(vllm):
    engine = await vllm()
    reply = await engine.generate(make_prompt(505), SamplingParams(max_tokens=50))
    assert len(reply.token_ids) == 7 and reply.finish_reason == "length"
    assert len((await engine.score(make_prompt(500), make_prompt(12), 0.8)).logps) == 12
    with pytest.raises(PromptTooLong, match="512 tokens leaves no room .* 512"):
        await engine.generate(make_prompt(512), SamplingParams(max_tokens=1))
    with pytest.raises(PromptTooLong, match=r"510 \+ 3 tokens .* 512"):
        await engine.score(make_prompt(510), [1, 2, 3])
    assert len((await engine.generate([1], SamplingParams(max_tokens=0))).token_ids) == 0
    assert len((await engine.score([1], [])).logps) == 0


@pytest.mark.parametrize("ids, message", [([], "non-empty"), ([97], "0 .. 96, got 97"), ([-1], "got -1"), ([0.5], "integers")])
async def test_token_ids_that_are_none_are_refused(vllm, ids, message):
    engine = await vllm()
    with pytest.raises(ValueError, match=message):
        await engine.generate(ids, SamplingParams(max_tokens=1))


async def test_a_temperature_that_vllm_would_replace_by_another_is_refused(vllm):
    engine = await vllm()
    with pytest.raises(ValueError, match="no temperature between 0 and 0.01"):
        await engine.generate([1], SamplingParams(max_tokens=1, temperature=0.005))
    with pytest.raises(ValueError, match="temperature must be at least 0"):
        await engine.score([1], [1], -1.0)


async def test_a_cancelled_request_is_aborted_and_frees_its_place(vllm):
    engine = await vllm()
    endless = [asyncio.ensure_future(engine.generate([i], SamplingParams(max_tokens=500))) for i in range(20)]      # 16 places
    await asyncio.sleep(0.2)
    for task in endless:
        task.cancel()
    reply = await engine.generate([3], SamplingParams(max_tokens=2))
    assert len(reply.token_ids) == 2 and all(t.cancelled() for t in endless)
    assert not engine._llm.output_processor.has_unfinished_requests()


async def test_many_at_once_are_counted(vllm):
    engine = await vllm()
    before = engine.stats()
    await asyncio.gather(*(engine.generate(make_prompt(n), SamplingParams(max_tokens=8, seed=n)) for n in range(1, 41)))
    await engine.score([1], [2, 3])
    after = engine.stats()
    assert after["generated_tokens"] - before["generated_tokens"] == 320
    assert after["scored_tokens"] - before["scored_tokens"] == 2
    assert after["busy_s"] > before["busy_s"]


async def test_an_engine_is_loaded_from_the_configuration(tmp_path):
    tiny.qwen3().save_pretrained(tmp_path)
    model = ModelConfig(path=str(tmp_path))
    with pytest.raises(VLLMMissing, match="asks for cuda, and the vLLM installed here works on cpu"):
        VLLMEngine(str(tmp_path), device="cuda")
    engine = await asyncio.to_thread(load_engine, model, GeneratorsConfig(engine="vllm", threads=1, cache_mb=64), version=7)
    reply = await engine.generate([1, 2], SamplingParams(max_tokens=3))
    assert reply.versions.tolist() == [7, 7, 7] and engine.max_context == 512
    await engine.close()


OWNER = """
import sys
from rti.engines.vllm_engine import VLLMEngine

if __name__ == "__main__":
    engine = VLLMEngine(sys.argv[1], dtype="float32", cache_mb=64, tensor_parallel=int(sys.argv[2]))
    print(engine._llm.engine_core.resources.engine_manager.processes[0].pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("workers", [1, 2])
async def test_vllms_processes_end_with_a_killed_owner(tmp_path, workers):
    """They would keep the memory that the generator in its place needs."""
    tiny.qwen3(0, tied=False, vocab=128).save_pretrained(tmp_path)
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    root = str(Path(__file__).resolve().parents[2])
    owner = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(tmp_path), str(workers), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": root})
    core = psutil.Process(int(await owner.stdout.readline()))
    processes = [core, *core.children(recursive=True)]
    assert len(processes) >= workers
    owner.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 30)
    assert not alive


async def test_a_killed_engine_process_fails_what_is_in_flight_and_later_calls(vllm):
    """The last one in this file: it takes the engine of the others."""
    engine = await vllm()
    core, = engine._llm.engine_core.resources.engine_manager.processes
    flying = asyncio.ensure_future(engine.generate([1], SamplingParams(max_tokens=500)))
    await asyncio.sleep(0.2)
    os.kill(core.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="vLLM failed"):
        await flying
    with pytest.raises(EngineError, match="failed earlier"):
        await engine.generate([1], SamplingParams(max_tokens=1))
    with pytest.raises(EngineError, match="failed earlier"):
        await engine.load_weights(dict(tiny.qwen3().state_dict()), 1)
