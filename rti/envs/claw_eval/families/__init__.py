"""The own task families by name. A family is a module with CATEGORY and `make(draw) -> Spec`."""

from __future__ import annotations

from types import ModuleType

from rti.envs.claw_eval.families import (
    account_review, cleanup, contract, expenses, job_repair, meeting, onboarding, payment, refunds, restock, right_person)

FAMILIES: dict[str, ModuleType] = {m.__name__.rpartition(".")[2]: m for m in (
    onboarding, restock, payment, job_repair, account_review, right_person, refunds, cleanup, contract, expenses, meeting)}

CATEGORIES = tuple(dict.fromkeys(m.CATEGORY for m in FAMILIES.values()))
