"""The random streams of a process that a model may draw from (torch, CUDA, numpy, Python), as a msgpack-able record."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """The random streams of this process that a model may draw from."""
    kind, keys, at, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {"torch": torch.get_rng_state().numpy().tobytes(),
            "cuda": torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else None,
            "numpy": [kind, keys.tobytes(), at, has_gauss, gauss], "python": [version, list(internal), gauss_next]}


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    def tensor(data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    torch.set_rng_state(tensor(state["torch"]))
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(tensor(state["cuda"]), device)
    kind, keys, at, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), at, has_gauss, gauss))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
