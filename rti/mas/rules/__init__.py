"""Rule-based players of the three roles, one module per environment: `validate(ctx)`, `correct(ctx)`, `verify(ctx)`.

They work from the evidence without a model: for tests, as a control, and as the teacher of the lab policy's roles.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def load_rules(env_name: str) -> ModuleType:
    """The rules of an environment. Raises ValueError where it has none."""
    name = f"{__name__}.{env_name}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise
        raise ValueError(f"environment {env_name!r} has no rule-based roles: set the player to policy or endpoint") from e
