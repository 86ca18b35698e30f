"""How alike two tasks are: by the characters of their wording, and by the trigrams of all that they say. Pure."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Iterable

from rti.envs.base import Task
from rti.envs.claw_eval.agents import values_of

CHARACTERS, TRIGRAMS = 0.97, 0.75
"""A task is a near-duplicate of another where both of its similarities are above these."""


class Look:
    """What of a task is compared: its instruction, and the trigrams of the instruction and of all values of its fixtures."""

    def __init__(self, task: Task) -> None:
        self.family = task.evidence["family"]
        self.wording = task.data["instruction"]
        self.trigrams = trigrams("\n".join([self.wording, *values_of(task.data["fixtures"])]))


def trigrams(text: str) -> frozenset[str]:
    """The runs of three characters, case and white space aside."""
    low = " ".join(text.casefold().split())
    return frozenset(low[i:i + 3] for i in range(len(low) - 2))


def of_trigrams(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard's coefficient, from 0 to 1."""
    return len(a & b) / len(a | b) if a or b else 1.0


def of_characters(a: str, b: str) -> float:
    """Twice the characters in matching blocks over all characters, from 0 to 1."""
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    # quick_ratio is an upper bound, and much faster
    return matcher.ratio() if matcher.quick_ratio() > CHARACTERS else matcher.quick_ratio()


def near_duplicate(a: Look, b: Look) -> bool:
    return a.family == b.family and of_trigrams(a.trigrams, b.trigrams) > TRIGRAMS and (
        of_characters(a.wording, b.wording) > CHARACTERS)


def duplicate_of(look: Look, others: Iterable[Look]) -> Look | None:
    return next((o for o in others if near_duplicate(look, o)), None)
