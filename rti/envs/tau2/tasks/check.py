"""Whether training tasks can be solved and must be: the official evaluator judges two conversations about each.

Keeps: what is judged is made by the official tools over the task's own database, and judged by the official evaluator; the
evaluator replays it in worlds of the same database, which it gets through the official registry.
"""

from __future__ import annotations

from typing import Any

from rti.envs.tau2 import official
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.tasks.effects import blank_world
from rti.envs.tau2.user import STOP

GREETING, ASK = "Hi! How can I help you today?", "I need your help."


def problem_of(domain: Domain, task: Any) -> str:
    """What is wrong with a task; empty where its reference scores 1 and a conversation without any call scores 0."""
    reference = official_reward(domain, task, conversation(domain, task, solve=True))
    if reference != 1.0:
        return f"its reference scores {reference:g}"
    nothing = official_reward(domain, task, conversation(domain, task, solve=False))
    return f"doing nothing scores {nothing:g}" if nothing else ""


def conversation(domain: Domain, task: Any, solve: bool) -> list[Any]:
    """Official messages: the user asks, the agent runs the reference actions and tells what it must (`solve`), or does
    nothing, the user stops."""
    m = official.load().message
    said = [m.AssistantMessage(role="assistant", content=GREETING), m.UserMessage(role="user", content=ASK)]
    if solve:
        world, makers = domain.world(task), {"assistant": m.AssistantMessage, "user": m.UserMessage}
        for n, action in enumerate(task.evaluation_criteria.actions or []):
            call = m.ToolCall(id=f"call_{n}", name=action.name, arguments=action.arguments, requestor=action.requestor)
            said += [makers[action.requestor](role=action.requestor, content=None, tool_calls=[call]), world.call(call)]
            world.sync()
    told = ", ".join(task.evaluation_criteria.communicate_info or []) if solve else ""
    return [*said, m.AssistantMessage(role="assistant", content=f"That is all. {told}"),
            m.UserMessage(role="user", content=STOP)]


def official_reward(domain: Domain, task: Any, messages: list[Any]) -> float:
    """The official evaluator's reward of a conversation that the user ended."""
    o = official.load()
    run = o.simulation.SimulationRun(id="check", task_id=task.id, start_time="", end_time="", duration=0.0,
                                     termination_reason=o.simulation.TerminationReason.USER_STOP, messages=messages)
    info = o.evaluator.evaluate_simulation(simulation=run, task=task, evaluation_type=o.evaluator.EvaluationType.ALL,
                                           solo_mode=False, domain=_registered(domain))
    return info.reward


def _registered(domain: Domain) -> str:
    """The official registry's name for the worlds of `domain`."""
    registry, name = official.member("registry.registry"), f"rti-{domain.name}-{id(domain)}"
    if name not in registry.get_domains():
        registry.register_domain(lambda solo_mode=False: blank_world(domain).environment, name)
    return name
