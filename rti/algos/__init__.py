"""Algorithms: each in its own file, pure functions of tensors. `load_algorithm` picks the one that the configuration names."""

from __future__ import annotations

from rti.algos.base import Algorithm, LossOutput, Metrics, TokenBatch, finish, trains
from rti.algos.grpo import GRPO
from rti.algos.replace import replace_failed
from rti.algos.rti import RTI
from rti.config.schema import AlgoConfig, InterventionConfig

__all__ = ["Algorithm", "GRPO", "LossOutput", "Metrics", "RTI", "TokenBatch", "finish", "load_algorithm", "replace_failed",
           "trains"]


def load_algorithm(config: AlgoConfig, intervention: InterventionConfig, train_truncated: bool = True) -> Algorithm:
    """`train_truncated` is rollout.train_truncated: whether an episode that a length limit cut is trained on."""
    shared = dict(clip_low=config.clip_low, clip_high=config.clip_high, advantage_eps=config.advantage_eps,
                  kl_coef=config.kl_coef, train_truncated=train_truncated)
    if config.name == "grpo":
        return GRPO(**shared)
    if config.name == "rti":
        return RTI(**shared, weight_eps=intervention.weight_eps, reweight=intervention.reweight,
                   denominator=intervention.denominator)
    raise ValueError(f"algo.name is {config.name!r}; it must be one of grpo, rti")
