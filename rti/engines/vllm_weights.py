"""Shared memory that hands weights to vLLM's worker processes: one copy in, none on the way, and nothing left behind.

The memory belongs to this process and to those that have mapped it; it has no name in any file system, so that a process that
is killed leaves nothing to clean up. It is kept from one update to the next: fresh pages cost as much as the copy itself.
May import torch.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Mapping

import torch

BACKEND = "rti_shared_memory"
"""Under this name vllm_worker.py is in vLLM's registry of weight-transfer backends."""

OWNER = "RTI_VLLM_OWNER"
"""The environment variable that tells vLLM's processes the pid of the engine's process, with which they end."""

ALIGN = 64      # bytes: of a cache line, and no less than any dtype needs


class WeightsMemory:
    """`put` weights, give the answer to the workers, and `put` the next ones only when they have loaded these."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("rti-weights")
        self._size = 0
        self._map: mmap.mmap | None = None

    def put(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the tensors in; what a worker needs to find them, as plain data."""
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        entries, end = [], 0
        for name, tensor in tensors.items():
            entries.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
            end += -(-tensor.nbytes // ALIGN) * ALIGN
        memory = torch.frombuffer(self._of_size(end), dtype=torch.uint8)
        for (*_, offset), tensor in zip(entries, tensors.values()):
            memory[offset:offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return {"path": f"/proc/{os.getpid()}/fd/{self._fd}", "size": self._size, "tensors": entries}

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._map = -1, None

    def _of_size(self, size: int) -> mmap.mmap:
        if self._map is None or size > self._size:
            os.ftruncate(self._fd, size)
            self._map, self._size = mmap.mmap(self._fd, size), size
        return self._map
