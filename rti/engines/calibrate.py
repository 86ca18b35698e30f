"""What the torch engine finds out about a model and a machine before it serves: which forward is right, which tile is safe.

Keeps batch invariance honest: it is measured on the machine at hand, on the model at hand, and where no tile gives it the
engine says so. May import torch and transformers.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import torch
from transformers import PreTrainedModel

from rti.engines.attention import AttentionMasks, Plan, UnsupportedModel
from rti.engines.base import SamplingParams
from rti.engines.forward import Forward, GenericForward, LlamaForward
from rti.engines.kv_cache import BLOCK, CacheShape, DecodeCache
from rti.engines.sequence import GenerateSequence

_log = logging.getLogger(__name__)
TILES = (8, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of rows tried, smallest first; every forward pass is padded to a multiple of the one found."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def cache_shape(model: PreTrainedModel) -> CacheShape:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return CacheShape(config.num_hidden_layers, kv_heads, head_dim, model.dtype, model.device)


def choose_forward(model: PreTrainedModel, max_context: int, masks: AttentionMasks) -> Forward:
    """The fastest forward that agrees with the model's own on a short text. Raises UnsupportedModel where none does."""
    n = min(BLOCK + 6, max_context)
    ids = np.random.default_rng(0).integers(0, model.config.get_text_config().vocab_size, n).astype(np.int32)
    model.set_attn_implementation("eager")
    expected = model(torch.from_numpy(ids).long()[None].to(model.device), use_cache=False).logits[0, -2:].float()
    faults = []
    for kind in (LlamaForward, GenericForward):
        if kind is LlamaForward and not LlamaForward.serves(model, max_context):
            continue
        try:
            forward = kind(model, max_context) if kind is LlamaForward else kind(model)
            error = (_last_two(forward, model, masks, ids) - expected).abs().max() / expected.abs().max().clamp(min=1)
        except (UnsupportedModel, TypeError, RuntimeError) as fault:
            faults.append(f"{kind.__name__}: {fault}")
            continue
        if error < _TOLERANCE.get(model.dtype, 1e-3):
            return forward
        faults.append(f"{kind.__name__}: logits differ from the model's own by {error:.2g} of their size")
        _log.warning("%s: %s", type(model).__name__, faults[-1])
    raise UnsupportedModel(f"the torch engine cannot serve {type(model).__name__}. " + "; ".join(faults))


def _last_two(forward: Forward, model: PreTrainedModel, masks: AttentionMasks, ids: np.ndarray) -> torch.Tensor:
    """Logits of the last two tokens: prefilled in blocks up to the last but one, the last one decoded."""
    shape, heads, n = cache_shape(model), model.config.get_text_config().num_attention_heads, len(ids) - 1
    sequence = GenerateSequence(ids, SamplingParams(max_tokens=1), 1, frozenset())
    sequence.staging = shape.staging(n)
    plan = Plan(shape, heads, masks)
    for first in range(0, n, BLOCK):
        plan.add_block(sequence, first, min(first + BLOCK, n))
    prefilled = run(forward, plan, TILES[0], [n - 1])
    DecodeCache(shape).insert(sequence, sequence.staging)
    plan = Plan(shape, heads, masks)
    plan.add_pool(sequence.pool)
    return torch.cat([prefilled, run(forward, plan, TILES[0], [0])]).float()


def run(forward: Forward, plan: Plan, tile: int, rows: list[int]) -> torch.Tensor:
    """Logits [len(rows), V], with all numbers of rows padded to the tile."""
    device = plan.shape.device
    n_rows, n_out = -(-plan.n_rows // tile) * tile, -(-len(rows) // tile) * tile
    token_ids, positions, out = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64), np.zeros(n_out, np.int64)
    token_ids[:plan.n_rows], positions[:plan.n_rows] = np.concatenate(plan.token_ids), np.concatenate(plan.positions)
    out[:len(rows)] = rows
    to_device = [torch.from_numpy(a).to(device) for a in (token_ids, positions, out)]
    return forward.logits(to_device[0], to_device[1], plan, to_device[2])[:len(rows)]


class _NoAttention:
    """A plan whose attention is a function of the row alone, so that all that is left to vary is the number of rows."""

    masks = SimpleNamespace(max_length=0)

    @staticmethod
    def attend(layer: int, query: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        return query + kv[:, 1].repeat_interleave(query.shape[1] // kv.shape[2], 1)


def find_tile(forward: Forward, model: PreTrainedModel, max_rows: int, max_context: int) -> int | None:
    """The smallest tile for which no row's logits depend, in any bit, on how many other rows there are or where it stands.

    None where there is no such tile.
    """
    rng = np.random.default_rng(0)
    for tile in TILES:
        n = -(-max_rows // tile) * tile
        ids = torch.from_numpy(rng.integers(0, model.config.get_text_config().vocab_size, n)).to(model.device)
        positions = torch.from_numpy(rng.integers(0, max_context, n)).to(model.device)
        everything = forward.logits(ids, positions, _NoAttention, torch.arange(n, device=model.device))
        if all(_same(forward, ids, positions, everything, tile * k, tile, rng)
               for k in (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 23, 32) if tile * k <= n):
            return tile
    return None


def _same(forward: Forward, ids: torch.Tensor, positions: torch.Tensor, everything: torch.Tensor, n_rows: int, tile: int,
          rng: np.random.Generator) -> bool:
    chosen = torch.from_numpy(rng.permutation(len(ids))[:n_rows]).to(ids.device)
    n_out = tile * int(rng.integers(1, n_rows // tile + 1))
    out = torch.from_numpy(rng.permutation(n_rows)[:n_out]).to(ids.device)
    return torch.equal(forward.logits(ids[chosen], positions[chosen], _NoAttention, out), everything[chosen[out]])
