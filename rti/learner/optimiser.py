"""The optimiser step: AdamW over float32 master weights, warm-up, the gradient's norm over all ranks, clipping.

Weight decay applies to matrices (embeddings included); norms and biases (one-dimensional parameters) are not decayed. The
learning rate is a function of the number of updates made, so that there is no scheduler state beside the version.
"""

from __future__ import annotations

import torch
from torch import nn

from rti.config.schema import LearnerConfig
from rti.learner.sharding import local, reduce


def make_optimiser(module: nn.Module, config: LearnerConfig) -> torch.optim.AdamW:
    """AdamW with its state already in place, so that a checkpoint can be loaded into it before the first step."""
    params = [p for p in module.parameters() if p.requires_grad]
    groups = [{"params": [p for p in params if p.ndim >= 2], "weight_decay": config.weight_decay},
              {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=(config.beta1, config.beta2),
                                  eps=config.adam_eps, fused=True)
    for p in params:
        optimiser.state[p] = {"step": torch.zeros((), dtype=torch.float32, device=local(p).device),
                              "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return optimiser


def learning_rate(config: LearnerConfig, updates: int) -> float:
    """Of the next update after `updates` were made: linear warm-up over warmup_steps, then constant."""
    return config.lr * min(1.0, (updates + 1) / config.warmup_steps) if config.warmup_steps else config.lr


def gradient_norm(module: nn.Module) -> float:
    """Of the whole gradient, summed over the ranks' shards in float64; inf or nan where any part of it is."""
    grads = [local(p.grad) for p in module.parameters() if p.grad is not None]
    squares = torch.stack([g.double().square().sum() for g in grads]).sum()
    return float(reduce(squares, "sum").sqrt())


def clip_gradient(module: nn.Module, norm: float, max_norm: float) -> None:
    """Scale the gradient of norm `norm` down to `max_norm` where it is longer."""
    if norm > max_norm:
        torch._foreach_mul_([local(p.grad) for p in module.parameters() if p.grad is not None], max_norm / norm)
