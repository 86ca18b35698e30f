"""The judge over a real HTTP service: what it says arrives, and a judge that is dead or babbles is a fault, never a mark."""

import asyncio
import json

import pytest
from aiohttp import web

from rti.actors.services import connect
from rti.config.schema import EndpointConfig
from rti.envs.base import FatalEnvironmentError
from rti.envs.claw_eval.judge import ATTEMPTS, JudgeFailed, RuleJudge, UnreadableAnswer, judge_of
from tests.loopback import completions

SYSTEM = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "the work\n## Rubric\nthe total is 420"}]


class Plain:
    """In the place of the official LLMJudge, whose client is all that these tests use."""


async def ask(answers, messages=SYSTEM):
    """(text of the judge's answer, requests made) where the service gives `answers`, the last one over and over."""
    seen = []

    async def handle(request):
        seen.append(await request.json())
        text = answers[min(len(seen), len(answers)) - 1]
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                                  "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    async with completions(handle) as url:
        chat = connect(EndpointConfig(base_url=url, model="judge-1", retries=0), "judge")
        grader = judge_of("endpoint", chat, "judge-1").for_grader(Plain)
        try:
            reply = await asyncio.to_thread(grader.client.chat.completions.create, messages=messages)
            return reply.choices[0].message.content, seen
        finally:
            await chat.close()


GOOD = json.dumps({"score": 0.7, "reasoning": "most of it"})


async def test_an_answer_reaches_the_grader_as_it_was_given(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    text, seen = await ask([GOOD])
    assert text == GOOD and len(seen) == 1
    assert seen[0]["model"] == "judge-1" and seen[0]["messages"][1]["content"] == SYSTEM[1]["content"]


async def test_an_unreadable_answer_is_asked_for_again(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    text, seen = await ask(["I like it", json.dumps({"score": "high", "reasoning": "?"}), GOOD])
    assert text == GOOD and len(seen) == 3


async def test_a_judge_that_never_answers_in_form_is_a_fault_that_graders_cannot_swallow(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(JudgeFailed, match=f"no answer of {ATTEMPTS} can be read") as failed:
        await ask(["no"])
    assert isinstance(failed.value.fault, UnreadableAnswer) and not isinstance(failed.value, Exception)


async def test_a_dead_judge_is_a_fault(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    chat = connect(EndpointConfig(base_url="http://127.0.0.1:9/v1", model="m", retries=0), "judge")
    grader = judge_of("endpoint", chat).for_grader(Plain)
    with pytest.raises(JudgeFailed, match="did not answer"):
        await asyncio.to_thread(grader.client.chat.completions.create, messages=SYSTEM)
    await chat.close()


def test_the_stub_counts_the_rubrics_words_and_is_made_only_by_its_name():
    judge = judge_of("rules", None)
    create = judge.for_grader(Plain).client.chat.completions.create
    mark = json.loads(create(messages=[{"role": "user", "content": "420 in all\n## Rubric\nthe total is 420"}])
                      .choices[0].message.content)
    assert isinstance(judge, RuleJudge) and judge.kind == "rules" and mark["score"] == 0.5      # 420 of {total, 420}
    assert judge_of("endpoint", None) is None
    with pytest.raises(FatalEnvironmentError, match="no judge 'coin'"):
        judge_of("coin", None)
