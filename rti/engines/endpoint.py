"""A client for an OpenAI-compatible /chat/completions service: for the intervention roles that another model plays.

Keeps fault 39 out: the key is read from the environment variable named in the configuration, and never reaches a log, an
exception or a repr, also where the service echoes it. Text in, text out: what comes back is never trained on as a policy's.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import time
from typing import Any, Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import httpx

from rti.engines.base import EngineError, PromptTooLong
from rti.trajectory import Message

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_TOO_LONG = ("context_length_exceeded", "maximum context length", "context window", "prompt is too long")


class EndpointError(EngineError):
    """The service is dead, overloaded, or does not speak the protocol, after all retries. The episode is run again."""


class EndpointRefused(RuntimeError):
    """The service is there but will never serve this configuration (a wrong key, address or model): the run stops."""


class _Retry(Exception):
    """One attempt failed in a way that may pass. `wait_s`: what the service asked for."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class ChatEndpoint:
    """`complete` is safe to call from many tasks at once; `max_concurrency` bounds the requests in flight."""

    def __init__(self, base_url: str, model: str, key_env: str = "", *, timeout_s: float = 120.0, retries: int = 4,
                 max_concurrency: int = 32, backoff_s: float = 1.0, max_wait_s: float = 60.0,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None) -> None:
        self.base_url, self.model, self.key_env = base_url.rstrip("/"), model, key_env
        self._timeout_s, self._retries = timeout_s, retries
        self._backoff_s, self._max_wait_s = backoff_s, max_wait_s
        self._sleep, self._rng = sleep, rng or random.Random()
        self._key = _read_key(key_env)
        _check_url(base_url)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)))
        self._slots = asyncio.Semaphore(max_concurrency)

    def __repr__(self) -> str:
        return f"ChatEndpoint({self.base_url!r}, model={self.model!r}, key_env={self.key_env!r})"

    async def complete(self, messages: Sequence[Message], *, temperature: float, max_tokens: int) -> str:
        """The reply's text ("" where the service gave none). Raises EndpointError, EndpointRefused or PromptTooLong."""
        body = {"model": self.model, "messages": [_to_openai(m) for m in messages], "temperature": temperature,
                "max_tokens": max_tokens}
        failures: list[str] = []
        for attempt in range(self._retries + 1):
            try:
                async with self._slots:
                    return await self._attempt(body)
            except _Retry as fault:
                failures.append(str(fault))
                if attempt < self._retries:
                    await self._sleep(self._wait(attempt, fault.wait_s))
        raise EndpointError(f"the endpoint {self.base_url} did not answer in {len(failures)} attempts; the last one: "
                            f"{failures[-1]}. Is it up, and is base_url right (it ends in /v1 for most services)?")

    async def close(self) -> None:
        await self._client.aclose()

    async def _attempt(self, body: dict[str, Any]) -> str:
        try:
            response = await self._client.post(f"{self.base_url}/chat/completions", json=body)
        except httpx.TimeoutException as fault:
            raise _Retry(f"no answer within {self._timeout_s:g} s ({type(fault).__name__})") from None
        except httpx.TransportError as fault:
            raise _Retry(f"{type(fault).__name__}: {self._clean(str(fault))}") from None
        if response.status_code != 200:
            self._raise_for(response)
        return self._text_of(response)

    def _raise_for(self, response: httpx.Response) -> None:
        status, said = response.status_code, self._clean(response.text)
        if status in _RETRIED:
            raise _Retry(f"status {status}: {said}", _retry_after(response.headers.get("retry-after", "")))
        if status in (401, 403):
            key = (f"the key in environment variable {self.key_env}" if self.key_env
                   else "a request without a key (key_env is empty)")
            raise EndpointRefused(f"the endpoint {self.base_url} refused {key} (status {status}): {said}")
        if any(mark in said.lower() for mark in _TOO_LONG):
            raise PromptTooLong(f"the prompt does not fit the context of {self.model} at {self.base_url}: {said}")
        raise EndpointRefused(f"the endpoint {self.base_url} refused the request for model {self.model!r} (status {status}): "
                              f"{said}. Check base_url and model.")

    def _text_of(self, response: httpx.Response) -> str:
        """The first choice's content. A body of another form may be a proxy's page, so the attempt is made again."""
        try:
            content = response.json()["choices"][0]["message"].get("content")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise _Retry(f"status 200, but not a chat completion: {self._clean(response.text)!r}") from None
        if content is not None and not isinstance(content, str):
            raise _Retry(f"status 200, but the content is a {type(content).__name__}, not text")
        return content or ""

    def _wait(self, attempt: int, asked_s: float | None) -> float:
        """Full jitter over a doubling backoff; never less than the service asked for, so long as that is bearable."""
        jittered = self._rng.uniform(0, min(self._max_wait_s, self._backoff_s * 2 ** attempt))
        return min(self._max_wait_s, max(jittered, asked_s or 0.0))

    def _clean(self, text: str) -> str:
        """At most 300 characters of what the service said, without the key (services echo parts of a wrong one)."""
        if self._key:
            text = text.replace(self._key, "<key>")
        return " ".join(text.split())[:300]


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


def _to_openai(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id or f"call_{i}", "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}}
            for i, call in enumerate(message.tool_calls)]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    return out
