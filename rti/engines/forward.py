"""From rows of tokens to logits: through any Hugging Face model, or faster through our own loop for Llama-like ones.

Both give for each row a function of that row and of its attention alone, as long as the number of rows is a multiple of the
tile that calibrate.find_tile measured on this machine: BLAS picks other kernels, and so other roundings, for other numbers.
May import torch and transformers.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from rti.engines.attention import PLANNED, UnsupportedModel


class Forward(Protocol):
    """`logits` of `rows` [S] out of all rows; float32 or the model's dtype [S, V]. Writes the cache through the plan."""

    def logits(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: Any, rows: torch.Tensor) -> torch.Tensor: ...

    def refresh(self) -> None:
        """The model's parameters have new values."""
        ...


class GenericForward:
    """transformers' own forward, with all rows as one sequence and the attention replaced by the plan's."""

    def __init__(self, model: PreTrainedModel) -> None:
        if not getattr(model, "_supports_attention_backend", False):
            raise UnsupportedModel(f"{type(model).__name__} does not let transformers replace its attention")
        model.set_attn_implementation(PLANNED)
        self._model = model

    def logits(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: Any, rows: torch.Tensor) -> torch.Tensor:
        return self._model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows,
                           plan=plan).logits[0]

    def refresh(self) -> None:
        pass    # it reads the parameters themselves


class LlamaForward:
    """Llama, Qwen2, Qwen3, Mistral: RMS norms, rotary embedding, gated SiLU. Fused projections, few small operations.

    The fused weights are the model's own: its parameters become views into them, so that a weight load reaches both.
    """

    ARCHITECTURES = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"})
    STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})

    def __init__(self, model: PreTrainedModel, max_context: int) -> None:
        if not self.serves(model, max_context):
            raise UnsupportedModel(f"{type(model).__name__} is not a plain Llama-like model")
        config, base = model.config, model.model
        self._dim = base.layers[0].self_attn.head_dim
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._embed, self._norm, self._head = base.embed_tokens, base.norm, model.lm_head
        self._layers = [_Layer(layer, self._heads, self._kv_heads) for layer in base.layers]
        positions = torch.arange(max_context, device=model.device)[None]
        cos, sin = base.rotary_emb(self._embed.weight[:1, None], positions)
        half = self._dim // 2
        self._cos = cos[0, :, None]
        self._sin = torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), -1)    # the sign of rotate_half goes in here

    def refresh(self) -> None:
        for layer in self._layers:
            layer.refresh()

    @classmethod
    def serves(cls, model: PreTrainedModel, max_context: int) -> bool:
        rope = getattr(model.config, "rope_parameters", None) or {}
        window = getattr(model.config, "sliding_window", None)
        return (type(model).__name__ in cls.ARCHITECTURES and model.config.hidden_act == "silu"
                and rope.get("rope_type", "default") in cls.STATIC_ROPE and rope.get("partial_rotary_factor", 1.0) == 1.0
                and (window is None or window >= max_context))

    def logits(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: Any, rows: torch.Tensor) -> torch.Tensor:
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        x = F.embedding(token_ids, self._embed.weight)
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, x, cos, sin, plan)
            x = x + layer.mlp(_rms(x, layer.post_norm))
        return F.linear(_rms(x.index_select(0, rows), self._norm), self._head.weight)

    def _attention(self, index: int, layer: _Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                   plan: Any) -> torch.Tensor:
        n = x.shape[0]
        qkv = F.linear(_rms(x, layer.input_norm), layer.qkv, layer.qkv_bias).view(n, -1, self._dim)
        place = qkv[:, :self._heads + self._kv_heads]
        turned = place
        if layer.qk_norm is not None:
            turned = torch.rms_norm(turned, (self._dim,), None, layer.qk_eps) * layer.qk_norm
        swapped = turned.view(n, -1, 2, self._dim // 2).flip(-2).view(turned.shape)
        torch.addcmul(turned * cos, swapped, sin, out=place)
        kv = qkv[:, self._heads:].view(n, 2, self._kv_heads, self._dim)
        out = plan.attend(index, qkv[:, :self._heads], kv, layer.scale)
        return F.linear(out.view(n, -1), layer.out.weight, layer.out.bias)


def _rms(x: torch.Tensor, norm: torch.nn.Module) -> torch.Tensor:
    return torch.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


class _Layer:
    """A decoder layer's weights, the projections of one input fused."""

    def __init__(self, layer: torch.nn.Module, heads: int, kv_heads: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.post_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv, self.qkv_bias = _fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self.gate_up, self.gate_up_bias = _fuse([mlp.gate_proj, mlp.up_proj])
        self.out, self.down, self.scale = attention.o_proj, mlp.down_proj, attention.scaling
        has_norms = hasattr(attention, "q_norm")
        self._norms = [(attention.q_norm, heads), (attention.k_norm, kv_heads)] if has_norms else []
        self.qk_eps = attention.q_norm.variance_epsilon if has_norms else 0.0
        self.refresh()

    def refresh(self) -> None:
        """One weight per head for queries and keys together, which are normalised in one go."""
        self.qk_norm = torch.cat([norm.weight.expand(n, -1) for norm, n in self._norms]) if self._norms else None

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, self.gate_up, self.gate_up_bias).chunk(2, -1)
        return F.linear(F.silu(gate).mul_(up), self.down.weight, self.down.bias)


def _fuse(linears: list[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One weight (and bias) for several projections of the same input, which become views into it."""
    def join(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
        whole = torch.cat([p.data for p in parameters])
        for parameter, part in zip(parameters, whole.split([len(p) for p in parameters])):
            parameter.data = part
        return whole
    return join([m.weight for m in linears]), (join([m.bias for m in linears]) if linears[0].bias is not None else None)
