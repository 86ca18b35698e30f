"""What a run wants a teacher for, and the configuration of the engines that serve it. Pure.

A teacher is a second model behind generators that never get new weights. Keeps: no actor of it is made where nothing asks it,
and everything that asks goes by the functions here.
"""

from __future__ import annotations

import copy

from rti.config.schema import Config

ROLES = ("validator", "corrector", "verifier_role")


def judges(config: Config) -> bool:
    """Whether the teacher gives log-probabilities of the policy's own tokens."""
    return config.algo.name == "opd"


def rolls_out(config: Config) -> bool:
    """Whether the teacher runs the tasks of failed groups itself."""
    return config.algo.name == "luffy"


def played(config: Config, by: str = "teacher") -> list[str]:
    """The roles of the intervention that such a player plays; none where the method does not intervene."""
    return [role for role in ROLES if config.algo.name == "rti" and getattr(config.intervention, role).player == by]


def wanted(config: Config) -> str:
    """The setting that asks for a teacher; empty where none does."""
    if judges(config) or rolls_out(config):
        return f"algo.name={config.algo.name}"
    roles = played(config)
    return f"intervention.{roles[0]}.player=teacher" if roles else ""


def served(config: Config) -> Config:
    """The configuration as a generator of the teacher reads it: its model and its engine stand in the policy's places."""
    own = copy.deepcopy(config)
    own.model.path, own.model.dtype, own.generators = config.teacher.path, config.teacher.dtype, own.teacher.generators
    return own
