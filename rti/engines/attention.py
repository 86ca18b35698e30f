"""What one forward pass of the torch engine works on: a flat row per token, and the attention of each over its own cache.

Keeps batch invariance: a row's attention is computed by kernels whose shape depends on the row's own position alone.
 - A decoding row: one batched product per pool. The products of a batch are independent of each other and of their number.
 - A prefilling row: one product per block of one sequence, always padded to a whole block of queries.
Both were checked bitwise on CPUs with one and two threads; fused SDPA kernels were not invariant (they split over threads).
Also registers the attention function through which any Hugging Face model can be driven by a plan. May import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rti.engines.kv_cache import BLOCK, CacheShape, Pool, padded
from rti.engines.sequence import Sequence

PLANNED = "rti_planned"
"""Name of the attention function in transformers' registry. It needs a `plan` among the model's keyword arguments."""


class AttentionMasks:
    """Additive masks, cut from tensors made once."""

    def __init__(self, max_length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.max_length = max_length = padded(max_length)
        causal = torch.full((BLOCK, BLOCK), -torch.inf, device=device, dtype=dtype).triu(1)
        self._band = torch.cat([torch.zeros(BLOCK, max_length, device=device, dtype=dtype), causal], 1)
        self._positions = torch.arange(max_length, device=device)
        self._seen = torch.zeros((), device=device, dtype=dtype)
        self._hidden = torch.full((), -torch.inf, device=device, dtype=dtype)

    def of_block(self, length: int) -> torch.Tensor:
        """[BLOCK, length]: the queries are the last BLOCK of `length` positions."""
        return self._band[:, self.max_length + BLOCK - length:]

    def of_decoding(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """[n, length]: each query sees the positions up to its own."""
        return torch.where(self._positions[:length] <= positions[:, None], self._seen, self._hidden)


@dataclass
class PoolRows:
    """Rows start .. start + n: the next token of each member of a pool."""

    start: int
    pool: Pool
    n: int
    write_rows: torch.Tensor    # [n * 2 * kv_heads], rows of the pool's layer
    mask: torch.Tensor          # [n * kv_heads, queries per kv head, length]


@dataclass
class BlockRows:
    """Rows start .. start + n: positions first .. first + n of one prefilling sequence, all in one block."""

    start: int
    n: int
    first: int
    sequence: Sequence          # its keys and values are in `staging`
    mask: torch.Tensor          # [groups * BLOCK, first + BLOCK]


@dataclass
class Plan:
    """One forward pass: n real rows (the model's input may be padded beyond them)."""

    shape: CacheShape
    query_heads: int
    masks: AttentionMasks
    n_rows: int = 0
    token_ids: list[np.ndarray] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    pools: list[PoolRows] = field(default_factory=list)
    blocks: list[BlockRows] = field(default_factory=list)

    def add_pool(self, pool: Pool) -> None:
        """The next token of every member."""
        members, device = pool.members, self.shape.device
        n, groups = len(members), self.query_heads // self.shape.kv_heads
        positions = np.fromiter((s.n_tokens - 1 for s in members), np.int64, n)
        mask = self.masks.of_decoding(torch.from_numpy(positions).to(device), pool.length)
        mask = mask[:, None, None].expand(n, self.shape.kv_heads, groups, pool.length).reshape(-1, groups, pool.length)
        write_rows = torch.from_numpy(pool.write_rows(positions)).to(device)
        self.pools.append(PoolRows(self.n_rows, pool, n, write_rows, mask))
        self._add(np.fromiter((s.ids[s.n_tokens - 1] for s in members), np.int32, n), positions)

    def add_block(self, sequence: Sequence, first: int, end: int) -> None:
        """Positions first .. end of a staged sequence; `first` is a multiple of BLOCK, and they fit one block."""
        mask = self.masks.of_block(first + BLOCK).repeat(self.query_heads // self.shape.kv_heads, 1)
        self.blocks.append(BlockRows(self.n_rows, end - first, first, sequence, mask))
        self._add(sequence.ids[first:end], np.arange(first, end))

    def _add(self, ids: np.ndarray, positions: np.ndarray) -> None:
        self.token_ids.append(ids)
        self.positions.append(positions)
        self.n_rows += len(ids)

    def attend(self, layer: int, query: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """Store kv [rows, 2, kv_heads, dim] and attend with query [rows, query_heads, dim]; [rows, query_heads, dim]."""
        parts = [self._attend_pool(layer, rows, query, kv, scale) for rows in self.pools]
        parts += [self._attend_block(layer, rows, query, kv, scale) for rows in self.blocks]
        if padding := query.shape[0] - self.n_rows:
            parts.append(query.new_zeros(padding, *query.shape[1:]))
        return torch.cat(parts)

    def _attend_pool(self, layer: int, rows: PoolRows, query: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        stop, (heads, dim) = rows.start + rows.n, (self.shape.kv_heads, self.shape.head_dim)
        cache = rows.pool.kv[layer]
        cache.view(-1, dim).index_copy_(0, rows.write_rows, kv[rows.start:stop].reshape(-1, dim))
        keys, values = cache[:, :rows.n].reshape(2, rows.n * heads, rows.pool.length, dim)
        own = query[rows.start:stop].reshape(rows.n * heads, -1, dim)
        weights = _softmax(torch.baddbmm(rows.mask, own, keys.transpose(1, 2), alpha=scale))
        return torch.bmm(weights, values).view(rows.n, self.query_heads, dim)

    def _attend_block(self, layer: int, rows: BlockRows, query: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        stop, (heads, dim) = rows.start + rows.n, (self.shape.kv_heads, self.shape.head_dim)
        groups, length = self.query_heads // heads, rows.first + BLOCK
        cache = rows.sequence.staging[layer]
        cache[:, :, rows.first:rows.first + rows.n] = kv[rows.start:stop].permute(1, 2, 0, 3)
        keys, values = cache[:, :, :length]
        own = query[rows.start:stop]
        if rows.n < BLOCK:
            own = F.pad(own, (0, 0, 0, 0, 0, BLOCK - rows.n))
        own = own.view(BLOCK, heads, groups, dim).permute(1, 2, 0, 3).reshape(heads, groups * BLOCK, dim)
        weights = _softmax(torch.baddbmm(rows.mask, own, keys.transpose(1, 2), alpha=scale))
        out = torch.bmm(weights, values).view(heads, groups, BLOCK, dim)[:, :, :rows.n]
        return out.permute(2, 0, 1, 3).reshape(rows.n, self.query_heads, dim)


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


def planned_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, scaling: float | None = None, plan: Plan | None = None,
                      **extras: Any) -> tuple[torch.Tensor, None]:
    """transformers' interface: query [1, heads, rows, dim]; out [1, rows, heads, dim]."""
    if plan is None:
        raise RuntimeError(f"the {PLANNED} attention works only inside RTI's torch engine (no plan was given)")
    for name in ("softcap", "s_aux", "position_bias"):
        if extras.get(name) is not None:
            raise UnsupportedModel(f"its attention uses {name}, which the torch engine does not know")
    if (window := extras.get("sliding_window")) is not None and window < plan.masks.max_length:
        raise UnsupportedModel(f"its attention slides over {window} tokens, fewer than the engine's context of "
                               f"{plan.masks.max_length}; give a smaller max_context")
    kv = torch.stack((key[0].transpose(0, 1), value[0].transpose(0, 1)), 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(module.layer_idx, query[0].transpose(0, 1), kv, scale)[None], None


class UnsupportedModel(ValueError):
    """The model's architecture is beyond the torch engine."""


ALL_ATTENTION_FUNCTIONS.register(PLANNED, planned_attention)
