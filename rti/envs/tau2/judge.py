"""Natural-language assertions: the installed package's own prompt and reading of the answer, another model's answer.

The official function asks a hard-coded model. Here the same code runs with its `generate` put in by us, in a copy of its own
global names: nothing in the package is changed. A judge that gives no readable answer is a fault, never a reward.
"""

from __future__ import annotations

import types
from typing import Any, Protocol, Sequence

from rti.envs.base import EnvironmentFault
from rti.envs.tau2 import official
from rti.trajectory import Message

ATTEMPTS = 3


class Chat(Protocol):
    """A chat service (a user model, a judge), as the actors make it of an EndpointConfig. Its faults are not UserFaults: a dead
    service raises an EngineError (run again), a wrong key what ends the run."""

    async def chat(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, tools: Sequence[Any] = (),
                   json: bool = False, seed: int | None = None) -> Any:
        """The reply; its `message` is a Message of role assistant."""
        ...


class Judge:
    """Asks `chat` whether a conversation meets natural-language assertions."""

    def __init__(self, chat: Chat, max_tokens: int = 2048) -> None:
        self._chat, self._max_tokens = chat, max_tokens

    async def check(self, messages: Sequence[Any], assertions: Sequence[str]) -> list[Any]:
        """Official NLAssertionChecks. Raises EnvironmentFault where no attempt gives a readable answer."""
        prompt: list[Any] = []
        _ask(lambda model, messages, **_: prompt.extend(messages) or _Answer("{}"), messages, assertions)
        asked = [Message(role=m.role, content=m.content) for m in prompt]
        problem = ""
        for attempt in range(ATTEMPTS):
            reply = await self._chat.chat(asked, temperature=0.0, max_tokens=self._max_tokens, json=True, seed=attempt)
            try:
                checks = _ask(lambda **_: _Answer(_bare(reply.message.content)), messages, assertions)
            except (ValueError, KeyError, TypeError, AttributeError) as fault:
                problem = f"{type(fault).__name__}: {fault}"
                continue
            if len(checks) >= len(assertions):
                return checks
            problem = f"{len(checks)} of {len(assertions)} assertions were judged"
        raise EnvironmentFault(f"the judge gave no readable answer in {ATTEMPTS} attempts ({problem}); mend: a stronger model "
                               "in env.tau2.judge")


class Unjudged:
    """In place of a judge where the configuration leaves natural-language assertions out: all count as met."""

    async def check(self, messages: Sequence[Any], assertions: Sequence[str]) -> list[Any]:
        model = official.load().simulation.NLAssertionCheck
        return [model(nl_assertion=a, met=True, justification="not judged") for a in assertions]


class _Answer:
    def __init__(self, content: str) -> None:
        self.content = content


def _ask(generate: Any, messages: Sequence[Any], assertions: Sequence[str]) -> list[Any]:
    evaluator = official.load().nl.NLAssertionsEvaluator
    function = evaluator.evaluate_nl_assertions.__func__
    ours = types.FunctionType(function.__code__, {**function.__globals__, "generate": generate}, function.__name__,
                              function.__defaults__, function.__closure__)
    return ours(evaluator, list(messages), list(assertions))


def _bare(text: str) -> str:
    """The JSON object of an answer that may stand in a code fence."""
    start, end = text.find("{"), text.rfind("}")
    return text[start:end + 1] if 0 <= start < end else text
