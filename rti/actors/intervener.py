"""The intervener actor: the same rollout code with the intervention pipeline as its step policy."""

from __future__ import annotations

from typing import Sequence

from rti.actors.env_worker import EpisodeActor
from rti.actors.messages import Order, TaskIndex
from rti.config.schema import Config
from rti.mas.pipeline import build_pipeline
from rti.rollout import StepPolicy


class Intervener(EpisodeActor):
    """Intervened rollouts of groups that failed. One pipeline serves all its episodes."""

    def __init__(self, config: Config, generators: Sequence[str]):
        super().__init__(config, generators)
        self.episodes = config.interveners.episodes
        self._pipeline: StepPolicy | None = None

    async def ready(self) -> TaskIndex:
        index = await super().ready()
        self.policy(None)       # a pipeline that cannot be built says so before anything runs
        return index

    def policy(self, order: Order | None) -> StepPolicy:
        if self._pipeline is None:
            config = self._config
            self._pipeline = build_pipeline(config.intervention, config.env.name, self._engine, self._chat, config.rollout)
        return self._pipeline
