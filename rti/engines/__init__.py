"""Inference engines behind one small protocol (base.Engine), and `load_engine`, which makes the configured one.

Importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rti.engines.base import Engine

if TYPE_CHECKING:
    from rti.config.schema import GeneratorsConfig, ModelConfig


def load_engine(model: ModelConfig, generators: GeneratorsConfig, *, max_context: int = 0, version: int = 0) -> Engine:
    """The engine of `generators.engine` over `model.path`. `max_context` 0 is the model's own limit: it must hold the longest
    prompt and reply, those of the intervention roles included. Sets the process's number of torch threads; vLLM works in
    processes of its own, which it starts."""
    from rti.modeling import load_model, model_path, resolve_device, resolve_dtype

    threads = generators.threads or len(os.sched_getaffinity(0))
    if generators.engine == "vllm":
        from rti.engines.vllm_engine import VLLMEngine

        device = resolve_device(generators.device)
        return VLLMEngine(model_path(model.path), dtype=str(resolve_dtype(model.dtype, device)).removeprefix("torch."),
                          device=device.type, version=version, threads=threads, max_concurrency=generators.concurrency,
                          max_context=max_context, tensor_parallel=generators.tensor_parallel, cache_mb=generators.cache_mb,
                          gpu_share=generators.gpu_share)
    if generators.engine != "torch":
        raise ValueError(f"unknown engine generators.engine={generators.engine!r}; there are torch and vllm")
    from rti.engines.torch_engine import TorchEngine

    return TorchEngine(load_model(model.path, model.dtype, generators.device), version=version, threads=threads,
                       max_concurrency=generators.concurrency, max_context=max_context,
                       prefix_cache_mb=generators.prefix_cache_mb)
