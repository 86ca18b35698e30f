"""ChatEndpoint against a real HTTP server on loopback: what it sends, what it survives, and what it never says."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import asynccontextmanager
from email.utils import formatdate

import pytest
from aiohttp import web

from rti.engines.base import EngineError, PromptTooLong
from rti.engines.endpoint import ChatEndpoint, EndpointError, EndpointRefused
from rti.trajectory import Message, ToolCall

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

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1", asked
    finally:
        await runner.cleanup()


def endpoint(url, waits=None, **kwargs):
    async def sleep(seconds):
        if waits is not None:
            waits.append(seconds)
    return ChatEndpoint(url, "judge", "RTI_TEST_KEY", sleep=sleep, rng=random.Random(0), **kwargs)


async def ask(client, messages=HELLO):
    try:
        return await client.complete(messages, temperature=0.5, max_tokens=7)
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
    assert body["messages"][2] == {"role": "tool", "content": "none", "tool_call_id": "c1"}


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
        assert await ask(endpoint(url, waits, retries=4, max_wait_s=50)) == "at last"
    assert len(asked) == 5
    assert waits[0] == 7 and 20 < waits[1] <= 30 and waits[2] == 50 and 0 <= waits[3] <= 8


async def test_overload_ends_in_an_error_with_the_service_s_words():
    async with serving(lambda _: web.Response(status=503, text="no capacity")) as (url, asked):
        with pytest.raises(EndpointError, match="3 attempts.*503: no capacity"):
            await ask(endpoint(url, retries=2))
    assert len(asked) == 3


async def test_waits_are_jittered_and_grow():
    waits: list[float] = []
    async with serving(lambda _: web.Response(status=500)) as (url, _):
        with pytest.raises(EndpointError):
            await ask(endpoint(url, waits, retries=6, backoff_s=1.0, max_wait_s=8.0))
    assert len(set(waits)) == 6 and all(w <= min(8.0, 2.0 ** i) for i, w in enumerate(waits))


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
        ChatEndpoint("http://127.0.0.1:1/v1", "m", "RTI_ABSENT")
    monkeypatch.setenv("RTI_TEST_KEY", "sk-\nsecret")
    with pytest.raises(EndpointRefused, match="RTI_TEST_KEY holds characters") as fault:
        ChatEndpoint("http://127.0.0.1:1/v1", "m", "RTI_TEST_KEY")
    assert "secret" not in str(fault.value)
    with pytest.raises(EndpointRefused, match="must look like"):
        ChatEndpoint("127.0.0.1:8000/v1", "m")
    with pytest.raises(EndpointRefused, match="by key_env instead") as fault:
        ChatEndpoint("http://me:hunter2@127.0.0.1/v1", "m")
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
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = endpoint(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1", max_concurrency=3)
    replies = await asyncio.gather(*(client.complete(HELLO, temperature=0, max_tokens=1) for _ in range(9)))
    await client.close()
    await runner.cleanup()
    assert replies == ["ok"] * 9 and most == 3
