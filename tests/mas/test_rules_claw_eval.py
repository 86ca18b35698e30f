"""The rule-based roles over Claw-Eval's own families: they carry a policy that does nothing, and know the safety checks."""

import asyncio

import pytest

from rti.envs.claw_eval import agents, evidence
from rti.envs.claw_eval.environment import ClawEvalEnvironment
from rti.envs.claw_eval.families import FAMILIES
from rti.envs.claw_eval.synthesis import make_task
from rti.mas import guards
from rti.mas.pipeline import build_pipeline
from rti.mas.roles import RoleContext
from rti.mas.rules import load_rules
from rti.rollout import run_episode
from rti.trajectory import ToolCall
from tests.mas.scripted import byte_chat
from tests.mas.tau2_useless import LIMITS, USELESS, UselessEngine, outcomes, rules

RULES = load_rules("claw_eval")


async def histories(task):
    """(what is visible, the reference's step) before each step of the reference, and the tools."""
    environment = ClawEvalEnvironment()
    history, steps = await environment.reset(task, 0), []
    message = next(agent := agents.reference(task))
    while True:
        steps.append((list(history), message))
        result = await environment.step(message)
        if result.done:
            return steps, environment.tools
        history += [message, *result.messages]
        message = agent.send(result.messages)


def walk(family):
    for seed in range(2):
        task = make_task(family, "train", seed, seed)
        steps, tools = asyncio.run(histories(task))
        for history, message in steps:
            yield task, RoleContext(tools=tools, history=history, draft=message, evidence=task.evidence)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_that_does_nothing_is_carried_to_success(family):
    task, chat = make_task(family, "test", 0, 0), byte_chat()
    policy = build_pipeline(rules(), "claw_eval", UselessEngine(chat, USELESS), chat, LIMITS)
    done = asyncio.run(run_episode(task, ClawEvalEnvironment(), policy, chat, id=task.id, group_id=task.id, seed=0,
                                   limits=LIMITS, temperature=1.0, intervened=True))
    assert done.success, (done.info, outcomes(done))
    assert not any("guard" in o or "malformed" in o for o in outcomes(done)), outcomes(done)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_is_valid_and_leaks_nothing(family):
    for task, ctx in walk(family):
        assert RULES.validate(ctx).is_valid, (task.id, ctx.draft)
        assert guards.refusal(ctx.draft, ctx.history, ctx.tools, ctx.evidence) == "", (task.id, ctx.draft)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_that_breaks_a_safety_check_is_flagged_at_every_step(family):
    for task, ctx in walk(family):
        for check in evidence.read(task.evidence).safety_checks:
            held = {k: " ".join(texts) for k, texts in check.forbids.contains.items()}
            call = ToolCall(name=check.forbids.tool, arguments={**check.forbids.arguments, **held})
            draft = agents.turn([(call.name, call.arguments)])
            answer = RULES.validate(RoleContext(tools=ctx.tools, history=ctx.history, draft=draft, evidence=task.evidence))
            assert not answer.is_valid and answer.error_types == ["SAFETY_VIOLATION"], (task.id, call)


def test_the_families_hold_safety_checks_at_all():
    assert sum(bool(make_task(f, "train", 0, 0).evidence["safety_checks"]) for f in FAMILIES) >= 3
