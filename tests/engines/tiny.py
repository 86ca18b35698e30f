"""Tiny random models for the engine tests: real transformers classes, a few thousand weights."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config,
                          Qwen3ForCausalLM)

VOCAB = 97


def qwen3(seed: int = 0, *, kv_heads: int = 2, tied: bool = True, layers: int = 2, vocab: int = VOCAB, hidden: int = 64,
          heads: int = 4, dim: int = 32, intermediate: int = 96, std: float = 0.15, context: int = 512) -> PreTrainedModel:
    config = Qwen3Config(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, vocab_size=vocab,
                         tie_word_embeddings=tied, max_position_embeddings=context, initializer_range=std)
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).eval()


def llama(seed: int = 0, *, tied: bool = False, std: float = 0.15, hidden: int = 48) -> PreTrainedModel:
    config = LlamaConfig(hidden_size=hidden, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
                         num_key_value_heads=1, vocab_size=VOCAB, tie_word_embeddings=tied, max_position_embeddings=512,
                         initializer_range=std)
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


def write_chat_model(path: Path) -> Path:
    """A Hugging Face directory with a tokenizer and a chat template: a token a byte, three special tokens, 4,096 of context."""
    qwen3(vocab=len(write_byte_tokenizer(path)), context=4096).save_pretrained(path)
    return path


def write_parrot(path: Path, words: str, context: int, english: str) -> Path:
    """A chat model that says `words` (no token twice) and ends its turn, whatever it was asked: its layers give nothing, so
    that the last token alone decides on the next. Its vocabulary is made from `english`, so that prompts are not long."""
    tokens = write_byte_tokenizer(path, english)
    size = len(tokens)
    model = qwen3(vocab=size, hidden=-(-size // 32) * 32, layers=1, heads=1, kv_heads=1, tied=False, context=context)
    said = [tokens.convert_tokens_to_ids(t) for t in (*tokens.tokenize("\n" + words), tokens.eos_token)]
    with torch.no_grad():
        for weight in (model.model.layers[0].self_attn.o_proj.weight, model.model.layers[0].mlp.down_proj.weight,
                       model.lm_head.weight):
            weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(*model.model.embed_tokens.weight.shape))
        for last, following in zip(said, said[1:]):
            model.lm_head.weight[following, last] = 10
    model.save_pretrained(path)
    return path


def write_byte_tokenizer(path: Path, english: str = "") -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|begin|>", "<|end|>", "<|pad|>"]
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet + special)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    if english:
        tokenizer.train_from_iterator([english], trainers.BpeTrainer(
            vocab_size=1000, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = ("{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
                          "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}")
    fast.save_pretrained(path)
    return fast
