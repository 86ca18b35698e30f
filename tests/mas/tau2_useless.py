"""A policy whose every draft is useless, in real τ² rollouts with the scripted user: plain, or with rule players."""

from __future__ import annotations

import collections
from typing import Sequence

import numpy as np

from rti.chat.lab import LabChatFormat
from rti.config.schema import InterventionConfig, RoleConfig, RolloutConfig
from rti.engines.base import Generation, SamplingParams, Scores
from rti.envs.base import Task
from rti.envs.tau2.dialogue import Limits
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.environment import Tau2Environment
from rti.envs.tau2.judge import Unjudged
from rti.envs.tau2.scripted import ScriptedUsers
from rti.mas.pipeline import build_pipeline
from rti.rollout import PlainPolicy, run_episode
from rti.trajectory import Trajectory
from tests.mas.scripted import ScriptedEngine, byte_chat, say

LIMITS = RolloutConfig(max_tokens=8192, max_context=10_000_000)
USELESS = say(content="I am looking into it.")


class UselessEngine(ScriptedEngine):
    """Gives one reply and keeps no record of the prompts, which are long."""

    def __init__(self, chat: LabChatFormat, reply: str) -> None:
        super().__init__(chat, lambda prompt, params: reply, max_context=10_000_000)
        self._ids = np.asarray([*chat.encode(reply), *chat.stop_token_ids], np.int32)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        return Generation(token_ids=self._ids, logps=self.logps(prompt_ids, self._ids, params.temperature),
                          versions=np.zeros(len(self._ids), np.int32), finish_reason="stop")

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float = 1.0) -> Scores:
        return Scores(logps=self.logps(prompt_ids, response_ids, temperature), version=0)


def rules() -> InterventionConfig:
    config = InterventionConfig()
    for role in ("validator", "corrector", "verifier_role"):
        setattr(config, role, RoleConfig(player="rules"))
    return config


async def episode(domain: Domain, task: Task, intervened: bool, reply: str = USELESS) -> Trajectory:
    """The trajectory of a policy that always gives `reply`. Assertions in natural language count as met."""
    chat = byte_chat()
    engine = UselessEngine(chat, reply)
    policy = (build_pipeline(rules(), "tau2", engine, chat, LIMITS) if intervened
              else PlainPolicy(engine, chat, SamplingParams(max_tokens=LIMITS.max_tokens)))
    environment = Tau2Environment(lambda t: domain, domain.tools, ScriptedUsers(domain), Limits(), Unjudged())
    return await run_episode(task, environment, policy, chat, id=task.id, group_id=task.id, seed=0, limits=LIMITS,
                             temperature=1.0, intervened=intervened)


def outcomes(trajectory: Trajectory) -> dict[str, int]:
    """How often each outcome of the pipeline came, guards by name."""
    counted = collections.Counter(f"{s.intervention.outcome} {s.intervention.guard}".strip()
                                  for s in trajectory.steps if s.intervention)
    return dict(counted)
