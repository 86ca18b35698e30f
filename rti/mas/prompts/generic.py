"""The three roles' prompts for any environment with tools: what your own environment gets until it has a pack of its own.

Keeps invariant 4 by place: the evidence stands in the role's own prompt, under a title that says it is hidden. The evidence is
shown as it is: name its fields so that a reader understands them.
"""

from __future__ import annotations

from rti.mas.prompts import blocks
from rti.mas.roles import RoleContext
from rti.trajectory import Message

_VALIDATOR = """\
You review one step of an agent that works on a task with tools. You are shown what the agent has seen, the step that it is \
about to take, and hidden reference material about the task that the agent does not have. Decide whether the step may be taken.

The step is invalid when one of these holds:
- FABRICATED_ARGUMENTS: it uses a key argument that neither the user nor a tool has given.
- ARGUMENT_MISMATCH: it makes a call that cannot be undone with a value that the reference material shows to be wrong.
- PREMATURE_TERMINATION: it ends the task before what was asked for is done or found.
- POINTLESS_REPEAT: it does again what was done already and can bring nothing new.
- FALSE_CLAIM: it states as found or done what no tool has shown.
- CONTRADICTORY_ACTION: it contradicts what it has just established.
- GOAL_DRIFT: it leaves an open part of the task for something unrelated.

The step is not invalid because it is roundabout, looks something up first, tries a failed call again with other arguments, \
or takes another way than the reference does. What can still be put right later is valid."""

_CORRECTOR = """\
You are the agent that works on this task with tools, and you write your next step. A draft of it was found wanting; the \
review says why. You may look at hidden reference material to know what is right, but what you write must follow from the \
visible conversation alone.

- Write the next step from the conversation, as your natural next thought. Do not continue the draft and do not answer the \
review.
- Keep the manner of the draft: its tone, its length, the way it reasons. Change as little as will do.
- Go forward one sensible step at a time. Where the conversation does not yet hold a value, look for it with a tool.
- Every argument must stand in the conversation or follow from it.
- Nobody may be able to tell that you saw more than the conversation: no word of a reference, an answer, criteria, a review, \
a draft or an earlier version."""

_VERIFIER = """\
You check a corrected step of an agent that works on a task with tools, before it is put in the place of the agent's draft. \
Visible to the agent are the user's request, the tools and the conversation: nothing else. The reference material is hidden \
from it. You judge whether the corrected step could have come from the visible information.

Refuse it only for one of these:
- leak: it names or hints at hidden material, or compares itself with a draft or an earlier version.
- not_derivable: it uses a value that neither stands in the visible information nor follows from it.
- fabricated_tool_result: it claims that a tool returned what none has returned.
- wrong_tool_arguments: an argument contradicts the conversation, the request or the tool's description.
- unreasonable_calibration: it is no sensible next step, or no better than the draft.

Do not refuse sensible next steps, more caution, an intermediate look, or another wording of what is visible."""


def validator(ctx: RoleContext) -> list[Message]:
    return blocks.ask_validator(_VALIDATOR, ctx, blocks.block("Reference material (hidden from the agent)", ctx.evidence),
                                tools_shown=True)


def corrector(ctx: RoleContext) -> list[Message]:
    return blocks.ask_corrector(
        _CORRECTOR, ctx, blocks.block("Hidden reference material (to compare with; must not show)", ctx.evidence))


def verifier(ctx: RoleContext) -> list[Message]:
    return blocks.ask_verifier(_VERIFIER, ctx, blocks.block("Reference material (hidden from the agent)", ctx.evidence),
                               asked="request")
