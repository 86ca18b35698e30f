"""A tiny random policy on disk that speaks the lab format: what the whole system runs on in tests."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti.chat.lab import END
from rti.lab import tokenizer as lab_tokenizer


def write_policy(directory: Path, seed: int = 0) -> Path:
    """Random weights, a few ten thousand of them; sampled turns end early enough not to fill the context."""
    words = [f" {a}{b}" for a in ("lo", "ka", "mi", "ru") for b in ("ta", "ne", "so", "vi")]
    tokenizer = lab_tokenizer.build(words * 20, 512)
    lab_tokenizer.save(tokenizer, directory)
    config = Qwen3Config(vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=1024,
                         tie_word_embeddings=True, initializer_range=0.1)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():       # the end of a turn is now likely, now not, by what was written before it
        model.model.embed_tokens.weight[tokenizer.token_to_id(END)] *= 5
    model.save_pretrained(directory)
    return directory
