"""The lab policy's chat format: an assistant turn is one JSON object, the same that the Corrector answers with.

    <|user|>Drive from A via B to C.<|end|><|assistant|>{"reasoning": "..", "tool_calls": [..], "content": ".."}<|end|>
    <|tool|>A, Hubei 114.2,30.5<|end|> ... <|assistant|>

A few million parameters have no room for tool schemas in every prompt, so the format leaves them out: the lab policy knows
its tools. Keeps invariant 1: the format only appends, so every episode is one sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Sequence

from tokenizers import Tokenizer

from rti.chat.parsing import load_json, read_call, unstorable
from rti.trajectory import Message, ToolCall, ToolSchema

END = "<|end|>"
PAD = "<|pad|>"
ROLE_TOKENS = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}


def turn_text(message: Message) -> str:
    """The JSON text of an assistant turn, keys in the order the policy writes them."""
    calls = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    return json.dumps({"reasoning": message.reasoning, "tool_calls": calls, "content": message.content}, ensure_ascii=False)


def parse_turn(text: str) -> Message:
    """The assistant message in `text`. Never raises: what cannot be read becomes a call with an error, for the agent to see."""
    try:
        turn = load_json(text)
    except ValueError as e:
        return _unreadable(text, f"the reply is not valid JSON: {e}")
    if not isinstance(turn, dict):
        return _unreadable(text, "the reply is not a JSON object")
    if fault := unstorable(turn):
        return _unreadable(text, f"the reply holds {fault}")
    calls = turn.get("tool_calls", [])
    if not isinstance(calls, list):
        return _unreadable(text, "tool_calls is not a list")
    return Message(
        role="assistant", content=_text(turn.get("content", "")), reasoning=_text(turn.get("reasoning", "")),
        tool_calls=[read_call(call, f"call_{i}") for i, call in enumerate(calls)],
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unreadable(text: str, why: str) -> Message:
    return Message(role="assistant", content=text, tool_calls=[ToolCall(name="", id="call_0", error=why)])


class LabChatFormat:
    """See the module's docstring. Implements `rti.chat.base.ChatFormat`."""

    extends_prefix = True

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # text cannot forge a marker: it is spelt out instead
        self.vocab_size = tokenizer.get_vocab_size()
        self._end = self._id(END)
        self._roles = {role: self._id(token) for role, token in ROLE_TOKENS.items()}
        self.stop_token_ids = (self._end,)

    @classmethod
    def from_dir(cls, path: str | Path) -> "LabChatFormat":
        return cls(Tokenizer.from_file(str(Path(path) / "tokenizer.json")))

    def _id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no token {token}: it is not the lab policy's")
        return token_id

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _message(self, message: Message) -> list[int]:
        text = turn_text(message) if message.role == "assistant" else message.content
        return [self._roles[message.role], *self.encode(text), self._end]

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        ids = [i for message in messages for i in self._message(message)]
        return [*ids, self._roles["assistant"]]

    def append(self, turn_ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        closing = [] if len(turn_ids) and turn_ids[-1] == self._end else [self._end]
        return [*closing, *self.render(messages, ())]

    def parse(self, turn_ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Message:
        return parse_turn(self.decode_text(turn_ids))

    def encode_turn(self, message: Message) -> list[int]:
        return [*self.encode(turn_text(message)), self._end]

    def decode_text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

