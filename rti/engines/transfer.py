"""What both ends of a transfer of weights are told, and what it is called when it fails: plain data, without torch.

The transfer itself is in broadcast.py.
"""

from __future__ import annotations

import msgspec

LIMIT_S = 120.0
"""Of one transfer: 16 GB over 10 GbE take 13 s. Who is not through by then is taken for dead."""


class TransferFailed(RuntimeError):
    """The weights did not arrive whole; the engine serves what it served before, the group is closed."""


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """A tensor by name; `dtype` as torch calls it, without "torch."."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One transfer to one engine."""

    backend: str                        # nccl | gloo
    meeting: str                        # a file that both ends see and nobody used before; names the group
    fresh: bool                         # the group is made with this transfer; else it is there from an earlier one
    receivers: int                      # workers of the engine
    tensors: tuple[TensorInfo, ...]
    limit_s: float = LIMIT_S
