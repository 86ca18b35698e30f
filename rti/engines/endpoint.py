"""A client for an OpenAI-compatible /chat/completions service: intervention roles, user simulators, judges, query writers.

Keeps fault 39 out: the key is read from the environment variable named in the configuration, and never reaches a log, an
exception or a repr, also where the service echoes it. Text in, text out: what comes back is never trained on as a policy's.
Imports neither torch nor Ray.

Why httpx and not the `openai` package, which retries as well: its exceptions carry the service's words unscrubbed and the
request with its Authorization header, it takes any JSON body for a completion, bounds an attempt by the gap between two bytes
instead of as a whole, and knows nothing of what a refusal means for a run. With all that put around it, it would save the one
line that posts, and cost six more packages.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import os
import random
import time
from typing import Any, Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import httpx

from rti.config.schema import EndpointConfig
from rti.engines.base import EngineError, PromptTooLong
from rti.engines.openai_form import ChatReply, MalformedReply, messages_out, reply_in, tools_out
from rti.engines.usage import BOOK, UsageBook
from rti.trajectory import Message, ToolSchema

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Before an attempt is made again: doubling from the first to the longest, with full jitter."""

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context window", "prompt is too long")
_SPENT = "insufficient_quota"       # comes as a 429, but no waiting mends it
_OPTIONAL = ("response_format", "max_tokens", "temperature", "seed")
"""Parameters that some services refuse. One that is refused is left out from then on (max_tokens is renamed)."""


class EndpointError(EngineError):
    """The service is dead, overloaded, or does not speak the protocol, after all retries. The episode is run again."""


class EndpointRefused(RuntimeError):
    """The service is there but will never serve this configuration (a wrong key, address or model): the run stops."""


class _Retry(Exception):
    """One attempt failed in a way that may pass. `wait_s`: what the service asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class _ParameterRefused(Exception):
    """The service does not take a parameter that can be left out."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ChatEndpoint:
    """Safe to call from many tasks of one event loop at once; `config.concurrency` bounds the requests in flight.

    `role` names the counters in `book` (see rti.engines.usage). Raises EndpointRefused where the key or address cannot be used.
    """

    def __init__(self, config: EndpointConfig, role: str = "", *, book: UsageBook = BOOK,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None) -> None:
        self.base_url, self.model, self.role = config.base_url.rstrip("/"), config.model, role
        self._config, self._book, self._sleep, self._rng = config, book, sleep, rng or random.Random()
        self._key = _read_key(config.key_env)
        _check_url(config.base_url)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {}, timeout=config.timeout_s,
            limits=httpx.Limits(max_connections=config.concurrency))
        self._slots = asyncio.Semaphore(config.concurrency)
        self._refused: set[str] = set()

    def __repr__(self) -> str:
        return f"ChatEndpoint({self.base_url!r}, model={self.model!r}, key_env={self._config.key_env!r})"

    async def complete(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, json: bool = False,
                       seed: int | None = None) -> str:
        """The reply's text after its thinking ("" where there is none). As `chat` otherwise."""
        reply = await self.chat(messages, temperature=temperature, max_tokens=max_tokens, json=json, seed=seed)
        return reply.message.content

    async def chat(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, tools: Sequence[ToolSchema] = (),
                   json: bool = False, seed: int | None = None) -> ChatReply:
        """The reply, its tool calls read. `json` asks the service for a JSON object, where the configuration and the service
        allow it. Raises EndpointError, EndpointRefused or PromptTooLong."""
        body: dict[str, Any] = {"model": self.model, "messages": messages_out(messages), "temperature": temperature,
                                "max_tokens": max_tokens}
        if tools:
            body["tools"] = tools_out(tools)
        if json and self._config.json_mode:
            body["response_format"] = {"type": "json_object"}
        if seed is not None:
            body["seed"] = seed % 2 ** 31
        try:
            return await self._until_answered(body)
        except (EngineError, EndpointRefused, PromptTooLong):
            self._book.of(self.role).failures += 1
            raise

    async def close(self) -> None:
        await self._client.aclose()

    # --- attempts ------------------------------------------------------------------------------------------------
    async def _until_answered(self, body: dict[str, Any]) -> ChatReply:
        failures: list[str] = []
        while len(failures) <= self._config.retries:
            try:
                async with self._slots:
                    return await self._attempt(self._allowed(body), again=bool(failures))
            except _ParameterRefused as fault:
                self._leave_out(fault.name)
            except _Retry as fault:
                failures.append(str(fault))
                if len(failures) <= self._config.retries:
                    await self._sleep(self._wait(len(failures) - 1, fault.wait_s))
        raise EndpointError(f"the endpoint {self.base_url} did not answer in {len(failures)} attempts; the last one: "
                            f"{failures[-1]}. Is it up, and is base_url right (it ends in /v1 for most services)?")

    async def _attempt(self, body: dict[str, Any], again: bool) -> ChatReply:
        used = self._book.of(self.role)
        used.requests += 1
        used.retries += again
        limit_s = self._config.timeout_s
        try:
            async with asyncio.timeout(limit_s):        # of the whole attempt: a service may also send a byte now and then
                response = await self._client.post(f"{self.base_url}/chat/completions", json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise _Retry(f"no answer within {limit_s:g} s") from None
        except httpx.TransportError as fault:
            raise _Retry(f"{type(fault).__name__}: {self._clean(str(fault))}") from None
        except httpx.DecodingError:
            raise _Retry("the body is not encoded as its headers say") from None
        if response.status_code != 200:
            self._raise_for(response, body)
        return self._read(response)

    def _read(self, response: httpx.Response) -> ChatReply:
        """A body of another form may be a proxy's page, so the attempt is made again."""
        try:
            reply = reply_in(response.json())
        except ValueError as fault:
            why = str(fault) if isinstance(fault, MalformedReply) else "not JSON"
            raise _Retry(f"status 200, but {why}: {self._clean(response.text)!r}") from None
        used = self._book.of(self.role)
        used.prompt_tokens += reply.prompt_tokens
        used.completion_tokens += reply.completion_tokens
        return reply

    def _raise_for(self, response: httpx.Response, body: dict[str, Any]) -> None:
        status, said = response.status_code, self._clean(response.text)
        if status in _RETRIED and _SPENT not in said:
            raise _Retry(f"status {status}: {said}", _retry_after(response.headers.get("retry-after", "")))
        if status in (401, 403):
            variable = self._config.key_env
            key = f"the key in environment variable {variable}" if variable else "a request without a key (key_env is empty)"
            raise EndpointRefused(f"the endpoint {self.base_url} refused {key} (status {status}): {said}")
        if any(mark in said.lower() for mark in _TOO_LONG):
            raise PromptTooLong(f"the prompt does not fit the context of {self.model} at {self.base_url}: {said}")
        if status in (400, 422, 501) and (name := _blamed(said, body)):
            raise _ParameterRefused(name)
        raise EndpointRefused(f"the endpoint {self.base_url} refused the request for model {self.model!r} (status {status}): "
                              f"{said}. Check base_url and model.")

    # --- parameters that a service does not take ------------------------------------------------------------------
    def _allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        allowed = {k: v for k, v in body.items() if k not in self._refused}
        if "max_tokens" in self._refused:
            allowed["max_completion_tokens"] = body["max_tokens"]       # what newer services call it
        return allowed

    def _leave_out(self, name: str) -> None:
        if name not in self._refused:       # many requests in flight may hear of it at once
            self._refused.add(name)
            log.warning("the endpoint %s (%s) does not take %s: asked without it from now on", self.base_url, self.model, name)

    # --- waiting -------------------------------------------------------------------------------------------------
    def _wait(self, attempt: int, asked_s: float | None) -> float:
        """Full jitter over a doubling backoff; never less than the service asked for, so long as that is bearable."""
        jittered = self._rng.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** attempt))
        return min(LONGEST_WAIT_S, max(jittered, asked_s or 0.0))

    def _clean(self, text: str) -> str:
        """At most 300 characters of what the service said, without the key (services echo parts of a wrong one)."""
        if self._key:
            text = text.replace(self._key, "<key>")
        return " ".join(text.split())[:300]


def _blamed(said: str, body: dict[str, Any]) -> str:
    """The optional parameter that a refusal names; JSON mode where it names none, since few say clearly that they lack it."""
    for name in _OPTIONAL:
        if name in body and name in said:
            return name
    return "response_format" if "response_format" in body else ""


def _read_key(key_env: str) -> str:
    if not key_env:
        return ""
    key = os.environ.get(key_env, "").strip()
    if not key:
        raise EndpointRefused(f"environment variable {key_env} is not set; it must hold the endpoint's key")
    if not (key.isascii() and key.isprintable()):
        raise EndpointRefused(f"environment variable {key_env} holds characters that no key has (a pasted line break?)")
    return key


def _check_url(base_url: str) -> None:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = base_url if "@" not in base_url else "the one given"
        raise EndpointRefused(f"base_url must look like http://host:port/v1, {shown!r} does not")
    if parts.username or parts.password:
        raise EndpointRefused("base_url holds a user name or password; give the key by key_env instead")


def _retry_after(header: str) -> float | None:
    """Seconds from a Retry-After header: a number or a date."""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
