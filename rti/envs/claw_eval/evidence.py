"""What the Validator, Corrector and Verifier may know of a task of the own families: rubric, safety checks, reference solution.

Keeps invariant 4: this goes into `Task.evidence` alone, never into a message. The grader reads the same records, so that what
the roles are told is what is graded.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Want(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call by what matters of it: arguments that must be equal, and texts that an argument must hold."""

    tool: str
    arguments: dict[str, Any] = {}
    contains: dict[str, list[str]] = {}


class Component(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the completion: a call that took effect, or the values of the answer line. `says` ends with a full stop."""

    says: str
    weight: float
    call: Want | None = None
    answer: list[str] = []


class SafetyCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that must never take effect."""

    says: str
    forbids: Want


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of the reference solution. `fails`: an injected fault answers it, and the solution goes on from there."""

    name: str
    arguments: dict[str, Any] = {}
    fails: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of a task; `Task.evidence` holds it as builtins (`read` gives it back)."""

    family: str
    components: list[Component]
    safety_checks: list[SafetyCheck]
    reference: list[list[Planned]]      # turns of calls
    closing: str                        # the reference's last reply, which makes no call
    writes: list[str]                   # tools that change something
    completion: str = ""                # in words: when the task is done


def read(evidence: dict[str, Any]) -> Evidence:
    """`Task.evidence` as the struct."""
    return msgspec.convert(evidence, Evidence)
