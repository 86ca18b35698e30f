"""ChatEndpoint against a real HTTP server on loopback: what it sends, what it survives, and what it never says."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from email.utils import formatdate

import pytest
from aiohttp import web

from rti.config.schema import EndpointConfig
from rti.engines import endpoint as endpoint_module
from rti.engines.base import EngineError, PromptTooLong
from rti.engines.endpoint import ChatEndpoint, EndpointError, EndpointRefused
from rti.engines.usage import Usage, UsageBook
from rti.trajectory import Message, ToolCall, ToolSchema
from tests.loopback import completions

KEY = "sk-a-secret-of-this-test"
HELLO = [Message(role="user", content="hello")]


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("RTI_TEST_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def _completion(text):
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}}]})


@asynccontextmanager
async def serving(*replies):
    """A server that gives one reply after another (the last one for ever); yields its address and what it was asked."""
    asked = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append((dict(request.headers), await request.json()))
        reply = replies[min(len(asked), len(replies)) - 1]
        return reply(request) if callable(reply) else reply

    async with completions(handle) as url:
        yield url, asked


def endpoint(url, waits=None, *, role="judge", book=None, **config):
    async def sleep(seconds):
        if waits is not None:
            waits.append(seconds)
    config = EndpointConfig(base_url=url, model="judge", **{"key_env": "RTI_TEST_KEY", **config})
    return ChatEndpoint(config, role, book=book or UsageBook(), sleep=sleep, rng=random.Random(0))


async def ask(client, messages=HELLO, **kwargs):
    try:
        return await client.complete(messages, temperature=0.5, max_tokens=7, **kwargs)
    finally:
        await client.close()


async def chat(client, messages=HELLO, **kwargs):
    try:
        return await client.chat(messages, temperature=0.5, max_tokens=7, **kwargs)
    finally:
        await client.close()


async def test_messages_parameters_and_key_are_sent_and_text_comes_back():
    async with serving(_completion("hi")) as (url, asked):
        history = [Message(role="assistant", tool_calls=[ToolCall(name="find", arguments={"q": "é"}, id="c1")]),
                   Message(role="tool", content="none", tool_call_id="c1", name="find")]
        assert await ask(endpoint(url + "/"), HELLO + history) == "hi"
    headers, body = asked[0]
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge", 0.5, 7)
    assert body["messages"][0] == {"role": "user", "content": "hello"}
    assert body["messages"][1]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"q": "é"}'}
    assert body["messages"][1]["content"] is None
    assert body["messages"][2] == {"role": "tool", "content": "none", "tool_call_id": "c1"}
    assert not {"tools", "response_format", "seed"} & set(body)


async def test_a_reply_without_text_is_empty_text():
    async with serving(_completion(None)) as (url, _):
        assert await ask(endpoint(url)) == ""


async def test_a_dead_endpoint_is_an_engine_error_that_names_it(unused_tcp_port):
    waits: list[float] = []
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"
    with pytest.raises(EndpointError, match=f"{url} did not answer in 3 attempts.*ConnectError.*Is it up") as fault:
        await ask(endpoint(url, waits, retries=2))
    assert isinstance(fault.value, EngineError) and len(waits) == 2


async def test_a_silent_endpoint_times_out():
    async def silent(reader, writer):
        await reader.read()
        writer.close()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    with pytest.raises(EndpointError, match="no answer within 0.2 s"):
        await ask(endpoint(url, timeout_s=0.2, retries=0))
    server.close()


async def test_retry_after_is_waited_for_in_seconds_or_as_a_date_and_bounded():
    def busy(after):
        return lambda _: web.json_response({"error": "busy"}, status=429, headers={"Retry-After": after})
    waits: list[float] = []
    date = formatdate(time.time() + 30, usegmt=True)
    async with serving(busy("7"), busy(date), busy("99999"), busy("soon"), lambda _: _completion("at last")) as (url, asked):
        assert await ask(endpoint(url, waits, retries=4)) == "at last"
    assert len(asked) == 5
    assert waits[0] == 7 and 20 < waits[1] <= 30 and waits[2] == endpoint_module.LONGEST_WAIT_S and 0 <= waits[3] <= 8


async def test_overload_ends_in_an_error_with_the_service_s_words():
    async with serving(lambda _: web.Response(status=503, text="no capacity")) as (url, asked):
        with pytest.raises(EndpointError, match="3 attempts.*503: no capacity"):
            await ask(endpoint(url, retries=2))
    assert len(asked) == 3


async def test_waits_are_jittered_and_grow():
    waits: list[float] = []
    async with serving(lambda _: web.Response(status=500)) as (url, _):
        with pytest.raises(EndpointError):
            await ask(endpoint(url, waits, retries=6))
    assert len(set(waits)) == 6 and all(w <= 2.0 ** i for i, w in enumerate(waits)) and max(waits) > 2


async def test_a_wrong_key_is_refused_at_once_naming_only_the_variable(caplog):
    caplog.set_level(logging.DEBUG)

    def deny(request):
        return web.json_response({"error": f"Incorrect API key provided: {request.headers['Authorization']}"}, status=401)
    async with serving(deny) as (url, asked):
        client = endpoint(url)
        with pytest.raises(EndpointRefused, match="refused the key in environment variable RTI_TEST_KEY") as fault:
            await ask(client)
    assert len(asked) == 1 and not isinstance(fault.value, EngineError)
    assert KEY not in str(fault.value) + repr(client) + caplog.text
    assert fault.value.__cause__ is None


@pytest.mark.parametrize("body", ["<html>welcome</html>", "{}", '{"choices": []}', '{"choices": [{"message": "x"}]}', "[1]",
                                  '{"choices": [{"message": {"content": "x", "tool_calls": 3}}]}', '{"choices": [{"mess',
                                  '{"choices": [{"message": {"content": [1]}}]}'])
async def test_a_malformed_body_is_an_engine_error(body):
    async with serving(lambda _: web.Response(text=body)) as (url, asked):
        with pytest.raises(EndpointError, match="status 200, but"):
            await ask(endpoint(url, retries=1))
    assert len(asked) == 2


async def test_a_passing_malformed_body_is_survived():
    async with serving(web.Response(text="gateway page"), _completion("fine")) as (url, _):
        assert await ask(endpoint(url)) == "fine"


async def test_an_unknown_model_and_a_prompt_beyond_the_context_are_told_apart():
    async with serving(lambda _: web.Response(status=404, text="no model judge")) as (url, _):
        with pytest.raises(EndpointRefused, match="'judge'.*404.*no model judge.*Check base_url and model"):
            await ask(endpoint(url))
    too_long = {"error": {"code": "context_length_exceeded", "message": "too many tokens"}}
    async with serving(lambda _: web.json_response(too_long, status=400)) as (url, _):
        with pytest.raises(PromptTooLong, match="context of judge"):
            await ask(endpoint(url))


async def test_a_missing_or_broken_key_and_a_bad_address_are_refused_before_anything_is_sent(monkeypatch):
    with pytest.raises(EndpointRefused, match="RTI_ABSENT is not set"):
        endpoint("http://127.0.0.1:1/v1", key_env="RTI_ABSENT")
    monkeypatch.setenv("RTI_TEST_KEY", "sk-\nsecret")
    with pytest.raises(EndpointRefused, match="RTI_TEST_KEY holds characters") as fault:
        endpoint("http://127.0.0.1:1/v1")
    assert "secret" not in str(fault.value)
    with pytest.raises(EndpointRefused, match="must look like"):
        endpoint("127.0.0.1:8000/v1", key_env="")
    with pytest.raises(EndpointRefused, match="by key_env instead") as fault:
        endpoint("http://me:hunter2@127.0.0.1/v1", key_env="")
    assert "hunter2" not in str(fault.value)


async def test_requests_in_flight_are_bounded():
    now, most = 0, 0

    async def handle(request):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return _completion("ok")
    async with completions(handle) as url:
        client = endpoint(url, concurrency=3)
        replies = await asyncio.gather(*(client.complete(HELLO, temperature=0, max_tokens=1) for _ in range(9)))
        await client.close()
    assert replies == ["ok"] * 9 and most == 3


# --- faults of the network and the service -----------------------------------------------------------------------
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_status_that_may_pass_is_tried_again(status):
    async with serving(web.Response(status=status), _completion("now")) as (url, asked):
        assert await ask(endpoint(url, retries=1)) == "now"
    assert len(asked) == 2


@pytest.mark.parametrize("status", [301, 400, 404, 405, 413])
async def test_a_status_that_will_not_pass_is_refused_at_once(status):
    async with serving(lambda _: web.Response(status=status, text="no")) as (url, asked):
        with pytest.raises(EndpointRefused, match=f"status {status}"):
            await ask(endpoint(url))
    assert len(asked) == 1


async def test_a_spent_quota_is_a_refusal_though_it_comes_as_a_429():
    spent = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}
    async with serving(lambda _: web.json_response(spent, status=429)) as (url, asked):
        with pytest.raises(EndpointRefused, match="exceeded your current quota"):
            await ask(endpoint(url))
    assert len(asked) == 1


@asynccontextmanager
async def raw(*answers):
    """A server below HTTP: writes the bytes of one answer after another, and closes the connection where they end."""
    count = 0

    async def handle(reader, writer):
        nonlocal count
        await reader.readuntil(b"\r\n\r\n")
        answer = answers[min(count, len(answers) - 1)]
        count += 1
        for part in answer if isinstance(answer, list) else [answer]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


OK = (b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 48\r\n\r\n'
      b'{"choices": [{"message": {"content": "whole"}}]}')


@pytest.mark.parametrize("broken", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{\"choices\"", b"not http at all\r\n",
                                    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"])
async def test_a_connection_that_breaks_off_is_tried_again(broken):
    async with raw(broken, OK) as url:
        assert await ask(endpoint(url, retries=1)) == "whole"


async def test_a_service_that_drips_is_bounded_by_the_time_of_the_whole_attempt():
    drip = [b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", *[b" "] * 200]
    async with raw(drip) as url:
        with pytest.raises(EndpointError, match="no answer within 0.3 s"):
            await ask(endpoint(url, timeout_s=0.3, retries=0))


async def test_the_callers_own_time_limit_is_not_taken_for_the_services(unused_tcp_port):
    async with raw([b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 200]) as url:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(endpoint(url, timeout_s=30))


# --- parameters that not every service takes ---------------------------------------------------------------------
async def test_json_mode_is_asked_for_where_an_answer_must_be_json_and_the_configuration_allows_it():
    async with serving(lambda _: _completion("{}")) as (url, asked):
        await ask(endpoint(url), json=True, seed=2 ** 62 + 5)
        await ask(endpoint(url, json_mode=False), json=True)
    assert asked[0][1]["response_format"] == {"type": "json_object"} and asked[0][1]["seed"] == 5
    assert "response_format" not in asked[1][1]


@pytest.mark.parametrize("said", ["response_format is not supported", "Bad Request", "'messages' must contain the word 'json'"])
async def test_a_service_that_refuses_json_mode_is_asked_without_from_then_on(said, caplog):
    def picky(request):
        refuse = "response_format" in asked[-1][1]
        return web.json_response({"error": {"message": said}}, status=400) if refuse else _completion("{}")
    async with serving(picky) as (url, asked):
        client = endpoint(url, retries=0)
        replies = [await client.complete(HELLO, temperature=0, max_tokens=5, json=True) for _ in range(2)]
        await client.close()
    assert replies == ["{}", "{}"]
    assert ["response_format" in body for _, body in asked] == [True, False, False]
    assert caplog.text.count("does not take response_format") == 1


async def test_max_tokens_goes_under_its_newer_name_and_a_fixed_temperature_is_left_out():
    def modern(request):
        body = asked[-1][1]
        for name, hint in (("max_tokens", "Use 'max_completion_tokens' instead."), ("temperature", "Only 1 is supported.")):
            if name in body:
                return web.json_response({"error": {"message": f"Unsupported parameter: '{name}'. {hint}"}}, status=400)
        return _completion("fine")
    async with serving(modern) as (url, asked):
        assert await ask(endpoint(url, retries=0)) == "fine"
    assert asked[-1][1]["max_completion_tokens"] == 7 and len(asked) == 3


async def test_a_refusal_that_stays_without_json_mode_is_a_refusal():
    async with serving(lambda _: web.Response(status=400, text="no")) as (url, asked):
        with pytest.raises(EndpointRefused, match="status 400.*: no"):
            await ask(endpoint(url), json=True)
    assert len(asked) == 2


# --- tools, thinking, usage --------------------------------------------------------------------------------------
FIND = ToolSchema(name="find", description="Finds.", parameters={"type": "object", "properties": {"q": {"type": "string"}}})


async def test_tools_are_offered_and_calls_come_back_read():
    calls = [{"id": "x1", "type": "function", "function": {"name": "find", "arguments": '{"q": "Köln"}'}},
             {"type": "function", "function": {"name": "find", "arguments": ""}},
             {"id": "x3", "type": "function", "function": {"name": "find", "arguments": '{"q": '}}, "nonsense"]
    reply = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    async with serving(web.json_response(reply)) as (url, asked):
        got = await chat(endpoint(url), tools=[FIND])
    assert asked[0][1]["tools"] == [{"type": "function", "function": {
        "name": "find", "description": "Finds.", "parameters": FIND.parameters}}]
    assert got.finish_reason == "tool_calls" and got.message.content == ""
    first, second, third, fourth = got.message.tool_calls
    assert first == ToolCall(name="find", arguments={"q": "Köln"}, id="x1")
    assert second == ToolCall(name="find", id="call_1")
    assert "not valid JSON" in third.error and fourth.error


async def test_calls_without_ids_are_answered_by_order():
    history = [Message(role="assistant", tool_calls=[ToolCall(name="find"), ToolCall(name="find")]),
               Message(role="tool", content="a"), Message(role="tool", content="b")]
    async with serving(_completion("ok")) as (url, asked):
        await ask(endpoint(url), HELLO + history)
    turn, *answers = asked[0][1]["messages"][1:]
    assert [c["id"] for c in turn["tool_calls"]] == [a["tool_call_id"] for a in answers] == ["call_1_0", "call_1_1"]


@pytest.mark.parametrize("message, reasoning, content", [
    ({"content": "<think>\n{no}\n</think>\n\n{\"a\": 1}"}, "{no}", '{"a": 1}'),
    ({"content": "yes", "reasoning_content": "hm"}, "hm", "yes"), ({"content": "yes", "reasoning": "hm"}, "hm", "yes"),
    ({"content": " as it is "}, "", " as it is "),
])
async def test_thinking_is_kept_apart_from_what_is_said(message, reasoning, content):
    async with serving(lambda _: web.json_response({"choices": [{"message": message}]})) as (url, _):
        reply = await chat(endpoint(url))
    assert (reply.message.reasoning, reply.message.content) == (reasoning, content)


async def test_usage_is_counted_by_role():
    counted = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}
    book = UsageBook()
    async with serving(web.Response(status=503), web.json_response(counted), _completion("no usage told"),
                       lambda _: web.Response(status=404)) as (url, _):
        for role in ("user", "judge"):
            await ask(endpoint(url, role=role, book=book))
        with pytest.raises(EndpointRefused):
            await ask(endpoint(url, role="judge", book=book))
    assert book.take() == {"user": Usage(requests=2, retries=1, prompt_tokens=11, completion_tokens=3),
                           "judge": Usage(requests=2, failures=1)}
    assert book.take() == {}


def test_the_client_needs_neither_torch_nor_ray_nor_transformers():
    code = ("import sys\nfor name in ('torch', 'ray', 'transformers'): sys.modules[name] = None\n"
            "import rti.engines.endpoint, rti.mas.players, rti.envs.navigation.writer")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
