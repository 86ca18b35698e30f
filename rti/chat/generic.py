"""A chat format for templates that know no tools (SmolLM2): tools are described in the system prompt, calls are text.

    system:    <the environment's own prompt> + what the tools are and how to call one
    assistant: <tool_call>{"name": "search", "arguments": {"query": "tea"}}</tool_call>
    user:      Result of search: ...

The template sees plain text of system, user and assistant only; a reply of tools is told by the user's side.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

from rti.chat.parsing import CALL, END_CALL, END_THINK, THINK
from rti.chat.template import TemplateChatFormat
from rti.trajectory import Message, ToolSchema

HOW_TO_CALL = (
    "You can use tools. To use one, write one line like this, with the tool's name and its arguments as JSON:\n"
    f'{CALL}{{"name": "...", "arguments": {{...}}}}{END_CALL}\n'
    "You may write several such lines. The results come back to you, and you go on from there.\n"
    "The tools:\n"
)


def describe_tools(tools: Sequence[ToolSchema]) -> str:
    """The tools in words: a line each with name, arguments and purpose."""
    return HOW_TO_CALL + "\n".join(f"- {t.name}({_arguments(t.parameters)}): {t.description}" for t in tools)


def _arguments(parameters: dict[str, Any]) -> str:
    required = parameters.get("required", ())
    return ", ".join(name + ("" if name in required else "?") + _explained(schema)
                     for name, schema in parameters.get("properties", {}).items())


def _explained(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "")
    if "enum" in schema:
        kind = "one of " + ", ".join(map(str, schema["enum"]))
    said = "; ".join(part for part in (kind if isinstance(kind, str) else "", schema.get("description", "")) if part)
    return f" ({said})" if said else ""


class GenericChatFormat(TemplateChatFormat):
    """See the module's docstring."""

    def _conversation(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[list[dict[str, Any]], Any]:
        turns: list[dict[str, Any]] = []
        for m in messages:
            role, text = ("user", f"Result of {m.name or 'the tool'}: {m.content}") if m.role == "tool" else (m.role, _text(m))
            if turns and role == "user" and turns[-1]["role"] == "user":     # such templates want the two sides in turn
                turns[-1]["content"] += "\n" + text
            else:
                turns.append({"role": role, "content": text})
        if tools:
            _add_to_system(turns, describe_tools(tools))
        return turns, None


def _add_to_system(turns: list[dict[str, Any]], text: str) -> None:
    if turns and turns[0]["role"] == "system":
        turns[0]["content"] += "\n\n" + text
    else:
        turns.insert(0, {"role": "system", "content": text})


def _text(message: Message) -> str:
    if message.role != "assistant":
        return message.content
    thinking = f"{THINK}\n{message.reasoning}\n{END_THINK}\n\n" if message.reasoning else ""
    calls = [f"{CALL}{json.dumps({'name': c.name, 'arguments': c.arguments}, ensure_ascii=False)}{END_CALL}"
             for c in message.tool_calls if not c.error]     # an unreadable call stands in the content
    return thinking + "\n".join([*([message.content] if message.content else []), *calls])
