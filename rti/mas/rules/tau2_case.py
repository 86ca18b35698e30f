"""A τ² conversation as the rules read it: what was called, what was said, what may be used, which required actions are open.

Keeps: a value counts as shown only where the agent could have read it (history and tools). A user-side action counts as done
where the agent asked for it by name, or the user reports it, and the user's answer tells of no failure.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, Iterator, Sequence

import msgspec

from rti.envs.tau2.evidence import RequiredAction, read
from rti.mas import literals
from rti.mas.roles import RoleContext
from rti.trajectory import Message, ToolCall

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}")
_FAILED = re.compile(r"\b(error:|failed|cannot change|i left it)", re.IGNORECASE)
YES = re.compile(r"\s*(yes|yeah|yep|sure|correct|please go ahead|go ahead|i confirm|confirmed)\b", re.IGNORECASE)


class Done(msgspec.Struct, frozen=True):
    """A call of the history with its reply ("" where none came). `at`: the message's place in the history."""

    call: ToolCall
    reply: str
    at: int

    @property
    def failed(self) -> bool:
        return self.reply.lstrip().startswith("Error")

    @property
    def data(self) -> Any:
        """The reply as JSON, or None."""
        try:
            return json.loads(self.reply)
        except ValueError:
            return None


class Case:
    """What the rules work from; made anew for every step."""

    def __init__(self, ctx: RoleContext) -> None:
        self.ctx, self.evidence = ctx, read(ctx.evidence)
        self.history = ctx.history
        self.calls = list(_calls(ctx.history))
        self.user_texts = [m.content for m in ctx.history if m.role == "user"]
        self.agent_texts = [m.content for m in ctx.history if m.role == "assistant" and not m.tool_calls]
        schemas = [f"{t.name} {t.description} {json.dumps(t.parameters)}" for t in ctx.tools]
        told = [_all(m) for m in ctx.history]
        self.told = literals.name("\n".join(told))
        self.visible = f"{self.told} {literals.name(' '.join(schemas))}"
        self._seen = literals.of_all(told)

    # --- values --------------------------------------------------------------------------------------------------
    def shows(self, value: Any) -> bool:
        """Whether every telling leaf of an argument stands in what the agent can read. Small numbers tell nothing."""
        return not self.missing(value)

    def missing(self, value: Any) -> list[str]:
        return [leaf for leaf in literals.strings(value) if not self._shows_leaf(leaf)]

    def _shows_leaf(self, leaf: str) -> bool:
        if _ISO.fullmatch(leaf):
            return leaf in self._seen.date or leaf[5:] in self._seen.date and self.shows_year(leaf[:4])
        if re.fullmatch(r"-?\d+(\.\d+)?", leaf) and (len(leaf) < 8 or "." in leaf):
            number = literals.number(leaf.lstrip("-"))
            return "." not in leaf and len(leaf) < 3 or number in self._seen.number or f" {number} " in self.visible
        # an id that a schema gives as an example is nobody's
        shown = self.told if any(c.isdigit() for c in leaf) else self.visible
        return not leaf.strip() or literals.name(leaf) in shown

    def shows_year(self, year: str) -> bool:
        return any(d.startswith(f"{year}-") and len(d) == 10 for d in self._seen.date)

    # --- calls ---------------------------------------------------------------------------------------------------
    def made(self, name: str, arguments: dict[str, Any] | None = None) -> Done | None:
        """The last successful call of a tool (with these arguments)."""
        return next((d for d in reversed(self.calls) if d.call.name == name and d.reply and not d.failed
                     and (arguments is None or same(d.call.arguments, arguments))), None)

    def tried(self, name: str, arguments: dict[str, Any]) -> bool:
        return any(d.call.name == name and d.reply and same(d.call.arguments, arguments) for d in self.calls)

    # --- required actions ----------------------------------------------------------------------------------------
    def open_actions(self) -> list[tuple[str, RequiredAction]]:
        """(side, action) still to be done, in the reference's order."""
        both = [("assistant", a) for a in self.evidence.agent_actions] + [("user", a) for a in self.evidence.user_actions]
        left: list[tuple[str, RequiredAction]] = []
        used: dict[str, int] = {}
        for side, action in sorted(both, key=lambda b: b[1].place):
            key = json.dumps([side, action.name, action.arguments], sort_keys=True, default=str)
            used[key] = used.get(key, 0) + 1
            times = self._agent_did(action) if side == "assistant" else self._user_did(action)
            if times < used[key]:
                left.append((side, action))
        return left

    def open_writes(self) -> list[RequiredAction]:
        return [a for side, a in self.open_actions() if side == "assistant" and a.name in self.evidence.agent_writes]

    def _agent_did(self, action: RequiredAction) -> int:
        """Calls that match; a change that the tool refuses by design counts as well once it was tried."""
        return sum(d.call.name == action.name and bool(d.reply) and matches(d.call.arguments, action) for d in self.calls)

    def _user_did(self, action: RequiredAction) -> int:
        wanted = [action.name, *(str(v) for v in action.arguments.values())]
        count = 0
        for asked, answer in self.exchanges():
            about = [line for line in answer.splitlines() if action.name in line] or [answer]
            both = literals.name(f"{asked} {answer}")
            failed = any(_FAILED.search(line) and "already" not in line for line in about)
            count += all(literals.name(w) in both for w in wanted) and not failed
        return count

    def exchanges(self) -> Iterator[tuple[str, str]]:
        """(text of the agent, the user's answer)."""
        asked = ""
        for m in self.history:
            if m.role == "assistant" and not m.tool_calls:
                asked = m.content
            elif m.role == "user":
                yield asked, m.content
                asked = ""

    def untold(self) -> list[str]:
        """Information to communicate that no text of the agent holds, as the official evaluator looks for it."""
        said = [t.lower().replace(",", "") for t in self.agent_texts]
        return [i for i in self.evidence.communicate if not any(i.lower() in t for t in said)]

    def confirmed(self, arguments: dict[str, Any]) -> bool:
        """Whether the agent's last text listed these arguments and the user's answer to it was yes."""
        asked, answer = list(self.exchanges())[-1] if self.user_texts else ("", "")
        return bool(YES.match(answer)) and lists(arguments, asked)


def same(a: Any, b: Any) -> bool:
    """Arguments are equal, numbers by value."""
    return json.dumps(_plain(a), sort_keys=True, default=str) == json.dumps(_plain(b), sort_keys=True, default=str)


def matches(arguments: dict[str, Any], action: RequiredAction) -> bool:
    """The official comparison of a made call with a reference action of the same name."""
    keys = arguments.keys() if action.compare_args is None else action.compare_args
    return same({k: arguments.get(k) for k in keys}, {k: action.arguments.get(k) for k in keys})


def lists(arguments: dict[str, Any], text: str) -> bool:
    """Whether a text names every value of some arguments."""
    said = literals.name(text.replace(",", ""))
    return all(literals.name(spoken(v)).replace(",", "") in said for v in _leaves(arguments))


def spoken(value: Any) -> str:
    """A leaf as the agent writes it in a list of details."""
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_leaves, value))
    elif not isinstance(value, bool) and value not in (None, ""):
        yield value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _all(message: Message) -> str:
    calls = [f"{c.name} {json.dumps(c.arguments, ensure_ascii=False)}" for c in message.tool_calls]
    return "\n".join([message.reasoning, message.content, *calls])


def _calls(history: Sequence[Message]) -> Iterator[Done]:
    """Every readable call with its reply: the tool messages after a turn answer its calls in order."""
    for i, message in enumerate(history):
        if message.role != "assistant" or not message.tool_calls:
            continue
        replies = list(itertools.takewhile(lambda m: m.role == "tool", history[i + 1:]))
        for call, reply in itertools.zip_longest(message.tool_calls, replies[:len(message.tool_calls)]):
            if not call.error:
                yield Done(call, reply.content if reply else "", i)
