"""What a scripted user knows and says of itself: the sentences of the scenario, turned to the first person.

Keeps: nothing is said that the scenario does not hold; what it lists as unknown is answered with not knowing.
"""

from __future__ import annotations

import re
from typing import Any

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_DIRECTION = re.compile(r"(if|when|whenever|do not|don't|never|always|only|make sure|be|for example|once|for the|however|ask|"
                        r"mention|insist|say|tell|first|then|your responses?)\b", re.IGNORECASE)
_WORD = re.compile(r"[a-z][a-z'-]{3,}|\d+g\b")
_COMMON = frozenset(
    "your yours that this with have will would could should please what which when where there here about from they them then "
    "than also like want need know help tell give able sure been being does into some just more only issue agent okay thank "
    "thanks provide order account information".split())
_IDENTITY = re.compile(r"\b(name|phone|number|e-?mail|zip|user ?id|identity|identify|verify|who|account|reservation)\b",
                       re.IGNORECASE)
_AGREES = re.compile(r"\b(pay|payment|willing|refuel|proceed|go ahead|shall i|may i)\b", re.IGNORECASE)
_PERSON = [(re.compile(p), r) for p, r in (
    (r"\b([Tt]o|[Ff]or|[Ww]ith|[Aa]t|[Oo]f|[Tt]old|[Tt]ells?|[Gg]ives?|[Gg]ave|[Ss]ent|[Aa]sks?|[Ll]et|[Hh]elps?) you\b",
     r"\1 me"),
    (r"\b[Yy]ou are\b", "I am"), (r"\b[Yy]ou're\b", "I'm"), (r"\bYou name\b", "My name"), (r"\bYou mobile\b", "My mobile"),
    (r"\bYour\b", "My"), (r"\byours\b", "mine"), (r"\byour\b", "my"), (r"\byourself\b", "myself"), (r"\b[Yy]ou\b", "I"))]
MOST = 4
"""Sentences of one answer."""


def first_person(text: str) -> str:
    for pattern, replacement in _PERSON:
        text = pattern.sub(replacement, text)
    return text


class Story:
    """A task's user scenario. `text` is all of it."""

    def __init__(self, scenario: Any) -> None:
        told = scenario.instructions
        if isinstance(told, str):
            reason, known, unknown, orders = told, "", "", ""
        else:
            reason, known, unknown, orders = (getattr(told, f, None) or "" for f in (
                "reason_for_call", "known_info", "unknown_info", "task_instructions"))
        self.text = f"{reason}\n{orders}"
        self._reason, self._known, self._unknown = (first_person(" ".join(t.split())) for t in (reason, known, unknown))
        facts = [s.strip() for s in _SENTENCE.split(f"{known}\n{orders}\n{reason}") if s.strip(" .")]
        self._facts = [first_person(f) for f in facts if not _DIRECTION.match(f)]
        self._said: set[str] = set()

    def opening(self) -> str:
        return self._reason

    def reminder(self) -> str:
        return self._reason

    def answer(self, question: str) -> tuple[str, bool]:
        """What it can say to a text of the agent ("" for nothing), and whether any of it is new."""
        words = _words(question)
        parts = [self._known] if _IDENTITY.search(question) and self._known else []
        if self._unknown and words & _words(self._unknown):
            parts.append(self._unknown)
        found = [f for f in self._facts if words & _words(f) and f not in self._known]
        parts += found[:MOST]
        new = any(p not in self._said for p in parts)
        self._said |= set(parts)
        yes = "Yes. " if _AGREES.search(question) and "?" in question and self._accepts(question) else ""
        return (yes + " ".join(parts)).strip(), new

    def _accepts(self, question: str) -> bool:
        """Whether the scenario says that it agrees to what is asked (to pay, to refuel)."""
        asked = question.casefold()
        topics = [t for t in ("pay", "bill", "refuel") if t in asked]
        return any(re.search(rf"\b(accept|willing|permission)\b[^.]*\b{t}|\b{t}[^.]*\b(accept|willing)\b", self.text)
                   for t in topics)


def _words(text: str) -> set[str]:
    """Words that tell what a text is about, without their endings."""
    return {w[:6] for w in _WORD.findall(text.casefold()) if w not in _COMMON}
