"""The official tasks of a checkout: which run, that doing nothing passes none, and that episodes share nothing.

Marked `official`: skipped where CLAW_EVAL_HOME names no checkout.
"""

import asyncio
import os
from pathlib import Path

import pytest

from rti.config.load import load
from rti.envs import load_task_set
from rti.envs.claw_eval.official import VARIABLE, list_tasks
from rti.trajectory import Message, ToolCall

pytestmark = [pytest.mark.official,
              pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no official Claw-Eval checkout")]

EPISODES = 64


@pytest.fixture(scope="module")
def tasks():
    """The task set without a judge."""
    return load_task_set(load("lab.yaml", ["env.name=claw_eval", "env.claw_eval.tasks=official"]).env)


def test_without_a_judge_the_tasks_that_need_none_are_there_and_none_is_for_training(tasks):
    expected = [t.id for t in list_tasks() if not t.reason and not t.judged]
    assert [t.id for t in tasks.test] == expected and expected
    assert list(tasks.train) == []


def test_the_stub_judge_brings_the_judged_tasks_in():
    words = ["env.name=claw_eval", f"env.claw_eval.home={os.environ[VARIABLE]}", "env.claw_eval.judged_by=rules"]
    judged = load_task_set(load("lab.yaml", words).env)
    assert [t.id for t in judged.test] == [t.id for t in list_tasks() if not t.reason]


async def test_doing_nothing_passes_no_task_and_is_stamped_as_unjudged(tasks):
    for task in tasks.test:
        environment = tasks.make()
        await environment.reset(task, 0)
        assert (await environment.step(Message(role="assistant", content="All is done."))).done
        outcome = await environment.outcome()
        await environment.close()
        assert not outcome.success and outcome.reward == 0.0, task.id
        assert outcome.info["judge"] == "none" and outcome.info["tool_calls"] == 0
        assert 0 <= outcome.info["task_score"] < 0.75


async def test_episodes_at_once_share_nothing(tasks):
    """Each makes its own number of calls, all at once; each audit holds just those."""
    task = next(t for t in tasks.test if _listing(tasks, t))

    async def episode(number):
        environment = tasks.make()
        await environment.reset(task, number)
        name = _listing(tasks, task)
        for i in range(number % 4):
            call = ToolCall(name=name, arguments={}, id=f"{number}-{i}")
            await environment.step(Message(role="assistant", tool_calls=[call]))
            await asyncio.sleep(0)
        calls = [len(audit.get("calls", [])) for _, _, audit in await environment._services.audits()]
        await environment.close()
        return sum(calls)

    found = await asyncio.gather(*(episode(n) for n in range(EPISODES)))
    assert found == [n % 4 for n in range(EPISODES)]


async def test_a_trace_is_one_that_the_official_loader_reads(tmp_path):
    words = ["env.name=claw_eval", "env.claw_eval.tasks=official", f"env.claw_eval.traces={tmp_path}"]
    tasks = load_task_set(load("lab.yaml", words).env)
    environment = tasks.make()
    await environment.reset(tasks.test[0], 3)
    await environment.step(Message(role="assistant", content="All is done."))
    await environment.outcome()
    await environment.close()
    [trace] = Path(tmp_path).glob("*.jsonl")
    from claw_eval.trace.reader import load_trace
    start = load_trace(trace)[0]
    assert start.task_id == tasks.test[0].id


def _listing(tasks, task):
    """A tool of the task that takes no required argument, "" where there is none."""
    definition = tasks.modules.task.TaskDefinition.from_yaml(tasks.home / "tasks" / task.data["folder"] / "task.yaml")
    return next((t.name for t in definition.tools if not t.input_schema.get("required") and "list" in t.name), "")
