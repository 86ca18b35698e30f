"""Tokens per second of whole episodes against the bare engine, and of the engine against transformers' own generate.

    python benchmarks/rollout.py [--engine torch|vllm] [--model lab|random|DIRECTORY] [--episodes 192] [--concurrency 64]
                                 [--threads 0] [--no-decode]

Prints one JSON object. `pipeline_tok_s` counts the sampled tokens of episodes in the offline navigation world, environment and
chat format included; `engine_tok_s` gives the very same prompts to a fresh engine for replies of the same lengths, turn after
turn of as many episodes at once, with nothing in between; `ratio` is the first over the second. `decode` compares with
transformers.generate (SDPA) for 1, 16 and 64 sequences of 32 + 64 tokens: same weights, same threads, the best of three rounds
that alternate. `--model random` is an untrained policy of the lab's size, which plays no episodes: decode only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rti.chat import load_chat_format
from rti.config.schema import EnvConfig, RolloutConfig
from rti.engines.base import Engine, Generation, SamplingParams
from rti.envs import load_task_set
from rti.modeling import load_model, model_path
from rti.rollout import PlainPolicy, run_episode

PROMPT, NEW = 32, 64


def load(path: str) -> PreTrainedModel:
    if path != "random":
        return load_model(path, torch.float32, "cpu")
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        vocab_size=1200, tie_word_embeddings=True, max_position_embeddings=1024)).eval()


def start(kind: str, path: str, threads: int, concurrency: int) -> Engine:
    """A fresh engine over the model, in float32 on the CPU."""
    if kind == "torch":
        from rti.engines.torch_engine import TorchEngine
        return TorchEngine(load(path), threads=threads, max_concurrency=concurrency)
    from rti.engines.vllm_engine import VLLMEngine
    if path != "random":
        return VLLMEngine(model_path(path), dtype="float32", threads=threads, max_concurrency=concurrency)
    with tempfile.TemporaryDirectory() as directory:
        load(path).save_pretrained(directory)
        return VLLMEngine(directory, dtype="float32", threads=threads, max_concurrency=concurrency)


# --- decode ------------------------------------------------------------------------------------------------------
async def decode_tok_s(kind: str, path: str, threads: int, rounds: int = 3) -> dict[str, dict[str, float]]:
    engine, model = start(kind, path, threads, 64), load(path)
    model.set_attn_implementation("sdpa")
    vocab = model.config.get_text_config().vocab_size
    rng = np.random.default_rng(0)
    out: dict[str, dict[str, float]] = {}
    for n in (1, 16, 64):
        best = dict.fromkeys(("engine", "transformers"), 0.0)
        for _ in range(rounds):
            prompts = rng.integers(0, vocab, (n, PROMPT))       # new ones: nothing comes out of a prefix cache
            best["engine"] = max(best["engine"], n * NEW / await _timed(_decode(engine, prompts)))
            best["transformers"] = max(best["transformers"], n * NEW / await _timed(_generate(model, prompts)))
        out[str(n)] = {k: round(v, 1) for k, v in best.items()}
    await engine.close()
    return out


async def _decode(engine: Engine, prompts: np.ndarray) -> None:
    await asyncio.gather(*(engine.generate(p, SamplingParams(max_tokens=NEW, temperature=0.8, seed=i))
                           for i, p in enumerate(prompts)))


async def _generate(model: PreTrainedModel, prompts: np.ndarray) -> None:
    ids = torch.from_numpy(prompts)
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True,
                       temperature=0.8, top_k=0, pad_token_id=0)


async def _timed(work: Any) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


# --- episodes ----------------------------------------------------------------------------------------------------
class Recorder:
    """An engine's front that remembers one episode's requests and replies."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.turns = engine, []
        self.max_context = engine.max_context

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        reply = await self._engine.generate(prompt_ids, params)
        self.turns.append((list(prompt_ids), params, reply))
        return reply


async def episodes_tok_s(kind: str, path: str, threads: int, episodes: int, concurrency: int, seed: int) -> dict[str, float]:
    tasks, chat, limits = load_task_set(EnvConfig()), load_chat_format("auto", path), RolloutConfig()
    engine = start(kind, path, threads, concurrency)
    await engine.generate(np.arange(8), SamplingParams(max_tokens=2))       # what is slow only once
    sampling = SamplingParams(max_tokens=limits.max_tokens, temperature=limits.temperature)
    recorders = [Recorder(engine) for _ in range(episodes)]

    async def play(i: int) -> None:
        task = tasks.train[i // limits.group_size % len(tasks.train)]
        policy = PlainPolicy(recorders[i], chat, sampling)
        await run_episode(task, tasks.make(), policy, chat, id=str(i), group_id="", seed=seed + i, limits=limits,
                          temperature=limits.temperature)
    pipeline_s = await _timed(_at_once(concurrency, [play(i) for i in range(episodes)]))
    await engine.close()
    await tasks.close()

    engine = start(kind, path, threads, concurrency)
    await engine.generate(np.arange(8), SamplingParams(max_tokens=2))

    async def replay(i: int) -> None:
        for prompt, params, reply in recorders[i].turns:
            n = len(reply.token_ids)    # a reply may depend on what else is in the batch: its length is what must be the same
            again = await engine.generate(prompt, msgspec.structs.replace(params, max_tokens=n, stop_token_ids=()))
            assert len(again.token_ids) == n
    engine_s = await _timed(_at_once(concurrency, [replay(i) for i in range(episodes)]))
    await engine.close()
    tokens = sum(len(reply.token_ids) for r in recorders for *_, reply in r.turns)
    return {"engine_tok_s": round(tokens / engine_s, 1), "pipeline_tok_s": round(tokens / pipeline_s, 1),
            "ratio": round(engine_s / pipeline_s, 3), "tokens": tokens, "turns": sum(len(r.turns) for r in recorders)}


async def _at_once(concurrency: int, work: list[Any]) -> None:
    places = asyncio.Semaphore(concurrency)

    async def one(job: Any) -> None:
        async with places:
            await job
    await asyncio.gather(*(one(job) for job in work))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--model", default="lab")
    parser.add_argument("--episodes", type=int, default=192)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-decode", action="store_true")
    args = parser.parse_args()
    threads = args.threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    out: dict[str, Any] = {"engine": args.engine, "threads": threads, "concurrency": args.concurrency,
                           "episodes": args.episodes}
    if args.model != "random":
        out |= await episodes_tok_s(args.engine, args.model, threads, args.episodes, args.concurrency, args.seed)
    if not args.no_decode:
        out["decode"] = await decode_tok_s(args.engine, args.model, threads)
    print(json.dumps(out))


if __name__ == "__main__":
    asyncio.run(main())
