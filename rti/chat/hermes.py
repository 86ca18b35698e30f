"""Hermes-style chat as Qwen3 and Qwen3.5 use it: `<think>`, `<tool_call>`, `<tool_response>`, in the tokenizer's own template.

The template is given tools and structured calls and writes them its own way: Qwen3's calls are JSON, Qwen3.5's XML, and
Qwen3.5's header opens the thinking of a new turn. Both drop the thinking of earlier turns when a user message follows
(`extends_prefix` is then False), but keep it while tools answer; see `rti.chat.next_prompt`.
"""

from __future__ import annotations

from typing import Any, Sequence

from transformers import PreTrainedTokenizerBase

from rti.chat.parsing import END_THINK, THINK
from rti.chat.template import TemplateChatFormat
from rti.trajectory import Message, ToolSchema


class HermesChatFormat(TemplateChatFormat):
    """See the module's docstring."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_token_ids: Sequence[int] = ()):
        # some Hermes templates know no `reasoning_content`: thinking is then written at the head of the content
        self._knows_reasoning = "reasoning_content" in str(tokenizer.chat_template)
        super().__init__(tokenizer, stop_token_ids)

    def _conversation(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[list[dict[str, Any]], Any]:
        offered = [{"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
                   for t in tools]
        return [self._turn(m) for m in messages], offered or None

    def _turn(self, message: Message) -> dict[str, Any]:
        if message.role != "assistant":
            name = {"name": message.name} if message.name else {}
            return {"role": message.role, "content": message.content, **name}
        turn: dict[str, Any] = {"role": "assistant", "content": message.content}
        if self._knows_reasoning:
            turn["reasoning_content"] = message.reasoning
        elif message.reasoning:
            turn["content"] = f"{THINK}\n{message.reasoning}\n{END_THINK}\n\n{message.content}"
        calls = [c for c in message.tool_calls if not c.error]     # an unreadable call stands in the content
        if calls:
            turn["tool_calls"] = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
        return turn
