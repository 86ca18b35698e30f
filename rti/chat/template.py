"""What the formats share that take their template from the tokenizer: rendering, gluing turns, encoding, decoding.

Keeps invariant 1: ids that an engine sampled stay as they are; only what a template writes around them is added. The glue is
found by rendering with the template itself, so that no family's punctuation is written down here.

Edits to the template's own rendering, all declared:
- A turn's ids are the sampled ones, whatever the template would have written (spacing of JSON, an empty thinking block).
- A turn that was cut is closed with the template's end-of-turn token; one that ended with another stop token keeps that one.
- A special token spelt in somebody's text (`<|im_end|>` in a tool's output) is encoded as that text, never as the token.
"""

from __future__ import annotations

import re
from typing import Any, Iterable, Sequence

from transformers import PreTrainedTokenizerBase

from rti.chat.parsing import CALL, END_CALL, END_THINK, THINK, parse_turn, split_thinking
from rti.trajectory import Message, ToolSchema

_PROBE = "Zq7probe"                                   # stands for a turn whose place in the template's output is looked for
_FORGED = re.compile("\ue000(\\d+)\ue001")            # stands for a special token spelt in a message's text


class ChatTemplateError(ValueError):
    """A tokenizer whose chat template this format cannot work with."""


class TemplateChatFormat:
    """Implements `rti.chat.base.ChatFormat`, but for how a message is put to the template (`_conversation`)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_token_ids: Iterable[int] = ()):
        if not tokenizer.chat_template:
            raise ChatTemplateError("the tokenizer has no chat template: take an instruct model")
        self._tokenizer = tokenizer
        # tags that a format itself writes may be special tokens too; those are never taken for forged or left out
        special = set(tokenizer.all_special_tokens) - {THINK, END_THINK, CALL, END_CALL}
        self._special = sorted(special, key=lambda token: (-len(token), token))
        self._special_ids = frozenset(tokenizer.convert_tokens_to_ids(self._special))
        self._spelt = re.compile("|".join(map(re.escape, self._special)) or "(?!)")
        self.vocab_size = len(tokenizer)
        closing = self._ids(self._glue((), header=False))
        if not closing or closing[0] not in self._special_ids:
            raise ChatTemplateError("the chat template closes a turn with plain text, so that no token ends it; "
                                    "only templates with an end-of-turn token are supported")
        self._end = closing[0]
        ends = [self._end, tokenizer.eos_token_id, *stop_token_ids]
        self.stop_token_ids = tuple(dict.fromkeys(int(i) for i in ends if i is not None))
        self.extends_prefix = self._keeps_thinking()
        self._opens_thinking = self._text([Message(role="user", content="?")], (), header=True).rstrip().endswith(THINK)

    # --- what a family says --------------------------------------------------------------------------------------
    def _conversation(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[list[dict[str, Any]], Any]:
        """(messages, tools) as the template takes them."""
        raise NotImplementedError

    # --- the protocol --------------------------------------------------------------------------------------------
    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        return self._ids(self._text(messages, tools, header=True))

    def append(self, turn_ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        glue = self._ids(self._glue(messages, header=True))
        closed = len(turn_ids) > 0 and int(turn_ids[-1]) in self.stop_token_ids
        return glue[1:] if closed else glue

    def parse(self, turn_ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Message:
        return parse_turn(self._spoken(turn_ids), tools, self._opens_thinking)

    def encode_turn(self, message: Message) -> list[int]:
        asked = Message(role="user", content="?")
        header = self._text([asked], (), header=True)
        whole = self._text([asked, message], (), header=False)
        if not whole.startswith(header):
            raise ChatTemplateError("the chat template writes another header before a given turn than before a new one")
        ids = self._ids(whole[len(header):])
        return ids[:len(ids) - ids[::-1].index(self._end)]     # the template may write a line break after the end

    def decode_text(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn after its thinking, which is no part of the answer, without special tokens."""
        text = self._decode(i for i in ids if int(i) not in self._special_ids)
        return split_thinking(text, self._opens_thinking)[1].strip()

    def decode(self, ids: Sequence[int]) -> str:
        return self._decode(ids)

    # --- text and ids --------------------------------------------------------------------------------------------
    def _spoken(self, turn_ids: Sequence[int]) -> str:
        """Text of a turn up to its stop token. Other special tokens stay visible: the policy did write them."""
        ids = [int(i) for i in turn_ids]
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._decode(ids)

    def _decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _text(self, messages: Sequence[Message], tools: Sequence[ToolSchema], header: bool) -> str:
        """The template's text, special tokens in messages replaced by marks; `header` asks for an assistant turn."""
        turns, offered = self._conversation(messages, tools)
        return self._tokenizer.apply_chat_template(
            [self._mark(turn) for turn in turns], tools=offered, tokenize=False, add_generation_prompt=header)

    def _glue(self, messages: Sequence[Message], header: bool) -> str:
        """What the template writes after an assistant turn's own text when `messages` follow."""
        turn = [Message(role="user", content="?"), Message(role="assistant", content=_PROBE)]
        text = self._text([*turn, *messages], (), header=header)
        _, found, glue = text.partition(_PROBE)
        if not found:
            raise ChatTemplateError("the chat template leaves out an assistant's turn")
        return glue

    def _keeps_thinking(self) -> bool:
        """Whether an earlier turn's thinking is still there when the next user message has come."""
        history = [Message(role="user", content="?"), Message(role="assistant", content="!", reasoning=_PROBE),
                   Message(role="user", content="?")]
        return _PROBE in self._text(history, (), header=True)

    def _mark(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._spelt.sub(lambda m: f"\ue000{self._special.index(m[0])}\ue001", value)
        if isinstance(value, dict):
            return {key: self._mark(v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._mark(v) for v in value]
        return value

    def _ids(self, text: str) -> list[int]:
        pieces = _FORGED.split(text)
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if i % 2 == 0:
                ids += self._encode(piece)
            elif int(piece) < len(self._special):     # encoded in two parts, so that it cannot become the token
                spelt = self._special[int(piece)]
                ids += self._encode(spelt[0]) + self._encode(spelt[1:])
        return ids

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False).input_ids if text else []
