"""What tool calls change in a domain's database, found by running them in the official tools in a world of their own.

Keeps: the shared database is never touched; the official tools decide what a call does and whether it fails.
"""

from __future__ import annotations

import copy
from typing import Iterable

from rti.envs.tau2 import official
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.tasks.goal import Call
from rti.envs.tau2.world import State, World

Effect = frozenset[tuple[tuple[str, str, str], str | None]]
"""The records that differ from the domain's own (see rti.envs.tau2.world.State), as a set."""
NOTHING: Effect = frozenset()


class CallFailed(ValueError):
    """A call of the agent that the official tools refuse."""


def effect_of(domain: Domain, calls: Iterable[Call]) -> Effect:
    """What calls of the agent change, in their order. Raises CallFailed at the first that is answered by an error."""
    world, make = blank_world(domain), official.load().message.ToolCall
    for n, call in enumerate(calls):
        answer = world.call(make(id=f"call_{n}", name=call.name, arguments=copy.deepcopy(dict(call.arguments)),
                                 requestor="assistant"))
        if answer.error:
            raise CallFailed(f"{call.name}: {answer.content}")
    return as_set(world.state())


def as_set(state: State) -> Effect:
    return frozenset(state.items())


def blank_world(domain: Domain) -> World:
    """A world as the domain's own database begins."""
    return domain.world(official.load().tasks.Task.model_validate(
        {"id": "blank", "user_scenario": {"instructions": ""}, "evaluation_criteria": None}))
