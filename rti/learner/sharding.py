"""FSDP2 and process groups: what differs between one rank and many, CPU and GPU, is in this file.

float32 master weights are sharded over the ranks; forward and backward run in the compute dtype (bfloat16 on a GPU) and
gradients are summed in float32 (field bug 17). One code path for any number of ranks, one included.
"""

from __future__ import annotations

import datetime
import zlib
from typing import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

TIMEOUT = datetime.timedelta(minutes=10)
"""Of every collective: a rank that died leaves the others with an error, not waiting for ever (field bug 27)."""


def join_group(rank: int, world_size: int, device: torch.device, init_method: str | None) -> bool:
    """Join the process group of the learner's ranks; True where this call created it (and leave_group should end it)."""
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
            raise RuntimeError(f"this process is already rank {dist.get_rank()} of {dist.get_world_size()} in a process group, "
                               f"but the learner is to be rank {rank} of {world_size}; give each learner rank its own process")
        return False
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if world_size == 1 and init_method is None:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
    elif init_method is None:
        raise ValueError(f"a learner of {world_size} ranks needs init_method, e.g. tcp://127.0.0.1:PORT or file:///shared/path")
    else:
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size, timeout=TIMEOUT)
    return True


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def make_mesh(device: torch.device, world_size: int) -> DeviceMesh:
    return init_device_mesh(device.type, (world_size,))


def shard(policy: nn.Module, layers: Sequence[nn.Module], mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """fully_shard on each decoder layer, then on the whole."""
    # Inputs are not cast: temperatures must stay float32, and everything else follows the dtype of the weights.
    mixed = MixedPrecisionPolicy() if dtype == torch.float32 else MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in layers:
        fully_shard(module, mesh=mesh, mp_policy=mixed)
    fully_shard(policy, mesh=mesh, mp_policy=mixed)
    for module in policy.modules():
        if isinstance(module, FSDPModule):      # the loss is already divided by the whole step's counts: gradients are summed
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard, sharing memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor (a collective), never sharing memory with `tensor`."""
    if isinstance(tensor, DTensor):
        whole = tensor.full_tensor()
        shares = whole.untyped_storage().data_ptr() == tensor.to_local().untyped_storage().data_ptr()
        return whole.clone() if shares else whole
    return tensor.clone()


def reduce(vector: torch.Tensor, how: str) -> torch.Tensor:
    """All-reduce in place over the ranks: `how` is sum or max."""
    if dist.get_world_size() > 1:
        dist.all_reduce(vector, op=dist.ReduceOp.SUM if how == "sum" else dist.ReduceOp.MAX)
    return vector


def any_rank(mine: bool, group: dist.ProcessGroup) -> bool:
    """Whether it holds on at least one rank (a collective over a group of CPUs)."""
    flag = torch.tensor([int(mine)], dtype=torch.int32)
    if dist.get_world_size() > 1:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return bool(flag.item())


def agree(what: str, fact: bytes, device: torch.device) -> None:
    """Raise on every rank where the ranks do not hold the same fact: an error now instead of a hang later."""
    crc = zlib.crc32(fact)
    least, greatest = reduce(torch.tensor([-crc, crc], dtype=torch.int64, device=device), "max").tolist()
    if -least != greatest:
        raise RuntimeError(f"the learner's ranks do not hold the same {what}: every rank must be given the same groups, in the "
                           "same order")
