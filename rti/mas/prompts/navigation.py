"""The three roles' prompts for navigation, written for language models. The lab policy's are in navigation_compact.py.

Keeps invariant 4 by place: the evidence stands in the role's own prompt, under a title that says it is hidden.
"""

from __future__ import annotations

from typing import Any

from rti.mas.prompts import blocks
from rti.mas.roles import RoleContext
from rti.trajectory import Message

_ORDER = {
    0: "all places may be visited in any order, start and end included",
    1: "the start is fixed, the other places may be visited in any order",
    2: "the end is fixed, the other places may be visited in any order",
    3: "start and end are fixed, the places between may be visited in any order",
    4: "the order is exactly as given",
}

_VALIDATOR = """\
You review one step of an agent that plans a trip with map tools. The agent finds the coordinates of every place with \
searches, then makes one direction call, which ends the task and cannot be taken back. You are shown what the agent \
has seen, the step that it is about to take, and hidden reference material that the agent does not have. Decide \
whether the step may be taken.

The step is invalid when one of these holds:
- FABRICATED_ARGUMENTS: it uses a coordinate or another key argument that neither the user nor a tool has given.
- PREMATURE_TERMINATION: it calls direction, or closes the conversation, before the coordinates of all places the user \
means were returned by a tool.
- ARGUMENT_MISMATCH: it makes a critical call that cannot be undone with a wrong value, above all a direction call to \
a place of the same name elsewhere, or in an order that the user ruled out.
- POINTLESS_REPEAT: it makes the same search twice in one turn, or one that has already been answered, or clings to \
one that has clearly failed.
- FALSE_CLAIM: it states something as found that no call returned.
- CONTRADICTORY_ACTION: it contradicts what it has just established.
- GOAL_DRIFT: it leaves an obviously open part of the task for something unrelated.

The step is not invalid because it is roundabout, looks things up first, searches in parallel, tries a failed call \
again with other arguments, or takes another way than the reference does. The reference is there to compare with: by \
itself it is never a reason. What can still be put right later is valid."""

_CORRECTOR = """\
You are the agent that plans this trip with map tools, and you write your next step. A draft of it was found wanting; \
the review says why. You may look at hidden reference material to know what is right, but what you write must follow \
from the visible conversation alone.

- Write the next step from the conversation, as your natural next thought. Do not continue the draft and do not answer \
the review.
- Keep the manner of the draft: its tone, its length, the way it reasons. Change as little as will do.
- Go forward one sensible step at a time. Never leap to a result that the conversation does not yet hold.
- Every argument must stand in the conversation or follow from it. Take a right coordinate from the tool reply that \
returned it. If no reply has returned it yet, search for it: with the region of the other places, or around one of \
them.
- Search for all places that are still missing in one turn, with one call each.
- When every place has been found, call direction with the places in an order that the user allows.
- Nobody may be able to tell that you saw more than the conversation: no word of a reference, an answer, criteria, a \
review, a draft or an earlier version."""

_VERIFIER = """\
You check a corrected step of an agent that plans a trip with map tools, before it is put in the place of the agent's \
draft. Visible to the agent are the user's question, the tools and the conversation: nothing else. The reference \
material is hidden from it. You judge whether the corrected step could have come from the visible information.

Refuse it only for one of these:
- leak: it names or hints at hidden material, or compares itself with a draft or an earlier version.
- not_derivable: it uses a value (a coordinate, a region, a name) that neither stands in the visible information nor \
follows from it.
- fabricated_tool_result: it claims that a tool returned what none has returned.
- wrong_tool_arguments: an argument contradicts the conversation or what the user fixed.
- unreasonable_calibration: it is no sensible next step, is no better than the draft, or takes needless actions.

Do not refuse sensible next steps, more caution, an intermediate search, another wording or format of what is visible, \
a search narrowed to a region that the conversation shows, or a task taken in smaller parts."""


def validator(ctx: RoleContext) -> list[Message]:
    return blocks.ask_validator(
        _VALIDATOR, ctx, blocks.block("Required actions (hidden from the agent)", _required(ctx.evidence)),
        blocks.block("Completion", "Done when one direction call with the right places in an allowed order has succeeded."))


def corrector(ctx: RoleContext) -> list[Message]:
    return blocks.ask_corrector(
        _CORRECTOR, ctx, blocks.block("Hidden reference material (to compare with; must not show)", _required(ctx.evidence)))


def verifier(ctx: RoleContext) -> list[Message]:
    return blocks.ask_verifier(
        _VERIFIER, ctx, blocks.block("Reference material (hidden from the agent)", _required(ctx.evidence)))


def _required(evidence: dict[str, Any]) -> dict[str, Any]:
    """The evidence as required actions: which coordinates must be collected, and the direction call that must come last."""
    level = evidence.get("order_level")
    stops = [f"{s['name']}, {s['province']} {s['location']}" for s in evidence.get("stops", [])]
    return {
        "collect_coordinates_of": stops, "then_direction": evidence.get("reference", {}),
        "order_level": level, "order": _ORDER.get(level, _ORDER[4]),
    }
