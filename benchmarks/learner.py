"""A packed optimiser step against a padded one on the same samples: `python benchmarks/learner.py [--trajectories 64] ...`

Prints one JSON object. Both sides have the same model, weights, loss, token budget of a micro-batch and optimiser, and compute
logits for trained positions only, so that the ratio is that of packing alone. The padded side pads each micro-batch to its
longest sample, samples in the order given; `padded_sorted_tok_s` sorts them by length first, the best that padding can do.
Tokens counted are those of the samples. `ratio_cpu` and `ratio_sorted_cpu` compare CPU seconds of this process instead of the
clock: on a machine with other work they are the ones to read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rti.config.schema import Config
from rti.learner.batch import TrainSample, prepare
from rti.learner.learner import Learner
from rti.learner.optimiser import clip_gradient, gradient_norm, make_optimiser
from rti.learner.packing import collate, plan
from rti.learner.policy import TokenLogps
from rti.trajectory import Ending, Group, Sample, Source, Trajectory

VOCAB = 1024


def write_model(path: Path) -> None:
    """Of the lab policy's size and shape, random."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, head_dim=32,
        vocab_size=VOCAB, tie_word_embeddings=True, max_position_embeddings=2048)).save_pretrained(path)


def make_groups(trajectories: int, mean_tokens: int, max_tokens: int, group_size: int = 8) -> list[Group]:
    """Episodes of prompt, turns and observations whose lengths spread as episodes of few or many turns do."""
    rng = np.random.default_rng(0)
    groups = []
    for g in range(trajectories // group_size):
        members = []
        for i in range(group_size):
            n = int(np.clip(rng.lognormal(np.log(mean_tokens), 0.5), 40, max_tokens))
            spoken = (np.arange(n) >= 30) & (np.arange(n) // 25 % 2 == 1)
            sources = np.where(spoken, Source.POLICY, Source.CONTEXT).astype(np.uint8)
            agent = sources != Source.CONTEXT
            sample = Sample(
                token_ids=rng.integers(0, VOCAB, n).astype(np.int32), sources=sources,
                behaviour_logps=np.where(agent, -np.log(VOCAB), 0).astype(np.float32),
                correction_logps=np.full(n, np.nan, np.float32), weights=agent.astype(np.float32),
                versions=np.where(agent, 0, -1).astype(np.int32), turns=np.where(agent, 0, -1).astype(np.int16))
            members.append(Trajectory(id=f"{g}/{i}", group_id=str(g), task_id=str(g), ending=Ending.COMPLETED, samples=[sample],
                                      reward=float(i % 2), success=bool(i % 2), temperature=0.8))
        groups.append(Group(id=str(g), task_id=str(g), members=members))
    return groups


class PaddedStep:
    """The plain way: [B, longest] with an attention mask."""

    def __init__(self, config: Config, learner: Learner, budget: int, by_length: bool) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            config.model.path, dtype=torch.float32, attn_implementation="sdpa").to(learner.device).eval()
        self.optimiser, self.learner, self.config = make_optimiser(self.model, config.learner), learner, config
        self.budget, self.by_length = budget, by_length
        self.padding_share = 0.0

    def micro_batches(self, samples: Sequence[TrainSample]) -> list[list[TrainSample]]:
        if self.by_length:
            samples = sorted(samples, key=lambda s: -len(s.inputs))
        batches, longest = [[]], 0
        for sample in samples:
            longest = max(longest, len(sample.inputs))
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.budget:
                batches.append([])
                longest = len(sample.inputs)
            batches[-1].append(sample)
        return batches

    def __call__(self, groups: Sequence[Group]) -> None:
        samples = prepare(groups, self.learner.algorithm).samples
        slots = real = 0
        for batch in self.micro_batches(samples):
            width = max(len(s.inputs) for s in batch)
            ids, mask = np.zeros((len(batch), width), np.int64), np.zeros((len(batch), width), np.int64)
            for i, s in enumerate(batch):
                ids[i, :len(s.inputs)], mask[i, :len(s.inputs)] = s.inputs, 1
            slots, real = slots + mask.size, real + int(mask.sum())
            inputs, tokens = self.learner._to_device(collate(batch))
            select = torch.from_numpy(np.concatenate([s.select + i * width for i, s in enumerate(batch)]))
            select = select.to(self.learner.device)
            hidden = self.model.base_model(
                input_ids=torch.from_numpy(ids).to(self.learner.device), use_cache=False,
                attention_mask=torch.from_numpy(mask).to(self.learner.device)).last_hidden_state.flatten(0, 1)
            logps, entropy = TokenLogps.apply(hidden.index_select(0, select), self.model.lm_head.weight, None, *inputs[4:6])
            self.learner.algorithm.loss(tokens, logps, entropy).loss.backward()
        clip_gradient(self.model, gradient_norm(self.model), self.config.learner.max_grad_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.padding_share = 1 - real / slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="median length of an episode")
    parser.add_argument("--pack-tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        config = Config()
        config.model.path, config.learner.device = directory, args.device
        config.learner.pack_tokens, config.learner.threads = args.pack_tokens, args.threads
        learner = Learner(config)
        learner.setup()
        print(json.dumps(measure(config, learner, make_groups(args.trajectories, args.tokens, 1024), args.repeats)))
        learner.close()


def measure(config: Config, learner: Learner, groups: list[Group], repeats: int) -> dict[str, float]:
    budget = config.learner.pack_tokens
    padded, ordered = PaddedStep(config, learner, budget, False), PaddedStep(config, learner, budget, True)
    ways = {"packed": lambda: learner.step(groups, 0), "padded": lambda: padded(groups),
            "padded_sorted": lambda: ordered(groups)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():      # taken in turns, so that another load on the machine hits all alike
            began, busy_before = time.perf_counter(), time.process_time()
            metrics = way() or {}
            if learner.device.type == "cuda":
                torch.cuda.synchronize()
            if repeat:
                seconds[name].append(time.perf_counter() - began)
                busy[name].append(time.process_time() - busy_before)
            if name == "packed":
                padding_share, micro_batches = metrics["learner/padding_share"], metrics["learner/micro_batches"]
    lengths = [len(s.inputs) for s in prepare(groups, learner.algorithm).samples]
    rate = {name: sum(lengths) / statistics.median(times) for name, times in seconds.items()}
    cpu = {name: statistics.median(times) for name, times in busy.items()}
    loads = [sum(lengths[i] for i in row) for row in plan(lengths, budget, 1)[0]]
    return {
        "packed_tok_s": round(rate["packed"]), "padded_tok_s": round(rate["padded"]),
        "ratio": round(rate["packed"] / rate["padded"], 3), "padded_sorted_tok_s": round(rate["padded_sorted"]),
        "ratio_sorted": round(rate["packed"] / rate["padded_sorted"], 3),
        "ratio_cpu": round(cpu["padded"] / cpu["packed"], 3),
        "ratio_sorted_cpu": round(cpu["padded_sorted"] / cpu["packed"], 3), "padding_share": padding_share,
        "padded_padding_share": round(padded.padding_share, 3), "padded_sorted_padding_share": round(ordered.padding_share, 3),
        "micro_batches": micro_batches, "fill": round(sum(loads) / (len(loads) * budget), 3), "tokens": sum(lengths),
        "samples": len(lengths), "packed_step_s": round(statistics.median(seconds["packed"]), 3),
        "packed_step_cpu_s": round(cpu["packed"], 3),
        "parameters": sum(p.numel() for p in learner.model.parameters()), "device": str(learner.device),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    main()
