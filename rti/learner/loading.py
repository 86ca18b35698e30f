"""How the policy reaches a rank: its own shard alone, read out of the safetensors files.

The model is built without memory (on `meta`), sharded, and only then given memory, so that no rank ever holds a whole one: 8
billion float32 parameters are 32 GB a rank otherwise, of memory that eight ranks of a node share. torch's own reader of Hugging
Face checkpoints reads the rows of a shard and nothing else of a file.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from huggingface_hub import snapshot_download
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from rti.learner import sharding
from rti.learner.policy import PackedPolicy
from rti.modeling import keep_segments_apart, load_model, model_path

log = logging.getLogger(__name__)

_PREFIX = "language_model."
"""What files of a model that sees images too put into the names of its language model's weights (Qwen3.5)."""


class _NotInShards(Exception):
    """Why a model cannot be read in shards."""


def load_policy(path: str, *, attention: str, dtype: torch.dtype, device: torch.device, mesh: DeviceMesh,
                group: dist.ProcessGroup, recompute: bool = False) -> PackedPolicy:
    """The policy at `path` with float32 weights sharded over `mesh`, to compute in `dtype`, in eval mode: no dropout may make
    the ratio differ from 1 on unchanged weights. A collective. `recompute`: see learner.activation_checkpointing.

    A model that cannot be read in shards is read whole by every rank, and a warning says why.
    """
    directory, stored, buffers = _directory(path), {}, {}
    try:
        model = _without_memory(directory, attention)
        stored, buffers = _stored_names(model, directory), _lost_buffers(model)
    except _NotInShards as why:
        log.warning("every rank of the learner reads the whole of %s, in float32: %s", path, why)
        model = load_model(path, torch.float32, "cpu", attention)
    layers = [m for m in model.modules() if type(m).__name__ in set(model._no_split_modules or ())]
    policy = PackedPolicy(model).eval()
    if recompute:
        for layer in layers:
            _recompute(layer)
    sharding.shard(policy, layers, mesh, dtype)
    if stored:
        policy.to_empty(device=device)
        model.tie_weights()
        for (module, name), buffer in buffers.items():
            setattr(module, name, buffer.to(device))
        state = model.state_dict(keep_vars=True)
        dcp.load({there: state[here].detach() for there, here in stored.items()},
                 storage_reader=dcp.HuggingFaceStorageReader(str(directory)), process_group=group)
    return policy


def _directory(path: str) -> Path:
    """Where the files are; those of a hub name are fetched into its cache."""
    path = model_path(path)
    return Path(path) if Path(path).is_dir() else Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors"]))


def _without_memory(directory: Path, attention: str) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(directory).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    return keep_segments_apart(model)


def _stored_names(model: PreTrainedModel, directory: Path) -> dict[str, str]:
    """Names in the files -> the model's. Of names that are tied one is enough."""
    if not any(directory.glob("*.safetensors")):
        raise _NotInShards("it has no safetensors files")
    sizes = dcp.HuggingFaceStorageReader(str(directory)).read_metadata().state_dict_metadata
    there = {name.replace(_PREFIX, ""): name for name, entry in sizes.items()}
    state = model.state_dict(keep_vars=True)
    names = {there[name]: name for name, tensor in state.items()
             if name in there and tuple(sizes[there[name]].size) == tuple(tensor.shape)}
    found = {id(state[name]) for name in names.values()}
    for name, tensor in state.items():
        if id(tensor) not in found:
            raise _NotInShards(f"its files do not hold {name} of shape {tuple(tensor.shape)}, which {type(model).__name__} has")
    return names


def _lost_buffers(model: PreTrainedModel) -> dict[tuple[nn.Module, str], torch.Tensor]:
    """What no file holds (frequencies of rotary embeddings), computed anew by the module that does it."""
    buffers: dict[tuple[nn.Module, str], torch.Tensor] = {}
    for name, module in model.named_modules():
        if not module._non_persistent_buffers_set:
            continue
        try:
            fresh = type(module)(config=module.config)
        except (AttributeError, TypeError) as e:
            raise _NotInShards(f"{name} has buffers that are in no file and cannot be made from its configuration") from e
        buffers |= {(module, buffer): getattr(fresh, buffer) for buffer in module._non_persistent_buffers_set}
    return buffers


def _recompute(layer: nn.Module) -> None:
    """Keep only the layer's input for the backward pass, and run it again there. transformers' own way works in training mode
    alone; this one leaves names and hooks as they are."""
    forward = layer.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    layer.forward = again
