"""Weights from a learner's GPU to a vLLM engine on other GPUs, over NCCL: no copy in host memory on the way.

vLLM's own transfer carries them: backend `nccl` of its two registries. Each engine has a group of its own with the sender,
which is rank 0 there and has the engine's workers after it; an engine that dies takes no other along. The engine checks names
and shapes before anybody waits in a collective. One that was started for NCCL takes weights in no other way.
May import torch and vllm.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Protocol

import torch
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo


class Receiver(Protocol):
    """An engine as the sender reaches it. Calls return when they are done: the sender makes them from threads."""

    def check(self, shapes: dict[str, list[int]]) -> None: ...

    def join(self, init_info: dict[str, Any]) -> None: ...

    def receive(self, update_info: dict[str, Any], version: int) -> None: ...


class Sender:
    """To one engine of `workers` GPUs. `state`: Hugging Face names -> whole tensors on the calling thread's GPU, in the dtype
    that they travel in. The engine meets this process at `address`:`port`, which must be free. Raises what the engine raises.
    """

    def __init__(self, receiver: Receiver, workers: int, state: Mapping[str, torch.Tensor], address: str, port: int) -> None:
        self._source = StateSource(state)
        self._client = _Client(receiver)
        receiver.check({m.name: list(m.shape) for m in self._source.metadata()})
        info = NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=1 + workers)
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=self._client, source=self._source)

    def send(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Returns when the engine serves `state` as `version`. Same names and shapes as before."""
        self._source.replace(state)
        self._client.version = version
        self._engine.send_weights()

    def close(self) -> None:
        self._engine.shutdown()


class StateSource(WeightSource):
    """Whole tensors by name, as vLLM's sender wants them."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._state = dict(state)

    def replace(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises ValueError where names, shapes or order are not those that the engine was told of."""
        if [(n, t.shape) for n, t in state.items()] != [(n, t.shape) for n, t in self._state.items()]:
            raise ValueError("the weights to send have other names, shapes or another order than those that the engine joined "
                             "with: make a new Sender for another model")
        self._state = dict(state)

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._state.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._state.items()


class _Client:
    """vLLM's VLLMWeightSyncClient over a Receiver, which pauses, starts, takes over, finishes and resumes in one call."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self.version = receiver, 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._receiver.join(init_info)

    def start_weight_update(self) -> None:
        """Part of `receive`."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._receiver.receive(update_info, self.version)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Part of `receive`."""
