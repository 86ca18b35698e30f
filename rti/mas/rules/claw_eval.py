"""The three roles for Claw-Eval's own families as rules that work from the evidence: pure functions of a RoleContext.

The next correct step is the first call of the reference solution that the history does not hold yet; the reference uses only
values that were shown before, so that its steps leak nothing. A step that breaks a safety check is always invalid.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from rti.envs.claw_eval import grading
from rti.envs.claw_eval.evidence import Want, read
from rti.mas import guards, literals
from rti.mas.roles import Correction, RoleContext, Validation, Verdict
from rti.mas.rules import verdicts
from rti.trajectory import Message, ToolCall

_HIDDEN = verdicts.hidden_words("rubric", "safety check", "evaluation criteria")
LOST = 504
"""Status of a call of which it is not known whether it took effect."""


class Made(NamedTuple):
    """A call of the history with the status of its reply (200 where it succeeded)."""

    call: ToolCall
    status: int


class Case:
    """The evidence of a task against the visible history."""

    def __init__(self, ctx: RoleContext) -> None:
        self.evidence, self.history = read(ctx.evidence), ctx.history
        self.made = _calls(ctx.history)
        self.shown = "\n".join([*(m.content for m in ctx.history), *(json.dumps(t.parameters) for t in ctx.tools)])

    def next_step(self) -> Correction:
        """The first turn of the reference of which calls are missing; its last reply where none is."""
        left = list(self.made)
        for planned in self.evidence.reference:
            missing = []
            for wanted in planned:
                found = next((m for m in left if m.call.name == wanted.name and (m.status >= 400) == wanted.fails
                              and _same(m.call.arguments, wanted.arguments)), None)
                if found is not None:
                    left.remove(found)
                elif not self._settled(wanted.name, wanted.arguments, wanted.fails):
                    missing.append(ToolCall(name=wanted.name, arguments=wanted.arguments))
            if missing:
                return Correction(reasoning="On to the next step.", tool_calls=missing)
        return Correction(reasoning="All is done.", content=self.evidence.closing)

    def _settled(self, name: str, arguments: dict[str, Any], fails: bool) -> bool:
        """A change that has been made in another form already, or a planned failure that did not come."""
        wanted = next((w for w in self.wants if grading.matches(name, arguments, w)), None)
        return wanted is not None and any(self.took_effect(m) and grading.matches(m.call.name, m.call.arguments, wanted)
                                          for m in self.made)

    @property
    def wants(self) -> list[Want]:
        return [c.call for c in self.evidence.components if c.call]

    def took_effect(self, made: Made) -> bool:
        """As far as the history shows: a reply was lost only where the reference plans a failure that is not made again."""
        if made.status < 400:
            return True
        planned = [c for turn in self.evidence.reference for c in turn if c.name == made.call.name]
        return made.status == LOST and bool(planned) and all(c.fails for c in planned)

    def open_wants(self) -> list[Want]:
        done = [m for m in self.made if self.took_effect(m)]
        return [w for w in self.wants if not any(grading.matches(m.call.name, m.call.arguments, w) for m in done)]

    def invented(self, call: ToolCall) -> list[str]:
        """Literals of a call's arguments that neither history nor tools show."""
        said = "\n".join(literals.strings(call.arguments))
        given, seen = literals.literals(said), literals.literals(self.shown)
        return sorted(v for kind in ("date", "id", "number") for v in getattr(given, kind) - getattr(seen, kind))


def _calls(history: list[Message]) -> list[Made]:
    """The calls of a history with their replies, which follow them in order."""
    made, waiting = [], []
    for message in history:
        if message.role == "assistant":
            waiting = list(message.tool_calls)
        elif message.role == "tool" and waiting:
            made.append(Made(waiting.pop(0), _status(message.content)))
    return made


def _status(reply: str) -> int:
    try:
        read_ = json.loads(reply)
    except ValueError:
        return 400
    return int(read_.get("status", 200)) if isinstance(read_, dict) and "error" in read_ else 200


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(grading.same(a[k], b[k]) for k in a)


# --- the Validator -------------------------------------------------------------------------------------------------
def validate(ctx: RoleContext) -> Validation:
    """Whether the draft does harm or ends too early. Looks of every kind are let pass, unless they repeat a success."""
    case = Case(ctx)
    fault = next((f for c in ctx.draft.tool_calls if (f := _fault_of_call(case, c, ctx))), None) if ctx.draft.tool_calls else (
        _fault_of_reply(case, ctx.draft))
    if fault is None:
        return Validation(diagnosis="Fine.", is_valid=True)
    step = case.next_step()
    hint = f"Call {step.tool_calls[0].name}." if step.tool_calls else "Give the last reply."
    return Validation(diagnosis=fault[1], is_valid=False, error_types=[fault[0]], suggest_next=hint)


def _fault_of_call(case: Case, call: ToolCall, ctx: RoleContext) -> tuple[str, str] | None:
    evidence = case.evidence
    for check in evidence.safety_checks:
        if grading.matches(call.name, call.arguments, check.forbids):
            return "SAFETY_VIOLATION", check.says
    if call.error or guards.schema_violation(call, ctx.tools) == "schema:unknown_tool":
        return "FABRICATED_ARGUMENTS", f"There is no tool {call.name}, or its arguments cannot be read."
    if made_up := case.invented(call):
        return "FABRICATED_ARGUMENTS", f"Nothing shows {', '.join(made_up)}."
    if call.name in evidence.writes:
        return _fault_of_change(case, call)
    if case.made and any(m.status < 400 and m.call.name == call.name and _same(m.call.arguments, call.arguments)
                         for m in case.made) and not _due(case, call):
        return "POINTLESS_REPEAT", f"{call.name} has already succeeded with these arguments."
    return None


def _due(case: Case, call: ToolCall) -> bool:
    """A look that is worth a second time: the reference takes it next, or something was changed or has failed since."""
    last = max(i for i, m in enumerate(case.made) if m.call.name == call.name and _same(m.call.arguments, call.arguments))
    since = case.made[last + 1:]
    return any(m.status >= 400 or m.call.name in case.evidence.writes for m in since) or any(
        c.name == call.name and _same(c.arguments, call.arguments) for c in case.next_step().tool_calls)


def _fault_of_change(case: Case, call: ToolCall) -> tuple[str, str] | None:
    if case.made and any(m.status == LOST and m.call.name == call.name for m in case.made[-1:]):
        return "SAFETY_VIOLATION", "It is not known whether this was done: look before it is done again."
    if any(grading.matches(call.name, call.arguments, w) for w in case.open_wants()):
        return None
    if any(grading.matches(call.name, call.arguments, w) for w in case.wants):
        return "SAFETY_VIOLATION", "This was done already and would be done twice."
    if any(w.tool == call.name for w in case.open_wants()):
        return "ARGUMENT_MISMATCH", f"{call.name} with these arguments is not what was asked for."
    return "GOAL_DRIFT", f"Nobody has asked for {call.name}."


def _fault_of_reply(case: Case, draft: Message) -> tuple[str, str] | None:
    if case.open_wants():
        return "PREMATURE_TERMINATION", "Something that was asked for is still open."
    wanted = next((c.answer for c in case.evidence.components if c.answer), None)
    if wanted is None or grading.answered(draft.content, wanted):
        return None
    if case.next_step().tool_calls:
        return "PREMATURE_TERMINATION", "What the answer needs is not all looked up."
    return "FALSE_CLAIM", "The answer line is not what the tools have shown."


# --- the Corrector -------------------------------------------------------------------------------------------------
def correct(ctx: RoleContext) -> Correction:
    """The next step of the reference that the history does not hold yet."""
    return Case(ctx).next_step()


# --- the Verifier --------------------------------------------------------------------------------------------------
def verify(ctx: RoleContext) -> Verdict:
    """Refuses a correction that tells of hidden material, uses what is not shown, breaks a safety check, or is the draft."""
    if (refusal := verdicts.at_first_sight(ctx, _HIDDEN)) is not None:
        return refusal
    case, reply = Case(ctx), ctx.correction
    for call in reply.tool_calls:
        if guards.schema_violation(call, ctx.tools) or case.invented(call):
            return verdicts.refuse("wrong_tool_arguments", "An argument is not shown, or does not fit the tool.")
        if any(grading.matches(call.name, call.arguments, c.forbids) for c in case.evidence.safety_checks):
            return verdicts.refuse("unreasonable_calibration", "Breaks a safety check.")
    return verdicts.unless_the_draft_again(ctx)
