"""The three roles' prompts for the τ²-Bench domains: what all share. A domain's module adds its own words (`Words`).

Keeps invariant 4 by place: the evidence stands in the role's own prompt, under a title that says it is hidden.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rti.envs.tau2.evidence import Evidence, RequiredAction, read
from rti.mas.prompts import blocks
from rti.mas.roles import RoleContext
from rti.trajectory import Message


class Words(NamedTuple):
    """What a domain's prompts say beside the common part."""

    agent: str              # what the agent is, in a clause
    errors: str             # the domain's own grounds of invalidity
    done_by_user: str       # how a user-side action counts as done; "" where users have no tools
    corrector: str          # the domain's own rules for a correction


_VALIDATOR = """\
You review one step of {agent}. You are shown what the agent has seen, the step that it is about to take, and hidden \
reference material that the agent does not have. What counts is whether the task can still end well after this step, not \
whether the step is the one you would take.

How to tell which required actions are done:
- An agent-side action is done when the conversation holds a matching call of the agent whose result is no error.
{done_by_user}\
- All other required actions are open.

The step is invalid when one of these holds:
- FABRICATED_ARGUMENTS: an argument stands nowhere in the conversation and does not follow from it. Values that an earlier \
tool result shows are fine.
- POINTLESS_REPEAT: the same tool with the same arguments has already succeeded, and nothing has changed since.
- FALSE_CLAIM: it tells the user something as found or done that no call has returned.
- PREMATURE_TERMINATION: it closes the conversation, or transfers the user, while required actions are open.
- CONTRADICTORY_ACTION: it goes against what it has just found out, said or done.
- GOAL_DRIFT: it passes over an action that is plainly due and does something unrelated, or nothing at all.
- ARGUMENT_MISMATCH: a call that changes the database has other arguments than the required action fixes.
{errors}

The step is not invalid because it does things in another order that can still be put right, diagnoses or looks things up \
first, tries a failed call again with corrected arguments, or goes another valid way than the reference does."""

_CORRECTOR = """\
You are {agent}, and you write your next step. A draft of it was found wanting; the review says why. You may look at hidden \
reference material to know where this should go, but what you write must follow from the visible conversation alone.

- Write the next step from the conversation, as your natural next thought. Do not continue the draft and do not answer the \
review.
- Keep the manner of the draft: its style, its length, the way it reasons. Change as little as will do.
- Go forward one sensible step at a time.
- Every value must stand in the conversation or follow from it. A wrong argument is replaced by the right value as the \
conversation shows it. What it does not show yet is looked up, or asked for.
- A step that was skipped becomes a question or a confirmation; a claim without ground becomes a check.
- Where no tool of your own is right, `tool_calls` is empty and you write to the user.
{corrector}
- Nobody may be able to tell that you saw more than the conversation: no word of a reference, criteria, an expected answer, a \
review, a draft or an earlier version."""

_VERIFIER = """\
You check a corrected step of {agent}, before it is put in the place of the agent's draft. Visible to the agent are the \
user's words, the tools and the conversation: nothing else. The criteria are hidden from it. You judge whether the corrected \
step could have come from the visible information.

Refuse it only for one of these:
- leak: it names or hints at hidden material, or compares itself with a draft or an earlier version.
- fabricated_tool_result: it uses or tells a value as a tool's that no tool has returned.
- wrong_tool_arguments: an argument contradicts the conversation, or what the user has fixed.
- unreasonable_calibration: it is no sensible next step, is no better than the draft, or takes needless actions.

Do not refuse sensible next steps, confirmations, more caution, an intermediate step, an equivalent wording, a converted \
format or unit, the use of what was said before, a request narrowed to tell things apart, or a task taken in smaller parts."""


class Pack:
    """A prompt pack over one domain's words; its three methods are the module's functions."""

    def __init__(self, words: Words) -> None:
        self._words = words._asdict()

    def validator(self, ctx: RoleContext) -> list[Message]:
        evidence = read(ctx.evidence)
        return blocks.ask_validator(
            _VALIDATOR.format(**self._words), ctx, *_required(evidence), blocks.block("Completion", evidence.completion),
            blocks.block("Evaluation criteria (hidden; for context)", _criteria(evidence)))

    def corrector(self, ctx: RoleContext) -> list[Message]:
        evidence = read(ctx.evidence)
        return blocks.ask_corrector(
            _CORRECTOR.format(**self._words), ctx, *_required(evidence),
            blocks.block("Evaluation criteria (hidden; to compare with; must not show)", _criteria(evidence)))

    def verifier(self, ctx: RoleContext) -> list[Message]:
        evidence = read(ctx.evidence)
        return blocks.ask_verifier(
            _VERIFIER.format(**self._words), ctx, *_required(evidence),
            blocks.block("Evaluation criteria (hidden from the agent)", _criteria(evidence)))


def _required(evidence: Evidence) -> list[str]:
    """The required actions, a block for each side, and which tools belong to whom."""
    found = [blocks.block("Required agent-side actions (hidden)", [_action(a) for a in evidence.agent_actions])]
    if evidence.user_tools:
        found += [blocks.block("Required user-side actions (hidden)", [_action(a) for a in evidence.user_actions]),
                  blocks.block("Whose tools", {"agent": evidence.agent_tools, "user": evidence.user_tools})]
    return found


def _action(action: RequiredAction) -> dict[str, Any]:
    counts = {} if action.compare_args is None else {"arguments_that_count": action.compare_args}
    return {"name": action.name, "arguments": action.arguments, **counts}


def _criteria(evidence: Evidence) -> dict[str, Any]:
    assertions = [{"side": a.side, "check": a.function, "arguments": a.arguments, "must_be": a.value}
                  for a in evidence.assertions]
    found = {"final_state": assertions, "information_to_communicate": evidence.communicate,
             "about_the_conversation": evidence.nl_assertions, "calls_that_change_the_database": evidence.agent_writes}
    return {k: v for k, v in found.items() if v}
