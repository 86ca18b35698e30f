"""What the rule-based Verifiers share: words that tell of hidden material, refusals, and what every correction must pass."""

from __future__ import annotations

import re

from rti.mas import guards
from rti.mas.roles import RoleContext, Verdict, call_dict

FINE = Verdict(ok=True, reasons=[], diagnosis="Fine.")


def hidden_words(*own: str) -> re.Pattern[str]:
    """Finds what only somebody who saw hidden material would say; `own`: more such words, of an environment."""
    words = ("ground[ -]truth", "reference (answer|solution)", "evidence", "draft", "earlier version", "validator", "corrector")
    return re.compile(rf"\b({'|'.join((*words, *own))})\b", re.IGNORECASE)


def refuse(reason: str, diagnosis: str) -> Verdict:
    return Verdict(ok=False, reasons=[reason], diagnosis=diagnosis)


def at_first_sight(ctx: RoleContext, hidden: re.Pattern[str]) -> Verdict | None:
    """The refusal of no correction, or of one that tells of hidden material; None where neither is so."""
    reply = ctx.correction
    if reply is None:
        return refuse("unreasonable_calibration", "There is no correction.")
    if hidden.search(f"{reply.reasoning} {reply.content}") or guards.leak(reply, ctx.history, ctx.tools, ctx.evidence):
        return refuse("leak", "Tells of hidden material.")
    return None


def unless_the_draft_again(ctx: RoleContext) -> Verdict:
    """FINE, unless the correction has the calls and the text of the draft."""
    reply, draft = ctx.correction, ctx.draft
    if [call_dict(c) for c in reply.tool_calls] == [call_dict(c) for c in draft.tool_calls] and reply.content == draft.content:
        return refuse("unreasonable_calibration", "Is the draft again.")
    return FINE
