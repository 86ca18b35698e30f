"""The three roles' prompts in the few words that a lab policy of a few million parameters reads.

A role prompt is the visible history as it stands, then one user message: what to do, the places meant (privileged), the
draft. So the role sees the same tokens as the rollout and its answer is a turn like any other. The pack for language models
is navigation.py.
"""

from __future__ import annotations

from typing import Any

from rti.chat.lab import turn_text
from rti.mas.roles import RoleContext
from rti.trajectory import Message


def validator(ctx: RoleContext) -> list[Message]:
    return _ask(ctx, f"Validate.\n{_meant(ctx.evidence)}\nDraft: {turn_text(ctx.draft)}")


def corrector(ctx: RoleContext) -> list[Message]:
    feedback = ctx.validation.diagnosis if ctx.validation else ""
    return _ask(ctx, f"Correct.\n{_meant(ctx.evidence)}\nDraft: {turn_text(ctx.draft)}\n{feedback}")


def verifier(ctx: RoleContext) -> list[Message]:
    corrected = turn_text(ctx.correction) if ctx.correction else ""
    return _ask(ctx, f"Verify.\n{_meant(ctx.evidence)}\nDraft: {turn_text(ctx.draft)}\nCorrected: {corrected}")


def _ask(ctx: RoleContext, text: str) -> list[Message]:
    return [*ctx.history, Message(role="user", content=text)]


def _meant(evidence: dict[str, Any]) -> str:
    """The places that the task means, one a line, written as a search shows them."""
    return "\n".join(f"{s['name']}, {s['province']} {s['location']}" for s in evidence["stops"])
