"""Reading what a policy wrote: thinking, text, tool calls. Never raises, whatever the text.

A tool call is JSON, `<tool_call>{"name": .., "arguments": {..}}</tool_call>` (Qwen3), or XML, `<tool_call><function=name>
<parameter=key>value</parameter> .. </function></tool_call>` (Qwen3.5); what stands there says which. XML values are bare text:
the tool's schema gives their type. A call that cannot be read becomes a ToolCall with `error` set, which the environment
shows the agent as the tool's reply; its text stays in the message's content, so that a history shows what was written. Shared
by the chat formats; depends on the records alone.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Callable, Sequence

from rti.trajectory import Message, ToolCall, ToolSchema

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL)
_END_FUNCTION = re.compile(r"\s*</function>")

MAX_DEPTH = 32          # of a call's arguments
_MAX_INT = 2 ** 63      # beyond it the records' binary form cannot hold an integer


def split_thinking(text: str, opened: bool = False) -> tuple[str, str]:
    """(thinking, the rest). Thinking that was never closed is all thinking: nothing in it is said or called.

    `opened`: the header of the turn has opened the thinking, so that the text begins in it (as Qwen3.5's does).
    """
    body = text.lstrip()
    if body.startswith(THINK):
        opened, text = True, body[len(THINK):]
    end = text.find(END_THINK)
    if not opened and (end < 0 or CALL in text[:end]):      # an end without a beginning: some headers open it unasked
        return "", text
    thinking, _, rest = text.partition(END_THINK)
    return thinking.strip(), rest


def parse_turn(text: str, tools: Sequence[ToolSchema] = (), opened: bool = False) -> Message:
    """The assistant message in the text of a turn. Text around calls is content; its outer whitespace is dropped.

    `tools` give the types of XML values; without them a value is what it is as JSON, else text. `opened`: see split_thinking.
    """
    reasoning, rest = split_thinking(text, opened)
    schemas = {t.name: t.parameters for t in tools}
    spoken, calls = [], []
    while (start := rest.find(CALL)) >= 0:
        spoken.append(rest[:start])
        call, end = _read_call(rest, start + len(CALL), f"call_{len(calls)}", schemas)
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


def _read_call(text: str, start: int, call_id: str, schemas: dict[str, Any]) -> tuple[ToolCall, int]:
    """The call that begins at `start`, and where what follows it begins."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    form, read = ("XML", _xml_call) if text.startswith("<function", begin) else ("JSON", _json_call)
    try:
        value, end = _guarded(lambda: read(text, begin, schemas))
    except ValueError as e:
        return ToolCall(name="", id=call_id, error=f"the tool call is not valid {form}: {e}"), _block_end(text, start)
    after = text[end:].lstrip()
    if after.startswith(END_CALL):
        return read_call(value, call_id), len(text) - len(after) + len(END_CALL)
    if not after or after.startswith(CALL):   # whole, though its closing tag is missing
        return read_call(value, call_id), len(text) - len(after)
    return (ToolCall(name="", id=call_id, error=f"the tool call is not valid {form}: text follows it"),
            _block_end(text, end))


def _json_call(text: str, begin: int, schemas: dict[str, Any]) -> tuple[Any, int]:
    return _decoder.raw_decode(text, begin)


def _xml_call(text: str, begin: int, schemas: dict[str, Any]) -> tuple[Any, int]:
    """The value and end of `<function=name> <parameter=key>value</parameter> .. </function>`. Raises ValueError."""
    head = _FUNCTION.match(text, begin)
    if head is None:
        raise ValueError("it begins with <function=NAME>")
    properties = schemas.get(head[1], {}).get("properties", {})
    arguments, end = {}, head.end()
    while found := _PARAMETER.match(text, end):
        arguments[found[1]] = _typed(found[2], properties.get(found[1], {}))
        end = found.end()
    tail = _END_FUNCTION.match(text, end)
    if tail is None:
        raise ValueError("after <function=NAME> come <parameter=KEY>value</parameter> blocks, each closed, then </function>")
    return {"name": head[1], "arguments": arguments}, tail.end()


_WORDS = {"True": True, "False": False, "None": None}       # as templates write them
_KINDS: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda v: isinstance(v, bool), "null": lambda v: v is None, "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict), "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}


def _typed(text: str, schema: Any) -> Any:
    """An XML value by its JSON schema: text where that is allowed and nothing else fits, or where nothing fits at all (the
    environment then tells the agent which type it wants)."""
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    try:
        value = _WORDS[text] if text in _WORDS else load_json(text)
    except ValueError:
        return text
    if isinstance(value, str):      # quoted: only a schema that wants no text is meant to hold it, and none does
        return text
    return value if not kinds or any(_KINDS[k](value) for k in kinds & _KINDS.keys()) else text


def _kinds(schema: Any) -> set[str]:
    """The types that a JSON schema allows; empty where it does not say."""
    if not isinstance(schema, dict):
        return set()
    if "enum" in schema and all(isinstance(v, str) for v in schema["enum"]):
        return {"string"}
    kind = schema.get("type", [])
    kinds = {kind} if isinstance(kind, str) else set(kind)
    branches = [_kinds(s) for key in ("anyOf", "oneOf") for s in schema.get(key, ())]
    return set() if not all(branches) else kinds.union(*branches)


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
