"""What the Validator, Corrector and Verifier may know of a task: its reference actions, criteria and completion condition.

Keeps invariant 4: this goes into `Task.evidence` alone, never into a message.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rti.envs.tau2.domain import Domain


class RequiredAction(msgspec.Struct, frozen=True, kw_only=True):
    """A reference call. `compare_args`: the arguments that count (None: those that the made call has; []: none)."""

    id: str
    name: str
    arguments: dict[str, Any]
    compare_args: list[str] | None = None
    place: int = 0          # in the reference, both sides together


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    """A check of the final state: `function` of the toolkit of `side` (assistant or user) must return `value`."""

    side: str
    function: str
    arguments: dict[str, Any] = {}
    value: bool = True
    message: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of a τ² task; `Task.evidence` holds it as builtins (`read` gives it back)."""

    domain: str
    agent_actions: list[RequiredAction]     # in the reference's order within the side
    user_actions: list[RequiredAction]      # telecom: what the user does on the device
    assertions: list[Assertion]
    communicate: list[str]                  # what the agent must say
    nl_assertions: list[str]
    reward_basis: list[str]                 # DB, ENV_ASSERTION, ACTION, COMMUNICATE, NL_ASSERTION
    agent_tools: list[str]
    user_tools: list[str]
    agent_writes: list[str]                 # the agent's tools that change the database
    user_writes: list[str]
    completion: str = ""                    # in words: when the task is done


def evidence_of(domain: Domain, task: Any) -> dict[str, Any]:
    """`task`: an official Task."""
    criteria = task.evaluation_criteria
    actions = (criteria.actions or []) if criteria else []
    assertions = (criteria.env_assertions or []) if criteria else []
    return msgspec.to_builtins(Evidence(
        domain=domain.name,
        agent_actions=[_action(a, i) for i, a in enumerate(actions) if a.requestor == "assistant"],
        user_actions=[_action(a, i) for i, a in enumerate(actions) if a.requestor == "user"],
        assertions=[Assertion(side=a.env_type, function=a.func_name, arguments=a.arguments, value=a.assert_value,
                              message=a.message or "") for a in assertions],
        communicate=list(criteria.communicate_info or []) if criteria else [],
        nl_assertions=list(criteria.nl_assertions or []) if criteria else [],
        reward_basis=[b.value for b in criteria.reward_basis] if criteria else [],
        agent_tools=[t.name for t in domain.tools], user_tools=[t.name for t in domain.user_tools],
        agent_writes=sorted(domain.writes), user_writes=sorted(domain.user_writes), completion=_completion(criteria)))


def read(evidence: dict[str, Any]) -> Evidence:
    """`Task.evidence` as the struct."""
    return msgspec.convert(evidence, Evidence)


def _action(action: Any, place: int) -> RequiredAction:
    return RequiredAction(id=action.action_id, name=action.name, arguments=action.arguments, compare_args=action.compare_args,
                          place=place)


_DONE = {
    "ENV_ASSERTION": "every assertion on the final state of device and account holds",
    "ACTION": "every required action was made",
    "DB": "the database is as the required agent-side changes leave it, and nothing else in it was changed",
    "COMMUNICATE": "the agent has told the user every item of the information to communicate",
    "NL_ASSERTION": "every assertion in words about the conversation holds",
}


def _completion(criteria: Any) -> str:
    parts = [_DONE[b.value] for b in criteria.reward_basis if b.value in _DONE] if criteria else []
    return f"Done when {', and '.join([*parts, 'the user ends the conversation'])}."
