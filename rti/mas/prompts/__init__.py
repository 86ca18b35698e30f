"""Prompt packs: how the three roles are asked, one module per environment. A pack has `validator`, `corrector` and
`verifier`, each a function of a RoleContext that gives messages.

`<environment>.py` is written for language models, `<environment>_compact.py` for the lab policy; `generic.py` serves
environments without a pack. `load_pack` also takes the dotted name of a module of a user's own. tau2.py gives each task the
pack of its domain: telecom.py, retail.py, airline.py.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Protocol

from rti.mas.roles import RoleContext
from rti.trajectory import Message

ROLES = ("validator", "corrector", "verifier")


class PromptPack(Protocol):
    def validator(self, ctx: RoleContext) -> list[Message]: ...

    def corrector(self, ctx: RoleContext) -> list[Message]: ...

    def verifier(self, ctx: RoleContext) -> list[Message]: ...


def load_pack(name: str, env_name: str, chat_name: str = "") -> PromptPack:
    """The pack `name` (auto, full, compact, generic, or a dotted module) for an environment. auto: compact for the lab chat
    format where the environment has one, else full where it has one, else generic.

    Raises ValueError where there is none.
    """
    if name == "auto":
        choices = (["compact"] if chat_name == "lab" else []) + ["full"]
        name = next((c for c in choices if importlib.util.find_spec(_module(c, env_name))), "generic")
    if "." in name:
        module = name
    elif name == "generic":
        module = f"{__name__}.generic"
    elif name in ("full", "compact"):
        module = _module(name, env_name)
    else:
        raise ValueError(f"intervention.prompts is {name!r}: it must be auto, full, compact, generic, or a module's dotted "
                         "name")
    try:
        pack = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or not (module == e.name or module.startswith(f"{e.name}.")):
            raise       # the pack is there, but something that it imports is not
        raise ValueError(f"there is no {name} prompt pack for environment {env_name!r} (module {module}): write one with "
                         f"{', '.join(ROLES)}, or name another in intervention.prompts") from e
    if missing := [role for role in ROLES if not callable(getattr(pack, role, None))]:
        raise ValueError(f"prompt pack {module} lacks {', '.join(missing)}")
    return pack


def _module(name: str, env_name: str) -> str:
    """Where an environment's full or compact pack would be."""
    return f"{__name__}.{env_name}" + ("_compact" if name == "compact" else "")
