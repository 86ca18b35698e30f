"""Environments by configuration: `load_task_set` gives the task set that `env` names, or the user's own class."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable

from rti.config.schema import EndpointConfig, EnvConfig
from rti.envs.base import TaskSet

ENVIRONMENTS = ("navigation", "tau2", "claw_eval")


class UnknownEnvironment(ValueError):
    """The configuration names an environment that cannot be loaded."""


def load_task_set(config: EnvConfig, seed: int = 0, connect: Callable[[EndpointConfig, str], Any] | None = None) -> TaskSet:
    """The task set of `config`. An own class (`env.class: my_pkg.MyTaskSet`) is called with `env.options`, and with `seed`
    where it takes one. The task sets that go by name do not depend on the seed: all runs measure the same tasks. `connect`
    makes the client of an endpoint (a user, a judge) for the environments that ask one."""
    if config.class_:
        return _own(config.class_, dict(config.options), seed)
    if config.name == "navigation":
        from rti.envs.navigation.taskset import NavigationTaskSet
        return NavigationTaskSet(config.navigation)
    if config.name == "tau2":
        from rti.envs.tau2.taskset import Tau2TaskSet
        return Tau2TaskSet(config.tau2, connect)
    if config.name == "claw_eval":
        if config.claw_eval.home or config.claw_eval.tasks == "official":
            from rti.envs.claw_eval.official import official_task_set
            return official_task_set(config.claw_eval, connect)
        from rti.envs.claw_eval.taskset import ClawEvalTaskSet
        return ClawEvalTaskSet(config.claw_eval)
    raise UnknownEnvironment(f"env.name is '{config.name}'; mend: one of {', '.join(ENVIRONMENTS)}, or set env.class "
                             f"to your own")


def _own(path: str, options: dict[str, Any], seed: int) -> TaskSet:
    module_name, _, name = path.replace(":", ".").rpartition(".")
    try:
        cls = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as e:
        raise UnknownEnvironment(f"env.class '{path}' cannot be imported ({e}); mend: 'package.module.Class', importable where "
                                 f"the run starts") from e
    if "seed" in inspect.signature(cls).parameters:
        options.setdefault("seed", seed)
    try:
        made = cls(**options)
    except TypeError as e:
        raise UnknownEnvironment(f"env.class '{path}' does not take env.options {sorted(options)}: {e}") from e
    missing = [a for a in ("train", "test", "make", "close") if not hasattr(made, a)]
    if missing:
        raise UnknownEnvironment(f"env.class '{path}' is no task set: it lacks {', '.join(missing)} "
                                 f"(see rti.envs.base.TaskSet)")
    return made
