"""A Hugging Face directory of the policy: configuration, safetensors, and the tokenizer's files as they were.

`from_pretrained` and every engine can load it. Tied weights are stored once. May import transformers and safetensors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Mapping

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from transformers import AutoTokenizer, PreTrainedModel

from rti.modeling import model_path

_NOT_COPIED = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".index.json", ".py", ".md")


def write_hf(state: Mapping[str, torch.Tensor], model: PreTrainedModel, source: str, out: Path) -> None:
    """`state`: full CPU tensors under Hugging Face names. `source`: model.path, where the tokenizer's files come from."""
    out.mkdir(parents=True, exist_ok=True)
    directory = Path(model_path(source))
    if directory.is_dir():
        for file in sorted(directory.iterdir()):
            if file.is_file() and not file.name.startswith(".") and not file.name.endswith(_NOT_COPIED):
                shutil.copy2(file, out / file.name)
    else:
        AutoTokenizer.from_pretrained(source).save_pretrained(out)
    dtype = next(iter(state.values())).dtype
    config = type(model.config).from_dict(model.config.to_dict())
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    _write_weights(dict(state), out)


def _write_weights(state: dict[str, torch.Tensor], out: Path) -> None:
    """model.safetensors, or several files and their index where the weights are large."""
    split = split_torch_state_dict_into_shards(state, filename_pattern="model{suffix}.safetensors")
    for name, keys in split.filename_to_tensors.items():
        save_file({k: state[k].contiguous() for k in keys}, out / name, metadata={"format": "pt"})
        shutil.copymode(out / "config.json", out / name)    # safetensors leaves files that only their owner can read
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))
