"""Deterministic refusals beside the Verifier: leaks of evidence, and calls that violate a tool's schema. Pure.

Keeps invariant 4 where a model might not: a literal of the evidence (coordinate, date, id, number, name) in the corrected
reply that stands nowhere in the visible history is a leak, whatever the Verifier says. A refusal names the literal's class
only, never the literal, so that it may be logged.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

from rti.mas import literals
from rti.trajectory import Message, ToolCall, ToolSchema


def refusal(reply: Message, history: Sequence[Message], tools: Sequence[ToolSchema], evidence: dict[str, Any]) -> str:
    """Why a corrected reply must be refused ("leak:coordinate", "schema:missing", ..), or "" where nothing is wrong."""
    return leak(reply, history, tools, evidence) or next((v for c in reply.tool_calls if (v := schema_violation(c, tools))), "")


# --- leaks -------------------------------------------------------------------------------------------------------------
def leak(reply: Message, history: Sequence[Message], tools: Sequence[ToolSchema], evidence: dict[str, Any]) -> str:
    """"leak:<class>" where the reply holds a literal of the evidence that neither history nor tools show; else ""."""
    said = _text(reply)
    spoken, hidden = literals.literals(said), literals.literals(_lines(evidence))
    seen_parts = [*map(_text, history), *map(_schema_text, tools)]
    seen_text, seen = "\n".join(seen_parts), literals.of_all(seen_parts)
    if any(not _shown_in_parts(c, seen_text) for c in (spoken.coordinate & hidden.coordinate) - seen.coordinate):
        return "leak:coordinate"
    if any(not _dated_in_parts(d, seen.date) for d in (spoken.date & hidden.date) - seen.date):
        return "leak:date"
    for kind in ("id", "number"):
        if (getattr(spoken, kind) & getattr(hidden, kind)) - getattr(seen, kind):
            return f"leak:{kind}"
    said_name, seen_name = literals.name(said), literals.name(seen_text)
    values = {literals.name(v) for c in reply.tool_calls for v in literals.strings(c.arguments)}
    for wanted in literals.names(evidence):
        if (wanted in values or literals.holds_name(said_name, wanted)) and wanted not in seen_name:
            return "leak:name"
    return ""


def scrub(text: str, evidence: dict[str, Any]) -> str:
    """A text for people and logs without any text of the evidence: for what a service says when it fails."""
    low = text.casefold()
    hidden = [s.casefold() for s in literals.strings(evidence) if len(s) > 3]
    return "(not shown: it repeats the evidence)" if any(s in low for s in hidden) else text


def _lines(value: Any) -> str:
    return "\n".join(literals.strings(value))


def _text(message: Message) -> str:
    """All that a message shows, one value a line."""
    calls = [line for c in message.tool_calls for line in (c.name, _lines(c.arguments))]
    return "\n".join([message.name, message.reasoning, message.content, *calls])


def _schema_text(tool: ToolSchema) -> str:
    return f"{tool.name}\n{tool.description}\n{json.dumps(tool.parameters, ensure_ascii=False)}"


def _shown_in_parts(pair: str, seen_text: str) -> bool:
    """Whether both numbers of a pair stand in the history apart from each other, as in {"lng": 114.2, "lat": 30.5}."""
    shown = {literals.number(n) for n in literals.decimals(seen_text)}
    return all(part in shown for part in pair.split(","))


def _dated_in_parts(date: str, seen: frozenset[str]) -> bool:
    """Whether "May 24" and the year stand in the history, each for itself: then 2024-05-24 follows from it."""
    return len(date) == 10 and date[5:] in seen and any(d.startswith(date[:5]) for d in seen)


# --- schemas -------------------------------------------------------------------------------------------------------------
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,),
    "null": (type(None),),
}


def schema_violation(call: ToolCall, tools: Sequence[ToolSchema]) -> str:
    """"schema:<what>" where a call does not fit its tool's JSON schema, or names no tool; else ""."""
    if call.error:
        return "schema:unreadable"
    tool = next((t for t in tools if t.name == call.name), None)
    if tool is None:
        return "schema:unknown_tool"
    declared = tool.parameters.get("properties")
    if declared is not None and not tool.parameters.get("additionalProperties") and set(call.arguments) - set(declared):
        return "schema:unknown_argument"
    what = violation(call.arguments, {"type": "object", **tool.parameters})
    return f"schema:{what}" if what else ""


def violation(value: Any, schema: Any) -> str:
    """The first thing in which a JSON value violates a schema, as the schema's keyword ("missing" for required), or ""."""
    if not isinstance(schema, dict):
        return "" if schema is not False else "false"
    for check in (_type, _enum, _range, _object, _array, _combination):
        if what := check(value, schema):
            return what
    return ""


def _type(value: Any, schema: dict[str, Any]) -> str:
    wanted = schema.get("type")
    names = wanted if isinstance(wanted, list) else [wanted] if wanted is not None else []
    return "" if not names or any(_is(value, n) for n in names) else "type"


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(name, (object,)))


def _enum(value: Any, schema: dict[str, Any]) -> str:
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return "enum" if allowed is not None and not any(value == a and type(value) is type(a) for a in allowed) else ""


def _range(value: Any, schema: dict[str, Any]) -> str:
    size = value if isinstance(value, (int, float)) else len(value) if isinstance(value, (str, list)) else None
    if size is None or isinstance(value, bool):
        return ""
    low, high = {str: ("minLength", "maxLength"), list: ("minItems", "maxItems")}.get(type(value), ("minimum", "maximum"))
    return "range" if size < schema.get(low, size) or size > schema.get(high, size) else ""


def _object(value: Any, schema: dict[str, Any]) -> str:
    if not isinstance(value, dict):
        return ""
    if any(key not in value for key in schema.get("required", ())):
        return "missing"
    properties = schema.get("properties", {})
    if schema.get("additionalProperties", True) is False and set(value) - set(properties):
        return "unknown_argument"
    return next((w for k, s in properties.items() if k in value and (w := violation(value[k], s))), "")


def _array(value: Any, schema: dict[str, Any]) -> str:
    if not isinstance(value, list):
        return ""
    return next((w for v in value if (w := violation(v, schema.get("items", True)))), "")


def _combination(value: Any, schema: dict[str, Any]) -> str:
    """anyOf and oneOf as "one fits", allOf as "all fit"; references are not followed, so they refuse nothing."""
    for key in ("anyOf", "oneOf"):
        if schema.get(key) and all(violation(value, s) for s in schema[key]):
            return key
    return next((w for s in schema.get("allOf", ()) if (w := violation(value, s))), "")
