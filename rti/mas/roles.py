"""What the three roles are given and what they answer: the records, and how an answer is read from a model's text.

Reading is lenient about what stands around the JSON (a fence, a thinking block, words) and strict about its fields: an answer
whose fields are missing or of another type is None, which the pipeline counts as that role's malformed output. Reading never
raises, whatever the text. Keeps invariant 4 by type: evidence is in `RoleContext`, never in an answer.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Iterator, Sequence, TypeVar

import msgspec

from rti.chat.parsing import unstorable
from rti.trajectory import Message, ToolCall, ToolSchema

ERROR_TYPES = (
    "FABRICATED_ARGUMENTS", "POINTLESS_REPEAT", "FALSE_CLAIM", "PREMATURE_TERMINATION", "CONTRADICTORY_ACTION", "GOAL_DRIFT",
    "ARGUMENT_MISMATCH", "USER_SIDE_DEVICE_ACTION", "MISSING_CONFIRMATION", "SAFETY_VIOLATION",
)
REFUSAL_REASONS = ("leak", "fabricated_tool_result", "wrong_tool_arguments", "unreasonable_calibration", "not_derivable")

MAX_OBJECTS = 64        # JSON objects tried in one answer: bounds the work on hostile text


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The Validator's judgement of a draft. `error_types` are meant to be of ERROR_TYPES; others are kept as they came."""

    diagnosis: str
    is_valid: bool
    error_types: list[str] = []
    suggest_next: str = ""


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """The Corrector's next action. `tool_calls` and `content` exclude each other; both empty: it has nothing to offer."""

    reasoning: str
    tool_calls: list[ToolCall] = []
    content: str = ""

    def message(self) -> Message:
        """The assistant turn that this correction stands for."""
        return Message(role="assistant", reasoning=self.reasoning, tool_calls=self.tool_calls, content=self.content)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The Verifier's decision. `reasons` are meant to be of REFUSAL_REASONS."""

    ok: bool
    reasons: list[str] = []
    diagnosis: str = ""


class RoleContext(msgspec.Struct, frozen=True, kw_only=True):
    """All that a role may see. Holds evidence: it goes to a role's prompt and nowhere else."""

    tools: Sequence[ToolSchema]
    history: list[Message]              # what the agent sees, the system message included
    draft: Message
    evidence: dict[str, Any]
    validation: Validation | None = None
    correction: Message | None = None

    def __repr__(self) -> str:
        # a context that ends up in a log line or a traceback must not carry the evidence there
        return f"RoleContext({len(self.history)} messages)"


def call_dict(call: ToolCall) -> dict[str, Any]:
    """A tool call as the roles' JSON writes it."""
    return {"name": call.name, "arguments": call.arguments}


def turn_dict(message: Message) -> dict[str, Any]:
    """An assistant turn in the fields of the Corrector's answer."""
    calls = [call_dict(c) for c in message.tool_calls]
    return {"reasoning": message.reasoning, "tool_calls": calls, "content": message.content}


def answer_dict(answer: Validation | Correction | Verdict) -> dict[str, Any]:
    """The fields of an answer in the order in which a role is asked to write them."""
    if isinstance(answer, Correction):
        return turn_dict(answer.message())
    return msgspec.structs.asdict(answer)


# --- reading -----------------------------------------------------------------------------------------------------
T = TypeVar("T")


def read_validation(text: str) -> Validation | None:
    return _first(text, _validation)


def read_correction(text: str) -> Correction | None:
    return _first(text, _correction)


def read_verdict(text: str) -> Verdict | None:
    return _first(text, _verdict)


def _first(text: str, build: Callable[[dict[str, Any]], T]) -> T | None:
    """The first JSON object in `text` that has the fields; None where there is none."""
    for found in _objects(text):
        try:
            return build(found)
        except (_Malformed, UnicodeEncodeError, RecursionError):
            continue
    return None


class _Malformed(ValueError):
    """A JSON object without the fields that an answer must have."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_no_constant)    # strict=False: raw newlines inside strings are read


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects of a text, in order, after its thinking block where it has one."""
    end_of_thinking = text.rfind("</think>")
    at = text.find("{", end_of_thinking if end_of_thinking >= 0 else 0)
    for _ in range(MAX_OBJECTS):
        if at < 0:
            return
        try:
            found, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield found
        at = text.find("{", end)


def _string(fields: dict[str, Any], key: str, *, required: bool = True) -> str:
    """A text; null counts as empty. What cannot be written as UTF-8 (lone surrogates) is no text."""
    if key not in fields and required:
        raise _Malformed(key)
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Malformed(key)
    value.encode()
    return value


def _strings(fields: dict[str, Any], key: str) -> list[str]:
    if key not in fields:
        raise _Malformed(key)
    value = fields[key]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise _Malformed(key)
    "".join(value).encode()
    return value


def _boolean(fields: dict[str, Any], key: str) -> bool:
    if not isinstance(fields.get(key), bool):
        raise _Malformed(key)
    return fields[key]


def _validation(fields: dict[str, Any]) -> Validation:
    return Validation(
        diagnosis=_string(fields, "diagnosis"), is_valid=_boolean(fields, "is_valid"),
        error_types=_strings(fields, "error_types"), suggest_next=_string(fields, "suggest_next"),
    )


def _verdict(fields: dict[str, Any]) -> Verdict:
    return Verdict(ok=_boolean(fields, "ok"), reasons=_strings(fields, "reasons"), diagnosis=_string(fields, "diagnosis"))


def _correction(fields: dict[str, Any]) -> Correction:
    if "tool_calls" not in fields and "content" not in fields:
        raise _Malformed("tool_calls")
    calls = fields.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _Malformed("tool_calls")
    correction = Correction(
        reasoning=_string(fields, "reasoning"), tool_calls=[_call(c) for c in calls],
        content=_string(fields, "content", required=False),
    )
    if correction.tool_calls and correction.content.strip():
        raise _Malformed("tool_calls and content exclude each other")
    return correction


def _call(value: Any) -> ToolCall:
    """A call as {"name", "arguments"}, also inside OpenAI's {"function": ..}; arguments may be a JSON text."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise _Malformed("tool_calls")
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = _decoder.decode(arguments)
        except (ValueError, RecursionError) as e:
            raise _Malformed("arguments") from e
    if not isinstance(arguments, dict) or unstorable(arguments):
        raise _Malformed("arguments")
    value["name"].encode()
    return ToolCall(name=value["name"], arguments=arguments)
