"""The protocol between messages and token ids. One implementation per model family, each in its own file.

Keeps invariant 1: what an engine sampled is never decoded and encoded again. A format only ever *appends* token ids to the
sampled ones, or says that it cannot (`extends_prefix` False): the caller then begins a new sample.
"""

from __future__ import annotations

from typing import Protocol, Sequence

from rti.trajectory import Message, ToolSchema


class ChatFormat(Protocol):
    stop_token_ids: tuple[int, ...]     # what ends an assistant turn
    extends_prefix: bool                # False where the template rewrites earlier turns (e.g. strips thinking)
    vocab_size: int

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Ids of a whole conversation, ending with the header that asks for an assistant turn."""
        ...

    def append(self, turn_ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Ids to put after `turn_ids` (a sampled assistant turn, with or without its stop token): what closes the turn,
        then `messages` (tool and user messages), then the header for the next assistant turn."""
        ...

    def parse(self, turn_ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Message:
        """The assistant message in sampled ids. Never raises: a call that cannot be read is a ToolCall with `error` set.
        `tools`: the schemas offered, which give the types of arguments in a form that has none of its own (XML)."""
        ...

    def encode_turn(self, message: Message) -> list[int]:
        """An assistant message as the policy would write it, stop token included. parse(encode_turn(m), tools) == m up to call
        ids."""
        ...

    def decode_text(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn without special tokens: how a role's JSON answer is read."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids with special tokens shown, for people and logs."""
        ...
