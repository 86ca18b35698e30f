"""Chat formats: messages <-> token ids, one model family a file. Here: which one a model takes, and how a turn is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

from rti.chat.base import ChatFormat
from rti.pretrained import resolve
from rti.trajectory import Message, ToolSchema

__all__ = ["ChatFormat", "load_chat_format", "next_prompt"]

NAMES = ("auto", "lab", "hermes", "generic")


def load_chat_format(name: str, path: str) -> ChatFormat:
    """The chat format `name` (auto, lab, hermes, generic) over the tokenizer of model `path` (`lab`, a directory, a hub name).

    auto: the lab format where tokenizer_config.json says `"rti_chat": "lab"`; hermes where the chat template speaks of
    `<tool_call>`; else generic. Raises ValueError with the mend where there is no tokenizer or the template cannot serve.
    """
    if name not in NAMES:
        raise ValueError(f"there is no chat format {name!r}; choose one of {', '.join(NAMES)}")
    directory = resolve(path)
    if name == "lab" or (name == "auto" and _tokenizer_config(directory).get("rti_chat") == "lab"):
        from rti.chat.lab import LabChatFormat
        if not (Path(directory) / "tokenizer.json").is_file():
            raise ValueError(f"{directory}: the lab format needs the lab policy's tokenizer.json, and none is there")
        return LabChatFormat.from_dir(directory)
    tokenizer, stops = _load_tokenizer(directory)
    if name == "hermes" or (name == "auto" and "<tool_call>" in str(tokenizer.chat_template)):
        from rti.chat.hermes import HermesChatFormat as Format
    else:
        from rti.chat.generic import GenericChatFormat as Format
    try:
        return Format(tokenizer, stops)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from e


def next_prompt(chat: ChatFormat, history: Sequence[Message], tools: Sequence[ToolSchema],
                previous_ids: Sequence[int]) -> tuple[list[int], bool]:
    """Ids that ask for the next turn, and whether they extend `previous_ids` (the last prompt and the turn sampled on it).

    `history` is the whole conversation; what follows its last assistant message is new. Ids are appended wherever the
    template leaves earlier turns alone: always in a format that extends the prefix, and else while only tools have
    answered. Where a user message makes the template rewrite earlier turns, the whole is rendered anew: the caller begins a
    new sample when the answer is (ids, False).
    """
    last = max((i for i, m in enumerate(history) if m.role == "assistant"), default=-1)
    new = list(history[last + 1:])
    previous = [int(i) for i in previous_ids]
    if chat.extends_prefix or all(m.role == "tool" for m in new):
        return previous + list(chat.append(previous, new)), True
    ids = list(chat.render(history, tools))
    return ids, ids[:len(previous)] == previous


def _tokenizer_config(directory: str) -> dict[str, Any]:
    file = Path(directory) / "tokenizer_config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _load_tokenizer(directory: str) -> tuple[Any, tuple[int, ...]]:
    """The tokenizer, and the tokens that the model's generation configuration says end its output."""
    from transformers import AutoTokenizer, GenerationConfig
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as e:
        raise ValueError(f"{directory}: no tokenizer can be loaded from there ({str(e).splitlines()[0]}); "
                         "give a Hugging Face directory with tokenizer files") from e
    try:
        ends = GenerationConfig.from_pretrained(directory).eos_token_id
    except OSError:     # none there: the tokenizer's own end token serves
        ends = None
    return tokenizer, tuple([ends] if isinstance(ends, int) else ends or ())
