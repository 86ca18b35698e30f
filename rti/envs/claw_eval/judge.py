"""The judge behind the interface that the official graders call: evaluate, evaluate_actions, and a bare client.

Keeps: a judge that is dead or gives no readable answer is a fault, never a low score. Official graders and the official judge
catch every Exception around a judge's call and go on without its points; JudgeFailed is therefore none.
The judge's prompts and the reading of its answers are the official LLMJudge's own, over our client.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from types import SimpleNamespace
from typing import Any, Protocol, Sequence

from rti.envs.base import FatalEnvironmentError
from rti.trajectory import Message

ATTEMPTS = 3
"""Answers asked for until one can be read."""


class JudgeFailed(BaseException):
    """The judge could not be asked; `fault` is what happened. No Exception, so that no grader mistakes it for a bad mark."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(str(fault))
        self.fault = fault


class UnreadableAnswer(RuntimeError):
    """The judge's model does not answer in the form that is asked for."""


class Chat(Protocol):
    """A chat service, as the actors make it of an EndpointConfig (see rti.actors.services)."""

    async def chat(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, json: bool = False,
                   seed: int | None = None) -> Any:
        """The reply; its `message` is a Message of role assistant."""
        ...


class Judge(Protocol):
    """What makes the object that a grader gets. One for each grading; a grading runs in a thread of its own."""

    kind: str       # endpoint or rules; stamped on every result

    def for_grader(self, judge_class: type) -> Any:
        """`judge_class`: the official LLMJudge."""
        ...


class EndpointJudge:
    """A language model judges. Made and used in a running event loop."""

    kind = "endpoint"

    def __init__(self, chat: Chat, model: str = "judge") -> None:
        self._chat, self._model = chat, model

    def for_grader(self, judge_class: type) -> Any:
        return _official(judge_class, _Completions(self._chat, asyncio.get_running_loop()), self._model)


class RuleJudge:
    """A stub for tests: the mark is the share of the rubric's words and numbers that the judged text holds. It knows nothing of
    what is right, so `judge_of` makes it only where a configuration names it, and it stamps what it judged."""

    kind = "rules"

    def for_grader(self, judge_class: type) -> Any:
        return _official(judge_class, _Rules(), "rules")


def judge_of(kind: str, chat: Chat | None, model: str = "") -> Judge | None:
    """The judge that a configuration names: "endpoint" (None where it has no `chat`), "rules". Raises FatalEnvironmentError."""
    if kind == "rules":
        return RuleJudge()
    if kind != "endpoint":
        raise FatalEnvironmentError(f"there is no judge '{kind}'; mend: endpoint (a language model) or rules (a stub for "
                                    f"tests, whose marks mean nothing)")
    return EndpointJudge(chat, model) if chat is not None else None


def _official(judge_class: type, completions: Any, model: str) -> Any:
    """An official LLMJudge whose client is ours. Its __init__ would make one of the openai package."""
    class Bounded(judge_class):
        def evaluate_visual(self, *args: Any, **kwargs: Any) -> Any:
            raise JudgeFailed(FatalEnvironmentError("a text-only judge was asked to compare images"))

    judge = Bounded.__new__(Bounded)
    judge.client = SimpleNamespace(chat=SimpleNamespace(completions=completions))
    judge.model_id, judge._call_log = model, []
    return judge


def _completion(text: str) -> Any:
    """In the form of the openai package's, as far as graders read it."""
    return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text, role="assistant"),
                                                    finish_reason="stop")])


class _Completions:
    """`client.chat.completions` of a judge. Called in the grading's thread; the request runs in the loop of the environment."""

    def __init__(self, chat: Chat, loop: asyncio.AbstractEventLoop) -> None:
        self._chat, self._loop = chat, loop

    def create(self, *, messages: Sequence[dict[str, Any]], temperature: float = 0.0, max_tokens: int = 8192,
               **_: Any) -> Any:
        """The first of ATTEMPTS answers that can be read."""
        asked = [Message(role=m["role"], content=m["content"]) for m in messages]
        for attempt in range(ATTEMPTS):
            text = self._text(asked, temperature, max_tokens, attempt)
            if _readable(text, marked=asked[0].role == "system"):
                return _completion(text)
        raise JudgeFailed(UnreadableAnswer(f"no answer of {ATTEMPTS} can be read; the last one: {text[:200]!r}"))

    def _text(self, asked: Sequence[Message], temperature: float, max_tokens: int, seed: int) -> str:
        request = self._chat.chat(asked, temperature=temperature, max_tokens=max_tokens, json=True, seed=seed)
        try:
            return asyncio.run_coroutine_threadsafe(request, self._loop).result().message.content
        except Exception as fault:      # whatever it is: it must pass through the graders' own handlers
            raise JudgeFailed(fault) from fault


def _readable(text: str, marked: bool) -> bool:
    """Whether the official code will read it, else it would wait and ask again thirty times: the first flat JSON object,
    which the official judge (`marked`) takes a score from, or the graders that ask its client something of their own."""
    found = re.search(r"\{[^{}]*\}", text)
    try:
        value = json.loads(found.group(0)) if found else None
    except ValueError:
        value = None
    if not marked:
        return isinstance(value, dict)
    if isinstance(value, dict) and "score" in value and "reasoning" in value:
        return _is_number(value["score"])
    return bool(re.search(r'"score"\s*:\s*[0-9.]+', text)) and value is None


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


class _Rules:
    """`client.chat.completions` of the stub."""

    def create(self, *, messages: Sequence[dict[str, Any]], **_: Any) -> Any:
        judged, _, rubric = messages[-1]["content"].rpartition("## Rubric")
        words = sorted(set(re.findall(r"[^\W_]{4,}|\d+", rubric.lower())))
        found = [w for w in words if w in judged.lower()]
        score = round(len(found) / len(words), 4) if words else 0.0
        return _completion(json.dumps({"score": score, "reasoning": f"stub: {len(found)} of {len(words)} words of the rubric"}))
