"""Algorithms: each in its own file, pure functions of tensors. `load_algorithm` picks the one that the configuration names.

Importing this package, or rti.algos.replace, does not import torch: actors without a model need only the replacement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rti.config.schema import AlgoConfig, InterventionConfig

if TYPE_CHECKING:
    from rti.algos.base import Algorithm


def load_algorithm(config: AlgoConfig, intervention: InterventionConfig, train_truncated: bool = True) -> Algorithm:
    """`train_truncated` is rollout.train_truncated: whether an episode that a length limit cut is trained on."""
    from rti.algos.aepo import AEPO
    from rti.algos.grpo import GRPO
    from rti.algos.gspo import GSPO
    from rti.algos.luffy import LUFFY
    from rti.algos.opd import OPD
    from rti.algos.rti import RTI

    shared = dict(clip_low=config.clip_low, clip_high=config.clip_high, advantage_eps=config.advantage_eps,
                  advantage_std=config.advantage_std, aggregation=config.aggregation, ratio=config.ratio,
                  importance_cap=config.importance_cap, kl_coef=config.kl_coef, train_truncated=train_truncated)
    if config.name == "grpo":
        return GRPO(**shared)
    if config.name == "gspo":
        return GSPO(**shared)
    if config.name == "rti":
        return RTI(**shared, weight_eps=intervention.weight_eps, reweight=intervention.reweight,
                   denominator=intervention.denominator)
    if config.name == "aepo":
        return AEPO(**shared, alpha=config.entropy_advantage, high_entropy=config.high_entropy)
    if config.name == "opd":
        return OPD(**shared, coef=config.distill_coef, with_reward=config.distill_reward)
    if config.name == "luffy":
        return LUFFY(**shared, shaping=config.shaping)
    raise ValueError(f"algo.name is {config.name!r}; it must be one of grpo, gspo, aepo, opd, luffy, rti")
