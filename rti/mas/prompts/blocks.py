"""What the prompt packs for language models share: how each role is asked, JSON blocks of history, turns and tools, and the
form of each answer. A pack gives the words and, as `hidden`, the blocks of evidence: they stand in these prompts alone."""

from __future__ import annotations

import json
from typing import Any, Sequence

from rti.mas.roles import RoleContext, answer_dict, call_dict, turn_dict
from rti.trajectory import Message, ToolSchema

_ONE_OBJECT = "Answer with one JSON object and nothing else:\n"
VALIDATOR_ANSWER = _ONE_OBJECT + (
    '{"diagnosis": "what is wrong, or why nothing is", "is_valid": true or false, '
    '"error_types": [names from the list above; empty when valid], "suggest_next": "what the agent should do now"}')
CORRECTOR_ANSWER = _ONE_OBJECT + (
    '{"reasoning": "the agent\'s thought before this action", '
    '"tool_calls": [{"name": "tool", "arguments": {}}], "content": "text to the user"}\n'
    "reasoning is always given. Either tool_calls or content is used, never both: the other one is empty.")
VERIFIER_ANSWER = _ONE_OBJECT + (
    '{"ok": true or false, "reasons": [names from the list above; empty when ok], "diagnosis": "one sentence"}')


def block(title: str, value: Any) -> str:
    """A titled block: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return f"## {title}\n{text}"


def ask(system: str, *blocks: str) -> list[Message]:
    return [Message(role="system", content=system), Message(role="user", content="\n\n".join(blocks))]


def ask_validator(words: str, ctx: RoleContext, *hidden: str, tools_shown: bool = False) -> list[Message]:
    return ask(
        f"{words}\n\n{VALIDATOR_ANSWER}",
        *([block("Tools", tools(ctx.tools))] if tools_shown else []),
        block("Conversation so far", history(ctx.history)),
        block("The step under review", turn(ctx.draft)),
        *hidden,
    )


def ask_corrector(words: str, ctx: RoleContext, *hidden: str) -> list[Message]:
    return ask(
        f"{words}\n\n{CORRECTOR_ANSWER}",
        block("Tools", tools(ctx.tools)),
        block("Conversation so far", history(ctx.history)),
        *hidden,
        block("The draft (for its manner only)", turn(ctx.draft)),
        block("The review", answer_dict(ctx.validation) if ctx.validation else {}),
    )


def ask_verifier(words: str, ctx: RoleContext, *hidden: str, asked: str = "question") -> list[Message]:
    """`asked`: what the user's first words are called."""
    return ask(
        f"{words}\n\n{VERIFIER_ANSWER}",
        block(f"The user's {asked}", question(ctx.history)),
        block("Tools", tools(ctx.tools)),
        block("Conversation so far", history(ctx.history)),
        block("The draft", turn(ctx.draft)),
        block("The corrected step", turn(ctx.correction)),
        *hidden,
    )


def history(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The visible history. Empty fields are left out."""
    return [_entry(m) for m in messages]


def _entry(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role}
    if message.role == "tool":
        entry |= {"tool": message.name, "tool_call_id": message.tool_call_id}
    if message.reasoning:
        entry["reasoning"] = message.reasoning
    if message.tool_calls:
        entry["tool_calls"] = [call_dict(c) | ({"id": c.id} if c.id else {}) for c in message.tool_calls]
    return {k: v for k, v in (entry | {"content": message.content}).items() if v or k == "content" and message.role == "tool"}


def turn(message: Message | None) -> dict[str, Any]:
    """An assistant turn, calls that could not be read marked as such."""
    if message is None:
        return {}
    fields = turn_dict(message)
    for entry, call in zip(fields["tool_calls"], message.tool_calls, strict=True):
        if call.error:
            entry["unreadable"] = call.error
    return fields


def tools(schemas: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    return [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in schemas]


def question(messages: Sequence[Message]) -> str:
    """What the user asked: the first user message."""
    return next((m.content for m in messages if m.role == "user"), "")
