"""The language models that a run asks (a user simulator, a judge, who plays a role): their clients, and whether they answer.

Keeps: a wrong key, address or model is said before anything starts; later faults of a service are the infrastructure's, never a
reward.
"""

from __future__ import annotations

import asyncio
from typing import Any, Iterator, Sequence

from rti.config.schema import Config, EndpointConfig
from rti.config.teacher import played
from rti.control.concurrency import all_of
from rti.engines.base import PromptTooLong
from rti.engines.endpoint import ChatEndpoint
from rti.envs.base import EnvironmentFault
from rti.trajectory import Message


class Service:
    """See rti.envs.tau2.judge.Chat: a ChatEndpoint. A conversation that does not fit its model is run again, as a fault."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    async def chat(self, messages: Sequence[Message], **how: Any) -> Any:
        try:
            return await self._endpoint.chat(messages, **how)
        except PromptTooLong as fault:
            raise EnvironmentFault(f"the conversation does not fit the {self._endpoint.role} model: {fault}") from fault

    async def close(self) -> None:
        await self._endpoint.close()


def connect(config: EndpointConfig, role: str) -> Service:
    """The client of a service. Raises EndpointRefused where its key or address cannot be used."""
    return Service(ChatEndpoint(config, role))


def check_services(config: Config, training: bool = True) -> None:
    """Ask every service that will be needed for one word: those of the environment and, for a training, those that play a role
    of the intervention. Raises EndpointRefused or EndpointError."""
    asked = [*_of_environment(config), *(_of_roles(config) if training else ())]
    if asked:
        asyncio.run(_check(asked))


def _of_roles(config: Config) -> Iterator[tuple[str, EndpointConfig]]:
    for role in played(config, by="endpoint"):
        yield role, getattr(config.intervention, role).endpoint


def _of_environment(config: Config) -> Iterator[tuple[str, EndpointConfig]]:
    env = config.env
    if env.class_:
        return
    if env.name == "tau2" and env.tau2.user == "llm":
        yield "user", env.tau2.user_endpoint
    if env.name == "tau2" and env.tau2.nl_assertions == "judge" and env.tau2.judge.base_url:
        yield "judge", env.tau2.judge
    if env.name == "claw_eval" and env.claw_eval.judged_by == "endpoint" and env.claw_eval.judge.base_url:
        yield "judge", env.claw_eval.judge


async def _check(asked: Sequence[tuple[str, EndpointConfig]]) -> None:
    await all_of(_one_word(role, endpoint) for role, endpoint in asked)


async def _one_word(role: str, config: EndpointConfig) -> None:
    service = connect(config, role)
    try:
        await service.chat([Message(role="user", content="Say yes.")], temperature=0.0, max_tokens=16)
    finally:
        await service.close()
