"""The three roles' prompts for τ²-Bench: the pack of the task's domain (telecom.py, retail.py, airline.py)."""

from __future__ import annotations

from types import ModuleType

from rti.mas.prompts import airline, retail, telecom
from rti.mas.roles import RoleContext
from rti.trajectory import Message

_PACKS = {"telecom": telecom, "retail": retail, "airline": airline}


def validator(ctx: RoleContext) -> list[Message]:
    return _pack(ctx).validator(ctx)


def corrector(ctx: RoleContext) -> list[Message]:
    return _pack(ctx).corrector(ctx)


def verifier(ctx: RoleContext) -> list[Message]:
    return _pack(ctx).verifier(ctx)


def _pack(ctx: RoleContext) -> ModuleType:
    return _PACKS[ctx.evidence["domain"]]
