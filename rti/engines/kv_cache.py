"""Keys and values of the torch engine's sequences: staging while a prompt is read, pools while it is decoded, shared prefixes.

Keeps batch invariance together with attention.py: the *length* over which a token attends is a function of its own position
(rounded up to BLOCK), never of what else is in the batch. A decoding sequence therefore lives in the pool of its own length,
where the kernel sees exactly that length, and moves to the next pool when it outgrows it. May import torch.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from rti.engines.sequence import Sequence

BLOCK = 64
"""Positions are prefilled, shared and attended to in blocks of this many, counted from position 0."""


KEPT_BYTES = 128 << 20
"""An empty pool up to this size is kept for the sequences to come. A larger one is let go: a long sequence passes through one
pool after the other as it grows, and they would add up to many times what it needs."""

FIRST_SLOTS = 8


def padded(length: int) -> int:
    """`length` rounded up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


@dataclass(frozen=True)
class CacheShape:
    """What one token's cache looks like."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def new(self, *middle: int) -> torch.Tensor:
        """Zeros [layers, 2, *middle, head_dim]. Not `empty`: masked positions are multiplied by 0, and 0 x NaN is NaN."""
        return torch.zeros(self.layers, 2, *middle, self.head_dim, dtype=self.dtype, device=self.device)

    def n_bytes(self, length: int) -> int:
        """Of one sequence's slot."""
        return self.layers * 2 * self.kv_heads * length * self.head_dim * self.dtype.itemsize

    def staging(self, length: int) -> torch.Tensor:
        """A cache for one sequence of up to `length` tokens: [layers, 2, kv_heads, padded length, head_dim]."""
        return self.new(self.kv_heads, padded(length))


class Pool:
    """The decoding sequences whose next token attends over `length` positions, in dense slots 0 .. n-1."""

    def __init__(self, shape: CacheShape, length: int) -> None:
        self.shape, self.length = shape, length
        self.members: list[Sequence] = []
        self._allocate(FIRST_SLOTS if FIRST_SLOTS * shape.n_bytes(length) <= KEPT_BYTES else 1)

    @property
    def n_bytes(self) -> int:
        return self.kv.nbytes

    def _allocate(self, capacity: int) -> None:
        old = self.kv if self.members else None
        self.kv = self.shape.new(capacity, self.shape.kv_heads, self.length)
        if old is not None:
            self.kv[:, :, :old.shape[2]] = old
        slot, kv, head = np.ogrid[:capacity, :2, :self.shape.kv_heads]
        self._row_of = (((kv * capacity + slot) * self.shape.kv_heads) + head) * self.length    # [capacity, 2, kv_heads]

    def add(self, sequence: Sequence, kv: torch.Tensor) -> None:
        """Take over `sequence`, whose keys and values so far are `kv` [layers, 2, kv_heads, at most length, head_dim]."""
        slot = len(self.members)
        if slot == self.kv.shape[2]:
            self._allocate(2 * slot)
        self.kv[:, :, slot, :, :kv.shape[3]] = kv
        self.members.append(sequence)
        sequence.pool, sequence.slot = self, slot

    def remove(self, sequence: Sequence) -> torch.Tensor:
        """Let `sequence` go; the last member takes its slot. Returns a view of its cache, valid until the next `add`."""
        slot, last = sequence.slot, self.members.pop()
        leaving = self.kv[:, :, slot]
        if last is not sequence:
            leaving = leaving.clone()
            self.kv[:, :, slot] = self.kv[:, :, last.slot]
            self.members[slot] = last
            last.slot = slot
        sequence.pool = None
        return leaving

    def write_rows(self, positions: np.ndarray) -> np.ndarray:
        """Rows of layer `[2 * capacity * kv_heads * length, head_dim]` for a token of each member, order [n, 2, kv_heads]."""
        return (self._row_of[:len(positions)] + positions[:, None, None]).ravel()


class DecodeCache:
    """All pools. A sequence is in the pool of padded(tokens that its next step attends over)."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self._pools: dict[int, Pool] = {}

    def busy_pools(self) -> list[Pool]:
        return [pool for _, pool in sorted(self._pools.items()) if pool.members]

    def insert(self, sequence: Sequence, kv: torch.Tensor) -> None:
        length = padded(sequence.n_tokens)
        pool = self._pools.get(length)
        if pool is None:
            pool = self._pools[length] = Pool(self.shape, length)
        pool.add(sequence, kv[..., :length, :])

    def remove(self, sequence: Sequence) -> None:
        if sequence.pool is not None:
            self._take_out(sequence)

    def _take_out(self, sequence: Sequence) -> torch.Tensor:
        pool = sequence.pool
        kv = pool.remove(sequence)
        if not pool.members and pool.n_bytes > KEPT_BYTES:
            del self._pools[pool.length]
        return kv

    def grow(self, sequence: Sequence) -> None:
        """Move a sequence that has just got a token to the next pool where it no longer fits its own."""
        if sequence.pool is not None and sequence.n_tokens > sequence.pool.length:
            self.insert(sequence, self._take_out(sequence))

    def clear(self) -> None:
        """Forget everything, memory included: what a broken model left there must not be multiplied by 0 later."""
        for pool in self._pools.values():
            for sequence in pool.members:
                sequence.pool = None
        self._pools.clear()


def block_digests(ids: np.ndarray) -> list[bytes]:
    """One digest per whole block of `ids`, each of everything up to that block's end."""
    chain, digests = hashlib.blake2b(digest_size=16), []
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        chain.update(ids[end - BLOCK:end].tobytes())
        digests.append(chain.digest())
    return digests


class PrefixCache:
    """Prefilled blocks by the digest of all tokens up to their end, the least recently used dropped first.

    A block's keys and values depend on nothing but those tokens and the weights, bit for bit, so using a block changes no
    result. The engine clears it at every weight load.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity, self._used = capacity_bytes, 0
        self._blocks: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    @property
    def enabled(self) -> bool:
        return self._capacity > 0

    def get(self, digest: bytes) -> torch.Tensor | None:
        block = self._blocks.get(digest)
        if block is not None:
            self._blocks.move_to_end(digest)
        return block

    def put(self, digest: bytes, block: torch.Tensor) -> None:
        """Keep a copy of `block` [layers, 2, kv_heads, BLOCK, head_dim]."""
        size = block.numel() * block.element_size()
        if digest in self._blocks or size > self._capacity:
            return
        while self._used + size > self._capacity:
            _, oldest = self._blocks.popitem(last=False)
            self._used -= oldest.numel() * oldest.element_size()
        self._blocks[digest] = block.clone(memory_format=torch.contiguous_format)
        self._used += size

    def clear(self) -> None:
        self._blocks.clear()
        self._used = 0
