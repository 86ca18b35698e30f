"""The user as a language model, and the judge, over a real HTTP server on loopback that answers by script.

What users hit: a model that never stops, that speaks as the agent, that calls unknown tools or says nothing, a dead service, a
wrong key.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from rti.actors.services import check_services, connect  # noqa: E402
from rti.config.keys import ConfigError  # noqa: E402
from rti.config.schema import Config, EndpointConfig, RolloutConfig, Tau2Config  # noqa: E402
from rti.config.validate import validate  # noqa: E402
from rti.engines.endpoint import EndpointError, EndpointRefused  # noqa: E402
from rti.envs.base import EnvironmentFault, FatalEnvironmentError  # noqa: E402
from rti.envs.tau2 import official  # noqa: E402
from rti.envs.tau2.domain import load_domain  # noqa: E402
from rti.envs.tau2.judge import Judge  # noqa: E402
from rti.envs.tau2.simulator import system_prompt  # noqa: E402
from rti.envs.tau2.taskset import Tau2TaskSet, rti_task  # noqa: E402
from rti.rollout import run_episode  # noqa: E402
from rti.trajectory import Ending, Message  # noqa: E402
from tests.envs.tau2_pairs import domain  # noqa: E402
from tests.loopback import completions  # noqa: E402


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("RTI_TEST_KEY", "sk-a-secret")


def text(words):
    return {"role": "assistant", "content": words}


def calls(*names, arguments="{}"):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": arguments}} for i, n in enumerate(names)]}


@asynccontextmanager
async def serving(*messages, status=200):
    """A service that gives one message after another, the last one for ever; yields its address and what it was asked."""
    asked = []

    async def handle(request):
        asked.append(await request.json())
        if status != 200:
            return web.json_response({"error": {"message": "no such key"}}, status=status)
        return web.json_response({"choices": [{"message": messages[min(len(asked), len(messages)) - 1]}]})

    async with completions(handle) as url:
        yield url, asked


def settings(url, name="telecom", **more):
    endpoint = EndpointConfig(base_url=url, model="user-model", retries=0, timeout_s=30)
    return Tau2Config(domain=name, user_endpoint=endpoint, **more)


@asynccontextmanager
async def episode(url, name="telecom", **more):
    tasks = Tau2TaskSet(settings(url, name, **more), connect)
    environment = tasks.make()
    try:
        yield environment, tasks.test[0]
    finally:
        await environment.close()
        await tasks.close()


def say(words):
    return Message(role="assistant", content=words)


async def test_the_model_gets_the_official_prompt_its_tools_and_the_history_from_its_side():
    async with serving(text("My phone is dead."), calls("check_status_bar"), text("No signal. ###STOP###")) as (url, asked):
        async with episode(url) as (env, task):
            prompt = await env.reset(task, 7)
            assert [m.role for m in prompt] == ["system", "assistant", "user"] and prompt[2].content == "My phone is dead."
            result = await env.step(say("What do you see?"))
            assert result.done and result.messages[-1].content == "No signal. ###STOP###"
            outcome = await env.outcome()
    simulator = official.load().user.UserSimulator(
        tools=[], instructions=str(domain("telecom").tasks("base")[0].user_scenario), llm="x")
    assert asked[0]["messages"][0] == {"role": "system", "content": simulator.system_prompt}
    assert len(asked[0]["tools"]) == 30
    assert [m["role"] for m in asked[2]["messages"]] == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert asked[2]["messages"][-1]["content"].startswith("Status Bar: ")
    assert asked[2]["messages"][-1]["tool_call_id"] == asked[2]["messages"][-2]["tool_calls"][0]["id"] == "c0"
    assert outcome.info["termination"] == "user_stop" and outcome.info["user_tool_calls"] == 1
    criteria = json.dumps(task.evidence["agent_actions"])
    assert criteria not in json.dumps(asked)


def test_the_prompt_is_the_official_one_with_the_guidelines_for_tools_where_the_user_has_some(tmp_path):
    for name, tools in (("retail", None), ("telecom", [])):
        d = load_domain(name)
        task = d.tasks("base")[0]
        official_user = official.load().user.UserSimulator(tools=tools, instructions=str(task.user_scenario), llm="x")
        assert system_prompt(d.data, task, tools is not None) == official_user.system_prompt
        assert system_prompt(tmp_path, task, tools is not None) == official_user.system_prompt      # data without guidelines
    (tmp_path / "user_simulator").mkdir()
    (tmp_path / "user_simulator" / "simulation_guidelines.md").write_text("Be brief.<PERSONA_GUIDELINES>", encoding="utf-8")
    assert system_prompt(tmp_path, task, False).startswith("Be brief.\n\n<scenario>")


async def test_a_model_that_never_stops_meets_the_turn_limit_and_gets_no_reward():
    async with serving(text("Go on.")) as (url, _), episode(url, max_turns=5) as (env, task):
        await env.reset(task, 0)
        for _ in range(env.max_turns):
            assert not (await env.step(say("And now?"))).done
        outcome = await env.outcome()
        assert (outcome.reward, outcome.info["termination"], outcome.info["turns"]) == (0.0, "max_steps", 5)


async def test_a_model_that_speaks_as_the_agent_is_counted():
    async with serving(text("Hi! How can I help you today?"), text("Bye ###STOP###")) as (url, _), episode(url) as (env, task):
        await env.reset(task, 0)
        await env.step(say("Hello?"))
        assert (await env.outcome()).info["user_as_agent"] == 1


@pytest.mark.parametrize("name", ["telecom", "retail"])
async def test_unknown_tools_and_tools_that_a_user_has_not_are_answered_by_the_official_error(name):
    async with serving(calls("fly", "check_status_bar", arguments='{"x": 1}'), text("Oh. ###STOP###")) as (url, asked):
        async with episode(url, name) as (env, task):
            await env.reset(task, 0)
            assert [m["content"][:6] for m in asked[1]["messages"] if m["role"] == "tool"] == ["Error:"] * 2
            assert (await env.step(say("Hello?"))).done      # the user has ended it before the agent spoke
            assert (await env.outcome()).info["user_tool_errors"] == 2


async def test_arguments_that_are_no_json_are_answered_with_the_reason():
    async with serving(calls("check_status_bar", arguments="{oops"), text("Oh.")) as (url, asked), episode(url) as (env, task):
        await env.reset(task, 0)
        assert asked[1]["messages"][-1]["content"].startswith("Error: Tool 'check_status_bar (")


async def test_empty_replies_are_drawn_again_then_a_fault_of_the_environment():
    async with serving(text(""), text(" "), text("Here I am.")) as (url, asked), episode(url) as (env, task):
        assert (await env.reset(task, 0))[2].content == "Here I am."
        assert len({a["seed"] for a in asked}) == 3
    async with serving(text("")) as (url, _), episode(url) as (env, task):
        with pytest.raises(EnvironmentFault, match="3 empty replies.*user_max_tokens"):
            await env.reset(task, 0)


class Silent:
    """An agent that is never asked."""

    async def act(self, ctx):
        raise AssertionError("the agent was asked")


async def test_a_dead_service_is_the_infrastructure_s_fault_and_never_a_reward(unused_tcp_port):
    tasks = Tau2TaskSet(settings(f"http://127.0.0.1:{unused_tcp_port}/v1"), connect)
    lost = await run_episode(tasks.test[0], tasks.make(), Silent(), None, id="e", group_id="g", seed=1, limits=RolloutConfig(),
                             temperature=1.0)
    await tasks.close()
    assert lost.ending == Ending.INFRASTRUCTURE and not lost.ending.is_agents and not lost.samples
    assert "did not answer" in lost.info["fault"]


def config_with(url, key_env=""):
    config = Config()
    config.env.name, config.env.tau2 = "tau2", settings(url)
    config.env.tau2.user_endpoint.key_env = key_env
    return config


async def test_a_wrong_key_or_a_dead_service_is_said_before_anything_starts(unused_tcp_port):
    async with serving(status=401) as (url, _):
        with pytest.raises(EndpointRefused, match="RTI_TEST_KEY") as refused:
            await asyncio.to_thread(check_services, config_with(url, "RTI_TEST_KEY"))
        assert "sk-a-secret" not in str(refused.value)
    with pytest.raises(EndpointRefused, match="RTI_NO_SUCH_KEY is not set"):
        await asyncio.to_thread(check_services, config_with(url, "RTI_NO_SUCH_KEY"))
    with pytest.raises(EndpointError, match="Is it up"):
        await asyncio.to_thread(check_services, config_with(f"http://127.0.0.1:{unused_tcp_port}/v1"))
    async with serving(text("Yes.")) as (url, asked):
        await asyncio.to_thread(check_services, config_with(url, "RTI_TEST_KEY"))
        assert len(asked) == 1
    check_services(Config())        # another environment asks nobody


def test_a_configuration_without_an_endpoint_is_refused_with_both_ways_out():
    with pytest.raises(ConfigError, match="env.tau2.user_endpoint.base_url.*scripted"):
        validate(config_with(""))
    with pytest.raises(FatalEnvironmentError, match="env.tau2.user_endpoint.*env.tau2.user=scripted"):
        Tau2TaskSet(settings(""), connect)


# --- the judge ---------------------------------------------------------------------------------------------------
def verdicts(*met):
    return text("```json\n" + json.dumps({"results": [
        {"expectedOutcome": f"outcome {i}", "reasoning": "so", "metExpectation": m} for i, m in enumerate(met)]}) + "\n```")


def with_assertions(name="retail"):
    d, kinds = domain(name), official.load().tasks.RewardType
    task = d.tasks("base")[0].model_copy(deep=True)
    task.evaluation_criteria.reward_basis = [kinds.DB, kinds.NL_ASSERTION]
    task.evaluation_criteria.nl_assertions = ["The agent is polite.", "The agent says goodbye."]
    return task


async def judged(url, task, messages):
    service = connect(EndpointConfig(base_url=url, model="judge", retries=0), "judge")
    try:
        return await Judge(service).check(messages, task.evaluation_criteria.nl_assertions)
    finally:
        await service.close()


async def test_the_judge_is_asked_what_the_official_judge_is_asked_and_read_alike(monkeypatch):
    task, o = with_assertions(), official.load()
    messages = [o.message.AssistantMessage(role="assistant", content="Good day."),
                o.message.UserMessage(role="user", content="Bye")]
    asked_there = []

    def generate(model, messages, **_):
        asked_there.extend({"role": m.role, "content": m.content} for m in messages)
        return o.message.AssistantMessage(role="assistant", content=json.dumps({"results": [
            {"expectedOutcome": f"outcome {i}", "reasoning": "so", "metExpectation": not i} for i in range(2)]}))

    monkeypatch.setattr(o.nl, "generate", generate)
    theirs = o.nl.NLAssertionsEvaluator.calculate_reward(task=task, full_trajectory=messages)
    async with serving(verdicts(True, False)) as (url, asked):
        checks = await judged(url, task, messages)
    assert asked[0]["messages"] == asked_there
    assert [c.model_dump() for c in checks] == [c.model_dump() for c in theirs.nl_assertions] and theirs.reward == 0.0


async def test_an_unreadable_verdict_is_asked_for_again_and_then_a_fault():
    task = with_assertions()
    async with serving(text("They did well."), verdicts(True), verdicts(True, True)) as (url, asked):
        assert [c.met for c in await judged(url, task, [])] == [True, True] and len(asked) == 3
    async with serving(text("They did well.")) as (url, _):
        with pytest.raises(EnvironmentFault, match="env.tau2.judge"):
            await judged(url, task, [])


async def test_a_task_that_needs_a_judge_says_so_where_there_is_none():
    from rti.envs.tau2 import reward
    d, task = domain("retail"), with_assertions()
    with pytest.raises(FatalEnvironmentError, match="env.tau2.nl_assertions=skip"):
        await reward.evaluate(d, task, [], d.world(task), "user_stop", None)
    assert "NL_ASSERTION" in rti_task(d, task).evidence["reward_basis"]
