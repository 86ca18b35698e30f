"""How far an engine's log-probabilities are from the learner's own forward pass over the same tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from rti.engines.base import SamplingParams
from rti.modeling import VARLEN, packed_forward
from tests.engines import tiny


def prompts(n: int = 8) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, tiny.VOCAB, 5 + 17 * i).tolist() for i in range(n)]


async def mean_log_ratio(engine: Any, model: PreTrainedModel, temperature: float) -> float:
    """Mean |log(learner / engine)| over freshly sampled tokens, all sequences packed into one row as in training."""
    asked = prompts()
    replies = await asyncio.gather(*(engine.generate(p, SamplingParams(max_tokens=40, temperature=temperature, seed=i))
                                     for i, p in enumerate(asked)))
    learner = learner_logps(model, asked, [r.token_ids.tolist() for r in replies], temperature)
    return float(np.mean([np.abs(mine - reply.logps).mean() for mine, reply in zip(learner, replies)]))


def learner_logps(model: PreTrainedModel, asked: list[list[int]], given: list[list[int]],
                  temperature: float) -> list[np.ndarray]:
    """log p of each given token by the learner's packed forward pass, logits divided by the temperature."""
    model.set_attn_implementation(VARLEN)
    rows = [p + r for p, r in zip(asked, given)]
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    bounds = np.cumsum([0, *map(len, rows)]).tolist()
    with torch.no_grad():
        logits = packed_forward(model, torch.tensor(sum(rows, [])), positions, bounds)
    out, start = [], 0
    for prompt, row in zip(asked, rows):
        own = torch.log_softmax(logits[start:start + len(row)].float() / temperature, -1)
        ids = torch.tensor(row[len(prompt):])[:, None]
        out.append(own[len(prompt) - 1:-1].gather(1, ids)[:, 0].numpy())
        start += len(row)
    return out
