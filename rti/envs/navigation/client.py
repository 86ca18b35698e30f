"""One asynchronous client of the Amap web service, real or offline: rate limit, retries by error class, cache, recording.

Keeps: the key leaves this object only in a request. No exception, log line, cache key or recording holds it; exceptions of the
HTTP library (they carry the address, and so the key) are never chained. Clock, sleep and random stream are injected.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import json
import random
import time
from collections import OrderedDict
from typing import Any, Awaitable, Callable, Mapping, Protocol
from urllib.parse import urlsplit

import aiohttp

from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.envs.navigation.offline import OfflineService
from rti.envs.navigation.recording import Recorder, Recording, identity

REAL_SERVICE = "https://restapi.amap.com"
Reply = dict[str, Any]


class AgentMistake(Exception):
    """The service refused the request for what the agent asked. The text is the agent's observation."""


class TransportError(Exception):
    """No usable reply came. Its text names the kind of failure and the host, never a whole address."""


class Kind(enum.Enum):
    """What to do about an infocode."""

    OK = "ok"
    RETRY = "back off and retry"
    EXHAUSTED = "stop until topped up"
    FATAL = "wrong configuration"
    AGENT = "the agent's mistake"


_RETRY = frozenset("10004 10014 10015 10016 10017 10019 10020 10021 20003".split())
_EXHAUSTED = frozenset("10003 10010 10029 10044 10045 40000 40002 40003".split())
_FATAL = frozenset("10001 10002 10005 10006 10007 10008 10009 10011 10012 10013 10026 10041".split())
_AGENT = frozenset("20000 20001 20002 20011 20012 20800 20801 20802 20803".split())

AGENT_MESSAGES = {
    "20000": "invalid parameters", "20001": "a required parameter is missing", "20002": "illegal request",
    "20011": "a coordinate is outside China", "20012": "the request holds illegal content",
    "20800": "the place is out of service",
    "20801": "no road is near a coordinate", "20802": "no route was found",
    "20803": "the places are too far apart for this mode",
}


def classify(reply: Mapping[str, Any]) -> Kind:
    """The class of a reply. An unknown code is retried a few times, as a fault of the service."""
    code = str(reply.get("infocode", ""))
    if str(reply.get("status")) == "1":
        return Kind.OK
    if code in _EXHAUSTED:
        return Kind.EXHAUSTED
    if code in _FATAL:
        return Kind.FATAL
    return Kind.AGENT if code in _AGENT else Kind.RETRY


def sign(params: Mapping[str, str], private_key: str) -> str:
    """The `sig` parameter: md5 of the sorted k=v pairs, not URL-encoded, with the private key appended."""
    text = "&".join(f"{k}={params[k]}" for k in sorted(params))
    return hashlib.md5((text + private_key).encode()).hexdigest()


class Transport(Protocol):
    async def get(self, path: str, params: Mapping[str, str]) -> Reply: ...

    async def close(self) -> None: ...


class HttpTransport:
    """GET over HTTP. The session is made on first use, in the loop that uses it."""

    def __init__(self, base_url: str, timeout_s: float = 20.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FatalEnvironmentError("env.navigation.base_url is not an address; mend: http://HOST:PORT, or leave it empty")
        self.base_url, self._host = base_url.rstrip("/"), parts.hostname
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, params: Mapping[str, str]) -> Reply:
        if self._session is None:
            proxied = self._host not in ("127.0.0.1", "localhost", "::1")
            self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=proxied)
        problem = ""
        try:
            async with self._session.get(self.base_url + path, params=params) as response:
                body = await response.read()
                if response.status >= 400:
                    problem = f"HTTP status {response.status}"
                else:
                    reply = json.loads(body)
                    if isinstance(reply, dict):
                        return reply
                    problem = "a reply that is not a JSON object"
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as e:
            problem = type(e).__name__      # the text of these exceptions may hold the address with the key
        raise TransportError(f"{problem} from {self._host}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class InProcessTransport:
    """The offline service without HTTP: for data building and tests, where only speed differs."""

    def __init__(self, service: OfflineService) -> None:
        self._service = service

    async def get(self, path: str, params: Mapping[str, str]) -> Reply:
        return self._service.answer(path, params)

    async def close(self) -> None:
        return None


class RateLimit:
    """Spaces requests evenly, one stream a service (the first two parts of the path). 0 a second: no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._interval = 1.0 / per_second if per_second > 0 else 0.0
        self._clock, self._sleep = clock, sleep
        self._next: dict[str, float] = {}

    async def wait(self, path: str) -> None:
        if not self._interval:
            return
        service = "/".join(path.split("/")[:3])
        now = self._clock()
        at = max(now, self._next.get(service, now))
        self._next[service] = at + self._interval
        if at > now:
            await self._sleep(at - now)


class MapClient:
    """Requests by path and parameters. Safe for any number of concurrent callers; equal requests in flight share one call."""

    def __init__(self, transport: Transport | None, key: str, *, requests_per_second: float = 0.0, attempts: int = 5,
                 backoff_s: float = 0.5, cache_size: int = 20_000, recorder: Recorder | None = None,
                 recording: Recording | None = None, private_key: str = "", clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None) -> None:
        if transport is None and recording is None:
            raise ValueError("a client needs a transport or a recording")
        self._transport, self._key, self._private_key = transport, key, private_key
        self._limit = RateLimit(requests_per_second, clock, sleep)
        self._attempts, self._backoff_s, self._sleep = attempts, backoff_s, sleep
        self._rng = rng or random.Random()
        self._cache: OrderedDict[str, Reply] = OrderedDict()
        self._cache_size = cache_size
        self._in_flight: dict[str, asyncio.Task[Reply]] = {}
        self._recorder, self._recording = recorder, recording
        self.requests_sent = 0

    async def request(self, path: str, params: Mapping[str, str]) -> Reply:
        """A successful reply. Raises AgentMistake, EnvironmentFault or FatalEnvironmentError."""
        name = identity(path, params)
        if self._recording is not None:
            return self._checked(self._recording.find(name))
        reply = self._cache.get(name)
        if reply is not None:
            self._cache.move_to_end(name)
            return self._checked(reply)
        task = self._in_flight.get(name)
        if task is None:
            task = asyncio.ensure_future(self._fetch(name, path, params))
            self._in_flight[name] = task
            task.add_done_callback(lambda done: self._landed(name, done))
        # Shielded: a caller that is cancelled does not take the reply away from the others.
        return self._checked(await asyncio.shield(task))

    def _landed(self, name: str, task: asyncio.Task[Reply]) -> None:
        self._in_flight.pop(name, None)
        if not task.cancelled():
            task.exception()    # marks it as seen, where every caller was cancelled

    async def _fetch(self, name: str, path: str, params: Mapping[str, str]) -> Reply:
        """One reply of class OK or AGENT, cached and recorded; else an exception."""
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                await self._sleep(self._delay(attempt, problem))
            await self._limit.wait(path)
            self.requests_sent += 1
            try:
                reply = await self._transport.get(path, self._with_secrets(params))
            except TransportError as e:
                problem = str(e)
                continue
            kind = classify(reply)
            if kind in (Kind.OK, Kind.AGENT):
                self._remember(name, reply)
                return reply
            problem = self._describe(reply)
            if kind is Kind.FATAL:
                raise FatalEnvironmentError(f"the map service refuses this configuration: {problem}; mend: check the key, its "
                                            f"service permissions and its signature setting")
            if kind is Kind.EXHAUSTED:
                raise EnvironmentFault(f"the map service's quota is used up: {problem}; mend: wait until midnight, top up, or "
                                       f"replay a recording")
        raise EnvironmentFault(f"the map service failed {self._attempts} times at {path}: {problem}")

    def _delay(self, attempt: int, problem: str) -> float:
        """Exponential with jitter; a per-minute limit (10004) clears only with the next minute."""
        base = 60.0 if problem.startswith("10004") else min(30.0, self._backoff_s * 2 ** (attempt - 1))
        return base * self._rng.uniform(0.5, 1.5)

    def _with_secrets(self, params: Mapping[str, str]) -> dict[str, str]:
        full = {**params, "key": self._key}
        if self._private_key:
            full["sig"] = sign(full, self._private_key)
        return full

    def _describe(self, reply: Mapping[str, Any]) -> str:
        text = f"{reply.get('infocode', 'no infocode')} {reply.get('info', '')}"
        for secret in (self._key, self._private_key):
            text = text.replace(secret, "***") if secret else text
        return text[:200]

    def _remember(self, name: str, reply: Reply) -> None:
        self._cache[name] = reply
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        if self._recorder is not None:
            self._recorder.add(name, reply)

    @staticmethod
    def _checked(reply: Reply) -> Reply:
        if classify(reply) is Kind.OK:
            return reply
        code = str(reply.get("infocode", ""))
        raise AgentMistake(AGENT_MESSAGES.get(code, f"the service refused the request ({code})"))

    async def close(self) -> None:
        for task in list(self._in_flight.values()):
            task.cancel()
        if self._transport is not None:
            await self._transport.close()
