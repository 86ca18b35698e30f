"""Tiny random models for the engine tests: real transformers classes, a few thousand weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCAB = 97


def qwen3(seed: int = 0, *, kv_heads: int = 2, tied: bool = True, layers: int = 2, vocab: int = VOCAB, hidden: int = 64,
          heads: int = 4, dim: int = 32, intermediate: int = 96, std: float = 0.15) -> PreTrainedModel:
    config = Qwen3Config(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, vocab_size=vocab,
                         tie_word_embeddings=tied,
                         max_position_embeddings=512, initializer_range=std)
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).eval()


def llama(seed: int = 0, *, tied: bool = False, std: float = 0.15) -> PreTrainedModel:
    config = LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
                         num_key_value_heads=1, vocab_size=VOCAB, tie_word_embeddings=tied, max_position_embeddings=512,
                         initializer_range=std)
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()
