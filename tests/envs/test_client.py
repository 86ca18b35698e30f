"""The client: error classes, retries on a fake clock, rate limit, cache, recording, and a key that is never seen."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import socket
import traceback

import pytest
from aiohttp import web

from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.envs.navigation.client import AgentMistake, HttpTransport, Kind, MapClient, TransportError, classify, sign
from rti.envs.navigation.recording import Recorder, Recording, identity
from tests.loopback import serving

KEY = "k3y-that-must-never-be-seen"
TEXT = "/v5/place/text"
OK = {"status": "1", "info": "OK", "infocode": "10000", "pois": []}


def refused(code, info="SOME_INFO"):
    return {"status": "0", "info": info, "infocode": code}


class Scripted:
    """Answers one after another (the last one for ever); an exception among them is raised."""

    def __init__(self, *answers):
        self.answers, self.asked = answers, []

    async def get(self, path, params):
        self.asked.append((path, dict(params)))
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self):
        return None


class Clock:
    """Time moves only by sleeping."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def make(transport, clock=None, **options):
    clock = clock or Clock()
    return MapClient(transport, KEY, clock=clock, sleep=clock.sleep, rng=random.Random(0), **options)


@pytest.mark.parametrize("kind, codes", [
    (Kind.RETRY, "10004 10014 10015 10016 10017 10019 10020 10021 20003 30000 32000 77777"),
    (Kind.EXHAUSTED, "10003 10010 10029 10044 10045 40000 40002 40003"),
    (Kind.FATAL, "10001 10002 10005 10006 10007 10008 10009 10011 10012 10013 10026 10041"),
    (Kind.AGENT, "20000 20001 20002 20011 20012 20800 20801 20802 20803"),
])
def test_infocodes_are_classed_as_the_notes_say(kind, codes):
    assert {classify(refused(c)) for c in codes.split()} == {kind}
    assert classify(OK) is Kind.OK and classify({}) is Kind.RETRY


async def test_a_busy_service_is_asked_again_with_growing_jittered_pauses():
    clock, transport = Clock(), Scripted(refused("10020"), TransportError("HTTP status 502"), refused("30001"), OK)
    assert await make(transport, clock).request(TEXT, {"keywords": "a"}) == OK
    assert len(transport.asked) == 4 and len(clock.slept) == 3
    for pause, base in zip(clock.slept, (0.5, 1.0, 2.0)):
        assert 0.5 * base <= pause <= 1.5 * base
    assert len(set(clock.slept)) == 3


async def test_a_limit_per_minute_is_waited_out():
    clock = Clock()
    await make(Scripted(refused("10004"), OK), clock).request(TEXT, {"keywords": "a"})
    assert 30 <= clock.slept[0] <= 90


async def test_retries_end_in_a_fault_of_the_environment():
    transport = Scripted(refused("10020", "CUQPS_HAS_EXCEEDED_THE_LIMIT"))
    with pytest.raises(EnvironmentFault, match="failed 5 times at /v5/place/text: 10020 CUQPS"):
        await make(transport).request(TEXT, {"keywords": "a"})
    assert len(transport.asked) == 5


@pytest.mark.parametrize("code, error, says", [
    ("10003", EnvironmentFault, "quota is used up"), ("10001", FatalEnvironmentError, "check the key"),
    ("10007", FatalEnvironmentError, "signature"), ("20801", AgentMistake, "no road"),
    ("20000", AgentMistake, "invalid parameters"),
])
async def test_what_cannot_get_better_is_not_retried(code, error, says):
    transport = Scripted(refused(code))
    with pytest.raises(error, match=says):
        await make(transport).request(TEXT, {"keywords": "a"})
    assert len(transport.asked) == 1


async def test_answers_and_the_agents_mistakes_are_cached_faults_are_not():
    transport = Scripted(OK)
    client = make(transport)
    a = {"location": "114.300000,30.5", "radius": "5"}
    for written in ("114.300000,30.5", "114.3,30.50"):
        assert await client.request("/v5/place/around", {**a, "location": written}) == OK
    assert len(transport.asked) == 1
    transport = Scripted(refused("20800"))
    client = make(transport)
    for _ in range(2):
        with pytest.raises(AgentMistake):
            await client.request(TEXT, {"keywords": "b"})
    assert len(transport.asked) == 1
    client = make(Scripted(refused("10003"), OK))
    with pytest.raises(EnvironmentFault):
        await client.request(TEXT, {"keywords": "c"})
    assert await client.request(TEXT, {"keywords": "c"}) == OK


async def test_the_cache_is_bounded_and_forgets_the_least_used():
    transport = Scripted(OK)
    client = make(transport, cache_size=2)
    for keywords in ("a", "b", "a", "c", "a", "b"):
        await client.request(TEXT, {"keywords": keywords})
    assert [p["keywords"] for _, p in transport.asked] == ["a", "b", "c", "b"]


async def test_equal_requests_in_flight_share_one_call_also_when_a_caller_gives_up():
    gate = asyncio.Event()

    class Slow(Scripted):
        async def get(self, path, params):
            await gate.wait()
            return await super().get(path, params)

    transport = Slow(OK)
    client = make(transport)
    callers = [asyncio.ensure_future(client.request(TEXT, {"keywords": "a"})) for _ in range(8)]
    await asyncio.sleep(0)
    callers[0].cancel()
    gate.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError) and results[1:] == [OK] * 7
    assert len(transport.asked) == 1


async def test_the_rate_limit_spaces_requests_per_service():
    clock, times = Clock(), []

    class Timed(Scripted):
        async def get(self, path, params):
            times.append((path.split("/")[2], clock.now))
            return await super().get(path, params)

    client = make(Timed(OK), clock, requests_per_second=4)
    for i in range(5):
        await client.request(TEXT, {"keywords": str(i)})
    await client.request("/v5/direction/driving", {"origin": "a"})
    assert [t for s, t in times if s == "place"] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert [t for s, t in times if s == "direction"] == pytest.approx([1.0])


def test_the_signature_is_the_md5_of_sorted_pairs_and_private_key():
    expected = hashlib.md5("a=1&b=深圳&key=KKprivate".encode()).hexdigest()
    assert sign({"b": "深圳", "key": "KK", "a": "1"}, "private") == expected


async def test_a_signed_request_carries_its_signature():
    transport = Scripted(OK)
    await make(transport, private_key="private").request(TEXT, {"keywords": "a"})
    assert transport.asked[0][1]["sig"] == sign({"keywords": "a", "key": KEY}, "private")


def test_a_requests_identity_has_no_secrets_and_normal_coordinates():
    params = {"key": KEY, "sig": "s", "callback": "c", "waypoints": "114.30,30.5;115.0,31", "origin": "bad", "b": "2", "a": "1"}
    assert identity("/p", params) == "/p?a=1&b=2&origin=bad&waypoints=114.3,30.5;115,31"


async def test_what_was_recorded_is_replayed_and_a_miss_stops_the_run(tmp_path):
    path = tmp_path / "sub" / "r.jsonl"
    live = make(Scripted({**OK, "pois": [{"name": "武汉"}]}, refused("20800"), refused("10003")), recorder=Recorder(path))
    first = await live.request(TEXT, {"keywords": "a"})
    with pytest.raises(AgentMistake) as mistake:
        await live.request(TEXT, {"keywords": "b"})
    with pytest.raises(EnvironmentFault):
        await live.request(TEXT, {"keywords": "c"})
    replay = MapClient(None, "", recording=Recording(path))
    assert await replay.request(TEXT, {"keywords": "a"}) == first
    with pytest.raises(AgentMistake, match=str(mistake.value)):
        await replay.request(TEXT, {"keywords": "b"})
    with pytest.raises(FatalEnvironmentError, match=r"\(2 replies\) has no reply to /v5/place/text\?keywords=c"):
        await replay.request(TEXT, {"keywords": "c"})
    assert KEY not in path.read_text()


def test_an_absent_or_damaged_recording_says_so(tmp_path):
    with pytest.raises(FatalEnvironmentError, match="cannot read the recording"):
        Recording(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text(json.dumps({"request": "r", "reply": OK}) + '\n{"request": "r2", "re')
    with pytest.raises(FatalEnvironmentError, match="line 2 of the recording"):
        Recording(tmp_path / "bad.jsonl")


def test_a_client_without_transport_or_recording_is_refused():
    with pytest.raises(ValueError, match="transport or a recording"):
        MapClient(None, KEY)


def closed_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def fail_in_every_way():
    """(what, exception) of each way a request over HTTP can fail; servers echo the address, and so the key."""
    async def status(request):
        return web.Response(status=500, text=str(request.url))

    async def page(request):
        return web.Response(text=f"<html>{request.url}</html>", content_type="text/html")

    async def array(request):
        return web.json_response([str(request.url)])

    async def refusal(request):
        return web.json_response(refused("10001", f"INVALID {request.query['key']}"))

    async def cut_off(request):
        request.transport.close()
        return web.Response()

    for handler in (status, page, array, refusal, cut_off):
        async with serving(handler) as url:
            yield handler.__name__, await failure_of(url)
    yield "dead", await failure_of(f"http://127.0.0.1:{closed_port()}")


async def failure_of(url, clock=None):
    client = make(HttpTransport(url), clock)
    try:
        with pytest.raises((EnvironmentFault, FatalEnvironmentError)) as caught:
            await client.request(TEXT, {"keywords": "a"})
        return caught.value
    finally:
        await client.close()


async def test_the_key_is_in_no_exception_and_no_log_however_the_service_fails(caplog):
    caplog.set_level(logging.DEBUG)
    seen = []
    async for what, error in fail_in_every_way():
        seen.append(what)
        text = "".join(traceback.format_exception(error)) + repr(error) + str(error)
        assert KEY not in text, what
    assert seen == ["status", "page", "array", "refusal", "cut_off", "dead"]
    assert KEY not in caplog.text


async def test_a_dead_service_names_the_kind_of_failure_and_the_host():
    error = await failure_of(f"http://127.0.0.1:{closed_port()}")
    assert isinstance(error, EnvironmentFault) and "ClientConnectorError from 127.0.0.1" in str(error)


async def test_the_key_is_sent_and_shown_by_no_repr():
    asked = []

    async def handle(request):
        asked.append(request.query["key"])
        return web.json_response(OK)

    async with serving(handle) as url:
        client = make(HttpTransport(url))
        assert await client.request(TEXT, {"keywords": "a"}) == OK
        await client.close()
    assert asked == [KEY] and KEY not in repr(client)


@pytest.mark.parametrize("url", ["", "restapi.amap.com", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(FatalEnvironmentError, match="base_url"):
        HttpTransport(url)
