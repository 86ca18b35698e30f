"""What runs inside vLLM's worker processes: our weight-transfer backend.

vLLM keeps a registry of weight-transfer backends; `rti_shared_memory` is one of them, driven like the others by its
start_weight_update / update_weights / finish_weight_update. The weights lie in a piece of shared memory of the engine's own
process (see vllm_weights.py); each worker maps it and loads from there what its shard needs. Or the learner broadcasts them,
and each worker is a rank of that group (see broadcast.py): either way at any update. Importing this file registers the
backend: vLLM imports it in every worker, because the engine names `WorkerExtension` as its worker_extension_cls. It also makes
the process end with the engine's own: vLLM's processes outlive a killed one, and would keep the memory that a restarted
generator needs.

Keeps field bug 23 out: the copy of a tied embedding that vLLM's CPU build packs for its matrix products is packed anew after
each update; vLLM itself leaves the old one there. May import torch and vllm.
"""

from __future__ import annotations

import mmap
import os
import select
import threading
from dataclasses import dataclass, field
from typing import Any, Iterator

import msgspec
import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.utils.nccl import unpinned_nccl_env

from rti.engines.broadcast import Inbox
from rti.engines.transfer import Transfer
from rti.engines.vllm_weights import BACKEND, OWNER


def _end_with_owner() -> None:
    """Its parent may be vLLM's core and not the engine's process, so that one's pid comes by the environment."""
    owner = os.pidfd_open(int(os.environ[OWNER]))

    def wait() -> None:
        select.select([owner], [], [])      # readable once it is dead
        os._exit(1)
    threading.Thread(target=wait, name="end with owner", daemon=True).start()


class WorkerExtension:
    """Adds nothing to vLLM's worker: naming it makes each worker process import this file, which registers the backend."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """rti.engines.transfer.Transfer as plain data: whose group is to be met."""

    transfer: dict[str, Any]


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Where the weights lie: a file of `size` bytes that this process may map, and in it the tensors by name. Or, with
    `transfer`, what the sender broadcasts to the group that was met."""

    path: str = ""
    size: int = 0
    tensors: list[tuple[str, str, list[int], int]] = field(default_factory=list)     # name, torch dtype, shape, offset in bytes
    transfer: dict[str, Any] | None = None


class Backend(WeightTransferEngine[InitInfo, UpdateInfo]):
    """See the module's docstring."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._inbox = Inbox(self.device)

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Meet the sender; TransferFailed where it does not come. The group is kept for later updates."""
        with unpinned_nccl_env():       # the sender has not the settings that vLLM gives its own groups
            self._inbox.meet(msgspec.convert(init_info.transfer, Transfer), 1 + self.parallel_config.rank)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":       # the base class does this for every device, and torch has none to wait for on a CPU
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if update_info.transfer is not None:
            self.model.load_weights(self._inbox.take(msgspec.convert(update_info.transfer, Transfer)))
            return
        with open(update_info.path, "rb") as file:
            memory = mmap.mmap(file.fileno(), update_info.size, access=mmap.ACCESS_COPY)    # torch warns of a read-only one
        # The tensors keep the map alive as long as vLLM holds on to them, which may be until the update is finished.
        self.model.load_weights(_tensors(memory, update_info, self.device))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            for module in self.model.modules():
                if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
                    dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    def shutdown(self) -> None:
        self._inbox.close()


def _tensors(memory: mmap.mmap, info: UpdateInfo, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    for name, dtype, shape, offset in info.tensors:
        kind = getattr(torch, dtype)
        n_bytes = torch.Size(shape).numel() * kind.itemsize
        yield name, whole[offset:offset + n_bytes].view(kind).view(shape).to(device, non_blocking=True)


if BACKEND not in WeightTransferEngineFactory._registry:     # the class has no other way to ask
    WeightTransferEngineFactory.register_engine(BACKEND, Backend)
    _end_with_owner()
