"""The intervener actor: the same rollout code for groups that failed, with the intervention pipeline as its step policy, or
with the teacher's own turns (LUFFY)."""

from __future__ import annotations

from typing import Sequence

from rti.actors.env_worker import EpisodeActor
from rti.actors.messages import Order, TaskIndex
from rti.config.schema import Config
from rti.config.teacher import rolls_out
from rti.engines.base import SamplingParams
from rti.mas.pipeline import build_pipeline
from rti.rollout import StepPolicy
from rti.teacher import TeacherPolicy


class Intervener(EpisodeActor):
    """Rollouts of groups that failed. One step policy serves all its episodes."""

    def __init__(self, config: Config, teachers: Sequence[str] = ()):
        super().__init__(config, teachers)
        self.episodes = config.interveners.episodes
        self._policy: StepPolicy | None = None

    async def ready(self) -> TaskIndex:
        index = await super().ready()
        self.policy(None)       # a pipeline that cannot be built says so before anything runs
        return index

    def policy(self, order: Order | None) -> StepPolicy:
        if self._policy is None:
            self._policy = self._build()
        return self._policy

    def _build(self) -> StepPolicy:
        config, rollout = self._config, self._config.rollout
        if rolls_out(config):
            return TeacherPolicy(self._teacher, self._chat, SamplingParams(
                max_tokens=rollout.max_tokens, temperature=rollout.temperature, top_p=rollout.top_p))
        return build_pipeline(config.intervention, config.env.name, self._engine, self._chat, rollout,
                              teacher=self._teacher if self._teachers else None)
