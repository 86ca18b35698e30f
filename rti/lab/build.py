"""Makes the lab policy from nothing: tokenizer, transcripts, pretraining. `python -m rti.lab.build --out DIR`.

Seeded: the same command on the same machine gives the same policy. What it is trained on is in transcripts.py, and why in
docs/lab.md. Prints how often a teacher-forced answer of each kind is exact, which is what the training must reach.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti.chat.lab import END, PAD, LabChatFormat
from rti.commands import guarded
from rti.envs.navigation.gazetteer import Gazetteer
from rti.lab import tokenizer as lab_tokenizer
from rti.lab.transcripts import ALL_FOUND, LOOK_AGAIN, Desk, Transcript, Use
from rti.lab.world import training_desk

VOCABULARY = 1024
HELD = 600              # transcripts that are not trained on
CHUNK = 40              # steps' worth of transcripts that are written at once
PASSES = 2              # over every transcript: writing one costs a third of learning from it
CONTEXT_WEIGHT = 0.2    # of a token that is not learnt: names and coordinates come again in the context, which teaches copying


def model_config(vocab_size: int, pad_id: int, end_id: int, hidden: int, layers: int) -> Qwen3Config:
    """Qwen3 in small. Heads are 32 wide because vLLM's CPU attention takes no fewer."""
    return Qwen3Config(
        vocab_size=vocab_size, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32, head_dim=32, max_position_embeddings=2048,
        rope_theta=10_000.0, tie_word_embeddings=True, attention_dropout=0.0, pad_token_id=pad_id, eos_token_id=end_id,
        bos_token_id=None, use_cache=True,
    )


def corpus(gazetteer: Gazetteer) -> Iterator[str]:
    """Plain text for the tokenizer's merges: training names as they stand in queries, calls and results."""
    for place in gazetteer.places:
        if Gazetteer.part(place.name) == "train":
            yield f" {place.name}, {place.province} "
            yield f"{place.name}"
    words = ("Drive from via to. Visit, and in any order. Start at, then, end at, stop at. Validate. Correct. Verify. Draft: "
             "Corrected: Find the places. Look again. All found. Fine. Wrong place: Search again: no match error km, min ok ")
    yield from [words] * 200


def batches(transcripts: Sequence[Transcript], size: int, rng: random.Random) -> Iterator[list[Transcript]]:
    """Batches of like lengths in random order: little padding."""
    order = sorted(range(len(transcripts)), key=lambda i: (len(transcripts[i].ids), rng.random()))
    chunks = [order[i:i + size] for i in range(0, len(order), size)]
    rng.shuffle(chunks)
    for chunk in chunks:
        yield [transcripts[i] for i in chunk]


def collate(batch: Sequence[Transcript], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and uses [B, T], padded on the right with hidden tokens."""
    length = max(len(t.ids) for t in batch)
    ids = np.full((len(batch), length), pad_id, dtype=np.int64)
    uses = np.full((len(batch), length), Use.HIDDEN, dtype=np.int64)
    for row, t in enumerate(batch):
        ids[row, :len(t.ids)] = t.ids
        uses[row, :len(t.ids)] = t.uses
    return torch.from_numpy(ids), torch.from_numpy(uses)


def loss_of(model: torch.nn.Module, ids: torch.Tensor, uses: torch.Tensor, worth: torch.Tensor) -> torch.Tensor:
    """Weighted cross-entropy; `worth` [B] is what a transcript's learnt tokens count."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    uses = uses[:, 1:]
    weights = torch.where(uses == Use.LEARNT, worth[:, None], CONTEXT_WEIGHT * (uses == Use.CONTEXT))
    losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / (uses == Use.LEARNT).sum()


@torch.no_grad()
def exactness(model: torch.nn.Module, transcripts: Sequence[Transcript], pad_id: int) -> dict[str, float]:
    """Share of transcripts of each kind whose every learnt token is the model's first choice."""
    hits: dict[str, list[bool]] = defaultdict(list)
    model.eval()
    for batch in batches(transcripts, 32, random.Random(0)):
        ids, uses = collate(batch, pad_id)
        best = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
        right = ((best == ids[:, 1:]) | (uses[:, 1:] != Use.LEARNT)).all(-1)
        for t, ok in zip(batch, right.tolist()):
            hits[t.kind].append(ok)
    model.train()
    return {kind: round(sum(h) / len(h), 3) for kind, h in sorted(hits.items())}


@torch.no_grad()
def looks_again(model: torch.nn.Module, transcripts: Sequence[Transcript], chat: LabChatFormat) -> float:
    """Mean probability of deciding on a second look where a straight trip goes on to drive: the failure, as a number."""
    again, found = (chat.encode(text)[0] for text in (LOOK_AGAIN, ALL_FOUND))
    told = []
    for t in (t for t in transcripts if t.kind == "straight"):
        decides = max(i for i, token in enumerate(t.ids) if token == found)
        logits = model(input_ids=torch.tensor([t.ids[:decides]]), use_cache=False).logits[0, -1]
        told.append(logits.softmax(-1)[again].item())
    return sum(told) / len(told)


ROLES = ("validate", "correct", "verify")
ROLE_WEIGHT = 3.0       # of a role's learnt token: a role's answer has few tokens, and one of them decides


def optimisers(model: torch.nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms. Muon takes twice the rate and learns to copy sooner."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon([{"params": matrices, "peak": 2 * lr}], lr=2 * lr, momentum=0.95, weight_decay=0.05,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([{"params": others, "peak": lr}], lr=lr, betas=(0.9, 0.98), weight_decay=0.05),
    ]


def learning_rate(step: int, steps: int, warmup: int = 100) -> float:
    """What the peak rate is multiplied by: linear warm-up, then a cosine down to a fiftieth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Pretraining:
    """The loop: fresh transcripts by the chunk, AdamW, a progress line with exactness now and then."""

    def __init__(self, model: Qwen3ForCausalLM, desk: Desk, chat: LabChatFormat, args: argparse.Namespace):
        self.model, self.desk, self.chat, self.args = model, desk, chat, args
        self.pad_id = model.config.pad_token_id
        self.rng = random.Random(args.seed)
        self.optimisers = optimisers(model, args.lr)
        self.held = asyncio.run(self._write(HELD))
        self.tokens, self.done, self.seconds = 0, 0, 0.0

    async def _write(self, n: int) -> list[Transcript]:
        return [await self.desk.write() for _ in range(n)]

    def run(self) -> None:
        """Chunk after chunk of fresh transcripts, each gone over PASSES times; the state is kept after each."""
        self.take_up()
        while self.done < self.args.steps:
            began = time.monotonic()
            written = asyncio.run(self._write(CHUNK * self.args.batch))
            for batch in (b for _ in range(PASSES) for b in batches(written, self.args.batch, self.rng)):
                loss = self.step(batch, self.done)
                self.done += 1
                if self.done % self.args.report == 0 or self.done == self.args.steps:
                    self.report(self.done, loss, self.seconds + time.monotonic() - began)
                if self.done == self.args.steps:
                    return
            self.seconds += time.monotonic() - began
            self.keep()

    def keep(self) -> None:
        """Write down all that the next chunk depends on, whole or not at all."""
        if self.args.state is None:
            return
        state = {"settings": self._settings(), "model": self.model.state_dict(),
                 "optimisers": [o.state_dict() for o in self.optimisers],
                 "streams": [self.rng.getstate(), self.desk.rng.getstate()], "done": self.done, "tokens": self.tokens,
                 "seconds": self.seconds}
        work = self.args.state.with_suffix(".writing")
        torch.save(state, work)
        os.replace(work, self.args.state)

    def take_up(self) -> None:
        """Go on from a kept state: what comes out is, to the bit, what an uninterrupted build gives."""
        if self.args.state is None or not self.args.state.exists():
            return
        state = torch.load(self.args.state, weights_only=False)
        if state["settings"] != self._settings():
            raise SystemExit(f"{self.args.state} is of a build with other settings: {state['settings']}; here they are "
                             f"{self._settings()}. Give the same, or another --state")
        self.model.load_state_dict(state["model"])
        for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)
        for stream, kept in zip((self.rng, self.desk.rng), state["streams"], strict=True):
            stream.setstate(kept)
        self.done, self.tokens, self.seconds = state["done"], state["tokens"], state["seconds"]
        print(f"going on from step {self.done}", flush=True)

    def _settings(self) -> dict[str, Any]:
        """Those that the weights depend on."""
        return {k: v for k, v in vars(self.args).items() if k not in ("out", "state", "report")}

    def step(self, batch: list[Transcript], step: int) -> float:
        ids, uses = collate(batch, self.pad_id)
        worth = torch.tensor([ROLE_WEIGHT if t.kind in ROLES else 1.0 for t in batch])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not self.args.float32):
            loss = loss_of(self.model, ids, uses, worth)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * learning_rate(step, self.args.steps)
            optimiser.step()
        self.tokens += sum(len(t.ids) for t in batch)
        return loss.item()

    def report(self, step: int, loss: float, seconds: float) -> None:
        exact = exactness(self.model, self.held, self.pad_id)
        again = looks_again(self.model, self.held, self.chat)
        print(json.dumps({"step": step, "loss": round(loss, 4), "tokens": self.tokens, "tok_s": round(self.tokens / seconds),
                          "exact": exact, "looks_again": float(f"{again:.2g}")}), flush=True)
        self.model.save_pretrained(self.args.out)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rti.lab.build", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write the policy to")
    parser.add_argument("--steps", type=int, default=4400, help="optimiser steps (default 4400)")
    parser.add_argument("--batch", type=int, default=16, help="transcripts a step (default 16)")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak rate of AdamW; Muon's is twice that (default 2e-3)")
    parser.add_argument("--hidden", type=int, default=128, help="width, a multiple of 32 (default 128)")
    parser.add_argument("--layers", type=int, default=5, help="decoder layers (default 5)")
    parser.add_argument("--report", type=int, default=200, help="steps between progress lines (default 200)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--float32", action="store_true", help="no bfloat16 matrix products: for a CPU without them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="file to keep the state in, and to go on from where it exists")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    gazetteer = Gazetteer.load()
    tokens = lab_tokenizer.build(corpus(gazetteer), VOCABULARY)
    lab_tokenizer.save(tokens, args.out)
    chat = LabChatFormat(tokens)
    config = model_config(tokens.get_vocab_size(), tokens.token_to_id(PAD), tokens.token_to_id(END), args.hidden, args.layers)
    model = Qwen3ForCausalLM(config)
    print(f"{model.num_parameters() / 1e6:.2f} M parameters, {config.vocab_size} tokens", flush=True)
    model.generation_config.eos_token_id = tokens.token_to_id(END)
    desk = training_desk(chat, gazetteer, random.Random(args.seed))
    Pretraining(model, desk, chat, args).run()


if __name__ == "__main__":
    sys.exit(guarded(main))
