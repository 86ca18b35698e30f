"""Parts to run episodes with: the lab chat format over a byte tokenizer, an engine that plays a script, a small environment.

The engine keeps the whole protocol: ids in and out, per-token versions, log-probabilities that depend on prompt and token, a
context limit. It records every prompt it is given, so that a test can look for what must not be there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any, Callable, Mapping, Sequence

import msgspec
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rti.chat.lab import END, PAD, ROLE_TOKENS, LabChatFormat
from rti.engines.base import Generation, PromptTooLong, SamplingParams, Scores
from rti.envs.base import Outcome, StepResult, Task
from rti.trajectory import Message, ToolCall, ToolSchema

Reply = str | list[int] | Exception


def byte_chat() -> LabChatFormat:
    """The lab format with one token a byte."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in (PAD, END, *ROLE_TOKENS.values())])
    return LabChatFormat(tokenizer)


class ForkingChat(LabChatFormat):
    """As Qwen3's template: the reasoning of turns before the last user message is left out."""

    extends_prefix = False

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        asked = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
        return super().render([msgspec.structs.replace(m, reasoning="") if m.role == "assistant" and i < asked else m
                               for i, m in enumerate(messages)], tools)

    def append(self, turn_ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        assert all(m.role == "tool" for m in messages), "a user message makes this format rewrite earlier turns"
        return super().append(turn_ids, messages)


def forking_chat() -> ForkingChat:
    return ForkingChat(byte_chat()._tokenizer)


def say(reasoning: str = "", calls: Sequence[tuple[str, dict[str, Any]]] = (), content: str = "") -> str:
    """A turn, or a Corrector's answer, as text."""
    listed = [{"name": n, "arguments": a} for n, a in calls]
    return json.dumps({"reasoning": reasoning, "tool_calls": listed, "content": content}, ensure_ascii=False)


def logps_of(prompt: Sequence[int], response: Sequence[int], temperature: float) -> np.ndarray:
    """Made-up log-probabilities in (-1, 0] that depend on the prompt, the place and the token."""
    seed = hashlib.sha256(np.asarray(prompt, np.int64).tobytes() + repr(temperature).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
    table = rng.uniform(-1, 0, 4096)
    return np.asarray([table[(7 * i + t) % 4096] for i, t in enumerate(response)], np.float32)


class ScriptedEngine:
    """`script(prompt_text, params)` gives the reply's text (a stop token is added), its ids as they are, or an error."""

    def __init__(self, chat: LabChatFormat, script: Callable[[str, SamplingParams], Reply], *, max_context: int = 100_000):
        self.chat, self.script, self.max_context = chat, script, max_context
        self.prompts: list[str] = []
        self.requests: list[SamplingParams] = []
        self.scored: list[tuple[str, list[int], float]] = []
        self.logps: Callable[[Sequence[int], Sequence[int], float], np.ndarray] = logps_of
        self.on_score: Callable[[], None] = lambda: None
        self.on_token: Callable[[int], None] = lambda i: None
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        await asyncio.sleep(0)
        if len(prompt_ids) + 1 > self.max_context:
            raise PromptTooLong("too long")
        text = self.chat.decode(prompt_ids)
        self.prompts.append(text)
        self.requests.append(params)
        reply = self.script(text, params)
        if isinstance(reply, Exception):
            raise reply
        ids = reply if isinstance(reply, list) else [*self.chat.encode(reply), *params.stop_token_ids[:1]]
        cut = ids[:params.max_tokens]
        versions = []
        for i in range(len(cut)):
            self.on_token(i)
            versions.append(self._version)
        return Generation(
            token_ids=np.asarray(cut, np.int32), logps=self.logps(prompt_ids, cut, params.temperature),
            versions=np.asarray(versions, np.int32),
            finish_reason="stop" if cut and cut[-1] in params.stop_token_ids else "length",
        )

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float = 1.0) -> Scores:
        version = self._version
        await asyncio.sleep(0)
        if len(prompt_ids) + len(response_ids) > self.max_context:
            raise PromptTooLong("too long")
        self.scored.append((self.chat.decode(prompt_ids), list(response_ids), temperature))
        self.on_score()
        return Scores(logps=self.logps(prompt_ids, response_ids, temperature), version=version)

    async def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        self._version = version

    async def close(self) -> None:
        """Nothing is held."""


ECHO = ToolSchema(name="echo", description="Says it again.", parameters={
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
FINISH = ToolSchema(name="finish", description="Ends the task.", parameters={"type": "object", "properties": {}})


class EchoEnvironment:
    """`echo` repeats its text, `finish` ends with success. `faults`: raised at a method's call ("reset", "step", ..).

    After an echo of "ask" the user speaks as well.
    """

    tools = (ECHO, FINISH)

    def __init__(self, max_turns: int = 4, faults: Mapping[str, Exception] | None = None, delay_s: float = 0.0):
        self.max_turns, self._faults, self._delay_s = max_turns, dict(faults or {}), delay_s
        self.closed = 0
        self.success = False
        self.seen: list[Message] = []

    async def _enter(self, method: str) -> None:
        await asyncio.sleep(0 if method == "close" else self._delay_s)
        if method in self._faults:
            raise self._faults[method]

    async def reset(self, task: Task, seed: int) -> list[Message]:
        await self._enter("reset")
        self.success, self.seen = False, []
        return [Message(role="system", content="You echo."), Message(role="user", content=task.data["query"])]

    async def step(self, message: Message) -> StepResult:
        await self._enter("step")
        self.seen.append(message)
        self.success |= any(c.name == "finish" and not c.error for c in message.tool_calls)
        replies = [Message(role="tool", content=self._run(c), tool_call_id=c.id, name=c.name) for c in message.tool_calls]
        if any(r.content == "ask" for r in replies):
            replies.append(Message(role="user", content="Go on."))
        return StepResult(messages=replies, done=self.success or not message.tool_calls)

    def _run(self, call: ToolCall) -> str:
        if call.error:
            return f"error: {call.error}"
        return str(call.arguments.get("text", "error: text is missing")) if call.name == "echo" else "done"

    async def outcome(self) -> Outcome:
        await self._enter("outcome")
        return Outcome(success=self.success, reward=float(self.success), info={"turns": len(self.seen)})

    async def close(self) -> None:
        self.closed += 1
        await self._enter("close")


def echo_task(query: str = "Echo, then finish.", **evidence: Any) -> Task:
    return Task(id="t1", cls="plain", data={"query": query}, evidence=evidence)
