"""Reading what a policy wrote: thinking, text, tool calls. Never raises, whatever the text.

A tool call is `<tool_call>{"name": .., "arguments": {..}}</tool_call>`. One that cannot be read becomes a ToolCall with
`error` set, which the environment shows the agent as the tool's reply; its text stays in the message's content, so that a
history shows what was written. Shared by the chat formats; depends on the records alone.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable

from rti.trajectory import Message, ToolCall

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"

MAX_DEPTH = 32          # of a call's arguments
_MAX_INT = 2 ** 63      # beyond it the records' binary form cannot hold an integer


def split_thinking(text: str) -> tuple[str, str]:
    """(thinking, the rest). Thinking that was never closed is all thinking: nothing in it is said or called."""
    body = text.lstrip()
    if body.startswith(THINK):
        thinking, _, rest = body[len(THINK):].partition(END_THINK)
        return thinking.strip(), rest
    end = text.find(END_THINK)     # the header may have opened the thinking already
    if 0 <= end and CALL not in text[:end]:
        return text[:end].strip(), text[end + len(END_THINK):]
    return "", text


def parse_turn(text: str) -> Message:
    """The assistant message in the text of a turn. Text around calls is content; its outer whitespace is dropped."""
    reasoning, rest = split_thinking(text)
    spoken, calls = [], []
    while (start := rest.find(CALL)) >= 0:
        spoken.append(rest[:start])
        call, end = _read_call(rest, start + len(CALL), f"call_{len(calls)}")
        calls.append(call)
        if call.error:
            spoken.append(rest[start:end])
        rest = rest[end:]
    spoken.append(rest)
    content = "\n".join(part for part in (s.strip() for s in spoken) if part)
    return Message(role="assistant", content=_utf8(content), reasoning=_utf8(reasoning), tool_calls=calls)


def read_call(value: Any, call_id: str) -> ToolCall:
    """The call in a parsed JSON value, checked for what the records and a tool can take."""
    def wrong(why: str, name: str = "") -> ToolCall:
        return ToolCall(name=name, id=call_id, error=why)

    if not isinstance(value, dict):
        return wrong("a tool call must be a JSON object with name and arguments")
    name = value.get("name")
    if not isinstance(name, str) or not name or _utf8(name) != name:
        return wrong("a tool call needs the tool's name, a non-empty string")
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):      # some models write the object as a string, as the OpenAI protocol does
        try:
            arguments = load_json(arguments)
        except ValueError as e:
            return wrong(f"arguments are not valid JSON: {e}", name)
    if not isinstance(arguments, dict):
        return wrong("arguments must be a JSON object", name)
    fault = unstorable(arguments)
    return wrong(f"arguments hold {fault}", name) if fault else ToolCall(name=name, arguments=arguments, id=call_id)


def load_json(text: str) -> Any:
    """The JSON value that `text` is. Raises ValueError alone; NaN and Infinity are not JSON."""
    return _guarded(lambda: _decoder.decode(text))


def unstorable(value: Any, depth: int = 0) -> str:
    """What in a JSON value the records cannot hold, in words; empty where all can be held."""
    if depth > MAX_DEPTH:
        return f"values nested more than {MAX_DEPTH} deep"
    if isinstance(value, str):
        return "text that is not valid Unicode" if _utf8(value) != value else ""
    if isinstance(value, float):
        return "a number that is not finite" if not math.isfinite(value) else ""
    if isinstance(value, int):
        return "an integer beyond 64 bits" if not -_MAX_INT <= value < _MAX_INT else ""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        return next((fault for v in value if (fault := unstorable(v, depth + 1))), "")
    return ""


def _read_call(text: str, start: int, call_id: str) -> tuple[ToolCall, int]:
    """The call whose JSON begins at `start`, and where what follows it begins."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _guarded(lambda: _decoder.raw_decode(text, begin))
    except ValueError as e:
        return ToolCall(name="", id=call_id, error=f"the tool call is not valid JSON: {e}"), _block_end(text, start)
    after = text[end:].lstrip()
    if after.startswith(END_CALL):
        return read_call(value, call_id), len(text) - len(after) + len(END_CALL)
    if not after or after.startswith(CALL):   # whole, though its closing tag is missing
        return read_call(value, call_id), len(text) - len(after)
    return (ToolCall(name="", id=call_id, error="the tool call is not valid JSON: text follows the object"),
            _block_end(text, end))


def _block_end(text: str, start: int) -> int:
    """Where an unreadable call ends: after its closing tag, before the next call, or with the text."""
    close, next_call = text.find(END_CALL, start), text.find(CALL, start)
    if close >= 0 and (next_call < 0 or close < next_call):
        return close + len(END_CALL)
    return next_call if next_call >= 0 else len(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def _guarded(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RecursionError:
        raise ValueError("nested too deep") from None


def _utf8(text: str) -> str:
    """`text` with what UTF-8 cannot encode (lone surrogates) replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
