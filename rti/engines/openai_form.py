"""Messages, tools and replies in the form of the OpenAI chat protocol. Pure: no network, no torch.

Reading never raises but `MalformedReply`: a tool call whose arguments cannot be read is a ToolCall with `error`, as in a chat
format. The thinking of earlier turns is not sent: services do not take it back.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

import msgspec

from rti.chat.parsing import read_call, split_thinking
from rti.trajectory import Message, ToolCall, ToolSchema


class MalformedReply(ValueError):
    """A body that is no chat completion."""


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a service."""

    message: Message                # thinking in `reasoning`, whether the service keeps it apart or not
    finish_reason: str = "stop"
    prompt_tokens: int = 0          # 0 where the service does not say
    completion_tokens: int = 0


def messages_out(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for a request. Calls and their answers without ids are given some that match by order."""
    out: list[dict[str, Any]] = []
    ids: list[str] = []             # of the calls that are still unanswered
    for n, message in enumerate(messages):
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant" and message.tool_calls:
            ids = [call.id or f"call_{n}_{i}" for i, call in enumerate(message.tool_calls)]
            turn["content"] = message.content or None
            turn["tool_calls"] = [_call_out(call, id) for call, id in zip(message.tool_calls, ids)]
        elif message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id or (ids[0] if ids else "")
            ids = [id for id in ids if id != turn["tool_call_id"]]
        out.append(turn)
    return out


def tools_out(tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
            for t in tools]


def reply_in(body: Any) -> ChatReply:
    """The reply in a parsed response body. Raises MalformedReply."""
    try:
        choice = body["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        content, calls = message.get("content"), message.get("tool_calls") or []
        apart = message.get("reasoning_content") or message.get("reasoning") or ""
    except (LookupError, TypeError, AttributeError):
        raise MalformedReply("not a chat completion") from None
    if content is not None and not isinstance(content, str):
        raise MalformedReply(f"the content is a {type(content).__name__}, not text")
    if not isinstance(calls, list):
        raise MalformedReply(f"tool_calls is a {type(calls).__name__}, not a list")
    thinking, text = split_thinking(content or "")
    reasoning = apart if isinstance(apart, str) and apart else thinking
    read = Message(role="assistant", content=text.strip() if thinking else text, reasoning=reasoning,
                   tool_calls=[_call_in(call, i) for i, call in enumerate(calls)])
    used = body.get("usage")
    used = used if isinstance(used, dict) else {}
    return ChatReply(message=read, finish_reason=finish if isinstance(finish, str) else "stop",
                     prompt_tokens=_count(used.get("prompt_tokens")), completion_tokens=_count(used.get("completion_tokens")))


def _call_out(call: ToolCall, id: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _call_in(call: Any, i: int) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    id = call.get("id") if isinstance(call, dict) else None
    if isinstance(function, dict) and function.get("arguments") in ("", None):     # how some say: no arguments
        function = {**function, "arguments": {}}
    return read_call(function, id if isinstance(id, str) and id else f"call_{i}")


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
