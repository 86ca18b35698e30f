"""The policy as the learner sees it: packed tokens in, log-probabilities of the trained tokens out.

Only positions that predict a trained token reach the output embedding, a chunk at a time, and the backward pass computes the
logits of a chunk anew: no [T, V] tensor lives longer than one chunk. What is not trained on cannot poison anything, since it
has no logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rti.modeling import packed_hidden

CHUNK_LOGITS = 1 << 26
"""Logits computed at once (256 MiB in float32)."""


class PackedPolicy(nn.Module):
    """A Hugging Face causal LM whose forward gives (logps [n], entropy [n]) of the chosen positions of a packed row."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        _refuse_unusual_logits(model)
        self.model = model

    def forward(self, token_ids: torch.Tensor, position_ids: torch.Tensor, cu_seqlens: tuple[int, ...], select: torch.Tensor,
                targets: torch.Tensor, temperatures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = packed_hidden(self.model, token_ids, position_ids, cu_seqlens)
        head = self.model.get_output_embeddings()
        return TokenLogps.apply(hidden.index_select(0, select), head.weight, head.bias, targets, temperatures)


class TokenLogps(torch.autograd.Function):
    """log softmax(h W^T / temperature)[target] for each row of h, and the entropy (not differentiated)."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor,
                temperatures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(targets)
        logps = torch.empty(n, dtype=torch.float32, device=hidden.device)
        log_z, entropy = torch.empty_like(logps), torch.empty_like(logps)
        for part in _chunks(n, len(weight)):
            logits = _logits(hidden[part], weight, bias, temperatures[part])
            log_z[part] = logits.logsumexp(-1)
            logps[part] = logits.gather(-1, targets[part, None])[:, 0] - log_z[part]
            # H = log Z - E[logit]. Where p is 0 a logit of -inf would give NaN: its part of the mean is 0.
            p = torch.exp(logits - log_z[part, None])
            entropy[part] = log_z[part] - torch.where(p > 0, p * logits, 0.0).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, temperatures, log_z, *(() if bias is None else (bias,)))
        ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, temperatures, log_z, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        grad_bias = None if bias is None else torch.zeros(bias.shape, dtype=torch.float32, device=bias.device)
        for part in _chunks(len(targets), len(weight)):
            # d logp / d logits = (onehot - softmax) / temperature
            g = (grad[part] / temperatures[part])[:, None]
            d = torch.exp(_logits(hidden[part], weight, bias, temperatures[part]) - log_z[part, None]).mul_(-g)
            d.scatter_add_(-1, targets[part, None], g)
            low = d.to(weight.dtype)
            grad_hidden[part] = (low @ weight).to(hidden.dtype)
            grad_weight += low.T @ hidden[part].to(weight.dtype)
            if grad_bias is not None:
                grad_bias += d.sum(0)
        return (grad_hidden, grad_weight.to(weight.dtype), None if bias is None else grad_bias.to(bias.dtype), None, None)


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperatures: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(hidden, weight, bias).float() / temperatures[:, None]


def _chunks(n: int, vocab: int) -> list[slice]:
    rows = max(1, CHUNK_LOGITS // vocab)
    return [slice(a, min(a + rows, n)) for a in range(0, n, rows)]


def _refuse_unusual_logits(model: PreTrainedModel) -> None:
    """The logits here are head(hidden): a model that scales or caps them would be trained on other probabilities."""
    config = model.config.get_text_config()
    for key in ("final_logit_softcapping", "logits_scaling", "logit_scale", "logits_soft_cap"):
        if getattr(config, key, None) not in (None, 1, 1.0):
            raise ValueError(f"{type(model).__name__} has {key}={getattr(config, key)}: the learner takes logits to be the "
                             "output embedding of the last hidden state, so it cannot train this model; choose one without it")
    if model.get_output_embeddings() is None:
        raise ValueError(f"{type(model).__name__} has no output embedding: give a causal language model")
