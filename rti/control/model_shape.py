"""The dimensions of a causal language model, from its config.json alone: how many parameters, how much a token costs. No torch.

Knows transformers with gated MLPs (Llama, Qwen2, Qwen3 and their like) and hybrids whose other layers are gated delta networks
(Qwen3.5). Counts equal those of transformers' own models to the parameter, which a test shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from rti.config.keys import ConfigError

NAMED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-8B": {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": False, "max_position_embeddings": 40960},
    "Qwen/Qwen3.5-9B": {
        "model_type": "qwen3_5_text", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
        "tie_word_embeddings": False, "max_position_embeddings": 262144, "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32},
    "smollm2": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
        "tie_word_embeddings": True, "max_position_embeddings": 8192},
}
"""Dimensions of models that the shipped configurations name, so that a plan needs no download."""


@dataclass(frozen=True)
class ModelShape:
    hidden: int
    intermediate: int
    layers: int                     # all of them
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    context: int
    qk_norm: bool = False
    gated: bool = False             # the query projection also gives a gate of its own size
    qkv_bias: bool = False
    linear_layers: int = 0          # of `layers`, gated delta networks instead of attention
    linear_key: int = 0             # width of their keys
    linear_value: int = 0           # width of their values
    linear_heads: int = 0           # of values
    linear_kernel: int = 0

    # --- parameters ----------------------------------------------------------------------------------------------
    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def mlp(self) -> int:
        return 3 * self.hidden * self.intermediate

    @property
    def attention(self) -> int:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inputs = q * (2 if self.gated else 1) + 2 * kv
        return inputs * (self.hidden + self.qkv_bias) + q * self.hidden + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def delta_network(self) -> int:
        mixed = 2 * self.linear_key + self.linear_value
        projections = (mixed + 2 * self.linear_value + 2 * self.linear_heads) * self.hidden
        per_head = self.linear_value // self.linear_heads if self.linear_heads else 0
        return projections + mixed * self.linear_kernel + 2 * self.linear_heads + per_head

    @property
    def layer(self) -> int:
        """Parameters of the largest layer."""
        return max(self.attention, self.delta_network if self.linear_layers else 0) + self.mlp + 2 * self.hidden

    @property
    def root(self) -> int:
        """Parameters outside the layers: embeddings and the last norm."""
        return self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        full = self.layers - self.linear_layers
        return (self.root + self.layers * (self.mlp + 2 * self.hidden) + full * self.attention
                + self.linear_layers * self.delta_network)

    # --- what a token costs --------------------------------------------------------------------------------------
    def kv_bytes(self, width: int) -> int:
        """Keys and values of one token, in bytes of `width` each."""
        return 2 * (self.layers - self.linear_layers) * self.kv_heads * self.head_dim * width

    def state_bytes(self) -> int:
        """Recurrent state of one sequence (float32)."""
        per_head = self.linear_key * self.linear_value // max(1, self.linear_heads)
        return self.linear_layers * 4 * (per_head + (2 * self.linear_key + self.linear_value) * self.linear_kernel)

    def activation_bytes(self, width: int) -> int:
        """Of one token in one layer, kept for the backward pass. `width`: bytes of the compute dtype; norms keep their input in
        float32, attention its queries, its output twice, and keys and values repeated for every query head, the gated MLP four
        tensors of its own width."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = 2 * self.hidden * (4 + 2 * width)
        attention = ((q + kv) * (4 + width) if self.qk_norm else 0) + 5 * q * width
        if self.linear_layers:
            attention = max(attention, (2 * self.linear_key + 4 * self.linear_value) * (4 + 2 * width))
        return norms + attention + 4 * self.intermediate * width

    def transient_bytes(self, width: int) -> int:
        """Of one token, while the backward pass is within a layer: gradients of its widest tensors."""
        return 4 * max(self.hidden, self.heads * self.head_dim, self.intermediate) * width


def shape_of(path: str, config: Mapping[str, Any] | None = None) -> ModelShape:
    """The shape of the model at `path`: by its config.json, or by the table where it is a name. Raises ConfigError."""
    if config is None:
        file = Path(path).expanduser() / "config.json"
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
        elif path in NAMED:
            config = NAMED[path]
        else:
            raise ConfigError(f"model.path is {path!r}: its dimensions are not known, so nothing can be planned. Give a "
                              f"directory that holds its config.json, or one of {', '.join(NAMED)}")
    config = {**config, **config.get("text_config", {})}
    try:
        return _read(config)
    except KeyError as missing:
        raise ConfigError(f"{path}: its config.json has no {missing}, which a plan needs; only decoder-only transformers of "
                          "the Llama and Qwen kind can be planned for") from None


def _read(c: Mapping[str, Any]) -> ModelShape:
    kind, heads, layers = c.get("model_type", ""), c["num_attention_heads"], c["num_hidden_layers"]
    types = c.get("layer_types")
    interval = c.get("full_attention_interval", 4)
    linear = 0
    if "linear_num_value_heads" in c:
        linear = types.count("linear_attention") if types else sum((i + 1) % interval != 0 for i in range(layers))
    values = c.get("linear_num_value_heads", 0)
    return ModelShape(
        hidden=c["hidden_size"], intermediate=c["intermediate_size"], layers=layers, heads=heads,
        kv_heads=c.get("num_key_value_heads") or heads, head_dim=c.get("head_dim") or c["hidden_size"] // heads,
        vocab=c["vocab_size"], tied=bool(c.get("tie_word_embeddings", False)), context=c.get("max_position_embeddings", 0),
        qk_norm=kind.startswith("qwen3"), gated=kind.startswith("qwen3_5"), qkv_bias=kind == "qwen2", linear_layers=linear,
        linear_key=c.get("linear_key_head_dim", 0) * c.get("linear_num_key_heads", 0),
        linear_value=c.get("linear_value_head_dim", 0) * values, linear_heads=values,
        linear_kernel=c.get("linear_conv_kernel_dim", 0))
