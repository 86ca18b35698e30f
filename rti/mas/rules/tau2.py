"""The three roles for τ²-Bench as rules that work from the evidence: pure functions of a RoleContext.

The next correct step comes from evidence and history (tau2_telecom.py, tau2_records.py for retail and airline); every value
that it holds stands in the visible history or follows from it, so that what is not known yet is asked for or looked up first.
"""

from __future__ import annotations

import re
from typing import Sequence

from rti.mas import guards, literals
from rti.mas.roles import Correction, RoleContext, Validation, Verdict
from rti.mas.rules import tau2_records, tau2_telecom, verdicts
from rti.mas.rules.tau2_case import Case, matches, same
from rti.trajectory import Message, ToolCall

_DID = r"(now )?(successfully )?(cancel|chang|modif|updat|exchang|refund|book|refuel|enabl)\w*"
_CLAIM = re.compile(rf"\b(has|have) (now )?been {_DID}|\bi('ve| have) {_DID}", re.IGNORECASE)
_HIDDEN = verdicts.hidden_words("reference action", "evaluation criteria")
TRANSFER = "transfer_to_human_agents"


def next_step(case: Case) -> Correction | None:
    return (tau2_telecom if case.evidence.domain == "telecom" else tau2_records).next_step(case)


# --- the Validator -------------------------------------------------------------------------------------------------
def validate(ctx: RoleContext) -> Validation:
    """Whether the draft does harm or leads nowhere. Look-ups, questions and other ways to the same end are let pass."""
    case = Case(ctx)
    step = next_step(case)
    fault = _fault_of_calls(case, ctx.draft.tool_calls) if ctx.draft.tool_calls else _fault_of_text(case, ctx.draft, step)
    if not fault or step is None:
        return Validation(diagnosis="Fine.", is_valid=True)
    error, why = fault
    return Validation(diagnosis=why, is_valid=False, error_types=[error], suggest_next=_hint(step))


def _hint(step: Correction) -> str:
    return f"Call {step.tool_calls[0].name}." if step.tool_calls else f"Say: {step.content}"


def _fault_of_calls(case: Case, calls: Sequence[ToolCall]) -> tuple[str, str] | None:
    for call in calls:
        if not call.error and (fault := _fault_of_call(case, call)):
            return fault
    return None


def _fault_of_call(case: Case, call: ToolCall) -> tuple[str, str] | None:
    evidence = case.evidence
    if call.name in evidence.user_tools and call.name not in evidence.agent_tools:
        return "USER_SIDE_DEVICE_ACTION", f"{call.name} is on the user's phone: the agent cannot call it."
    if call.name not in evidence.agent_tools:
        return "FABRICATED_ARGUMENTS", f"There is no tool {call.name}."
    if call.name != TRANSFER and (made_up := case.missing(call.arguments)):
        return "FABRICATED_ARGUMENTS", f"Nobody has given {', '.join(made_up)}."
    if _repeats(case, call):
        return "POINTLESS_REPEAT", f"{call.name} has already succeeded with these arguments."
    if call.name == TRANSFER:
        left = [a.name for _, a in case.open_actions() if a.name != TRANSFER]
        wanted = any(a.name == TRANSFER for a in evidence.agent_actions)
        if left or (not wanted and "DB" in evidence.reward_basis and case.untold()):
            return "PREMATURE_TERMINATION", "Something can still be done for the user before a transfer."
    if call.name in evidence.agent_writes:
        return _fault_of_write(case, call)
    return None


def _repeats(case: Case, call: ToolCall) -> bool:
    """Made before with success, and nothing was changed or said since."""
    last = next((d for d in reversed(case.calls) if d.call.name == call.name and same(d.call.arguments, call.arguments)), None)
    if last is None or last.failed or not last.reply:
        return False
    since = case.history[last.at + 1:]
    return not any(m.role == "user" or any(c.name in case.evidence.agent_writes for c in m.tool_calls) for m in since)


def _fault_of_write(case: Case, call: ToolCall) -> tuple[str, str] | None:
    required = [a for a in case.evidence.agent_actions if a.name == call.name]
    strict = "DB" in case.evidence.reward_basis
    if (required or strict) and not any(matches(call.arguments, a) for a in required):
        return "ARGUMENT_MISMATCH", f"{call.name} with these arguments is not what the user needs."
    if case.evidence.domain != "telecom" and not case.confirmed(call.arguments):
        return "MISSING_CONFIRMATION", "The details were not listed, or the user has not said yes to them."
    return None


def _fault_of_text(case: Case, draft: Message, step: Correction | None) -> tuple[str, str] | None:
    """A text must move the case on: ask something, name what the user is to do, tell what is due. Said before, it does not."""
    text = draft.content.strip()
    if "TRANSFERRED TO A HUMAN" in text.upper() and not case.made(TRANSFER):
        return "PREMATURE_TERMINATION", "Nobody has been asked to take over yet."
    changed = any(d.call.name in case.evidence.agent_writes and d.reply and not d.failed for d in case.calls)
    if _CLAIM.search(text) and not changed:
        return "FALSE_CLAIM", "No call has done that."
    if literals.name(text) in {literals.name(t) for t in case.agent_texts}:
        return "POINTLESS_REPEAT", "The agent has said this before."
    if step is None or step.content and literals.name(step.content) == literals.name(text):
        return None
    due = [i for i in case.untold() if i.lower() in text.lower().replace(",", "")]
    names_an_action = any(re.search(rf"\b{re.escape(a.name)}\b", text) for side, a in case.open_actions() if side == "user")
    if "?" in text or due or names_an_action:
        return None
    return "GOAL_DRIFT", "It does nothing about what is still open."


# --- the Corrector -------------------------------------------------------------------------------------------------
def correct(ctx: RoleContext) -> Correction:
    """The next correct step; empty where the visible history offers none."""
    return next_step(Case(ctx)) or Correction(reasoning="")


# --- the Verifier --------------------------------------------------------------------------------------------------
def verify(ctx: RoleContext) -> Verdict:
    """Refuses a correction that tells of hidden material, uses what is not shown, changes the wrong thing, or is the draft."""
    if (refusal := verdicts.at_first_sight(ctx, _HIDDEN)) is not None:
        return refusal
    case, reply = Case(ctx), ctx.correction
    for call in reply.tool_calls:
        if guards.schema_violation(call, ctx.tools) or call.name != TRANSFER and case.missing(call.arguments):
            return verdicts.refuse("wrong_tool_arguments", "An argument is not shown, or does not fit the tool.")
    if _CLAIM.search(reply.content) and not any(d.call.name in case.evidence.agent_writes for d in case.calls):
        return verdicts.refuse("fabricated_tool_result", "Claims what no call has done.")
    return verdicts.unless_the_draft_again(ctx)
