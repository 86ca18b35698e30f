"""Who plays a role: the policy itself or a teacher, an OpenAI-compatible endpoint, or rules. All answer the same call.

A player turns a RoleContext into an answer, or None where its output could not be read. A service that is down is the
infrastructure's fault (EngineError) and the episode is run again. Keeps invariant 4: what a service says of its failure is
passed on only where it repeats nothing of the evidence.
"""

from __future__ import annotations

from types import ModuleType
from typing import Callable, Protocol

from rti.chat.base import ChatFormat
from rti.config.schema import RoleConfig
from rti.engines.base import Engine, EngineError, PromptTooLong, SamplingParams
from rti.engines.endpoint import ChatEndpoint, EndpointRefused
from rti.mas import guards
from rti.mas.roles import Correction, RoleContext, Validation, Verdict, read_correction, read_validation, read_verdict
from rti.trajectory import Message

Answer = Validation | Correction | Verdict
Prompt = Callable[[RoleContext], list[Message]]

READERS: dict[str, Callable[[str], Answer | None]] = {
    "validator": read_validation, "corrector": read_correction, "verifier": read_verdict,
}
_RULES = {"validator": "validate", "corrector": "correct", "verifier": "verify"}


class Player(Protocol):
    async def ask(self, ctx: RoleContext, seed: int) -> Answer | None:
        """The role's answer; None where the output is malformed. Raises EngineError where the player is out of reach."""
        ...

    async def close(self) -> None: ...


class PolicyPlayer:
    """The policy plays the role, under the role's prompt; or a teacher of the same tokenizer, where the engine is its own. The
    answer is a reply like any other, read as text."""

    def __init__(self, role: str, config: RoleConfig, prompt: Prompt, engine: Engine, chat: ChatFormat):
        self._read, self._prompt, self._engine, self._chat = READERS[role], prompt, engine, chat
        self._config = config

    async def ask(self, ctx: RoleContext, seed: int) -> Answer | None:
        prompt_ids = self._chat.render(self._prompt(ctx), ())
        room = min(self._config.max_tokens, self._engine.max_context - len(prompt_ids))
        if room < 1:
            return None
        params = SamplingParams(max_tokens=room, temperature=self._config.temperature, seed=seed,
                                stop_token_ids=tuple(self._chat.stop_token_ids))
        try:
            reply = await self._engine.generate(prompt_ids, params)
        except PromptTooLong:
            return None
        return self._read(self._chat.decode_text(reply.token_ids.tolist()))

    async def close(self) -> None:
        """Nothing: the engine belongs to the caller."""


class EndpointPlayer:
    """Another model plays the role, behind an OpenAI-compatible service."""

    def __init__(self, role: str, config: RoleConfig, prompt: Prompt, endpoint: ChatEndpoint | None = None):
        if not config.endpoint.base_url or not config.endpoint.model:
            raise ValueError(f"the {role} is played by an endpoint, but its base_url or model is empty: set both")
        self._role, self._read, self._prompt, self._config = role, READERS[role], prompt, config
        self._endpoint = endpoint or ChatEndpoint(config.endpoint, role)

    async def ask(self, ctx: RoleContext, seed: int) -> Answer | None:
        try:
            text = await self._endpoint.complete(
                self._prompt(ctx), temperature=self._config.temperature, max_tokens=self._config.max_tokens, json=True,
                seed=seed)
        except PromptTooLong:
            return None
        except (EngineError, EndpointRefused) as fault:
            kind = EngineError if isinstance(fault, EngineError) else EndpointRefused
            said = guards.scrub(str(fault), ctx.evidence)
        else:
            return self._read(text)
        # raised here, outside the handler, so that no traceback chain carries the service's own words along
        raise kind(f"the endpoint that plays the {self._role} failed: {said}")

    async def close(self) -> None:
        await self._endpoint.close()


class RulePlayer:
    """Rules play the role: rti/mas/rules/<environment>.py."""

    def __init__(self, role: str, rules: ModuleType):
        self._rule: Callable[[RoleContext], Answer] = getattr(rules, _RULES[role])

    async def ask(self, ctx: RoleContext, seed: int) -> Answer | None:
        return self._rule(ctx)

    async def close(self) -> None:
        """Nothing is held open."""
