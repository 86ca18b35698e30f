"""What a scripted user came for, and its yes or no to what the agent proposes: from the task's reference actions.

A proposal is right where it lists every argument of one or more wanted changes, and no order, item, reservation or flight
beside theirs. Listing means: as the tools write it (ids included), in any order and case.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Iterator, Literal

_ASKS = re.compile(r"\b(confirm|proceed|go ahead|shall i|should i|would you like me to|do you want me to|yes/no|\(yes\)|"
                   r"(is|are) (that|this|these|everything) (all )?(correct|right|ok(ay)?))\b", re.IGNORECASE)
_THING = re.compile(r"#W\d{7}|\b\d{10}\b|\bHAT\d{3}\b|\b(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6}\b")
Answer = Literal["yes", "no", "unlisted"]


class Wishes:
    """Keeps which changes were agreed to and which of the information it wants was told."""

    def __init__(self, criteria: Any, writes: Collection[str]) -> None:
        actions = (criteria.actions or []) if criteria else []
        self._changes = [a.arguments for a in actions if a.requestor == "assistant" and a.name in writes]
        self._agreed: list[int] = []
        self._untold = [i.lower() for i in (criteria.communicate_info or [])] if criteria else []
        self._wants_nothing = not self._changes and not self._untold

    def told(self, text: str) -> None:
        said = text.lower().replace(",", "")
        self._untold = [i for i in self._untold if i not in said]

    def judge(self, text: str) -> Answer | None:
        """Its answer where the agent asks it to agree; None where it does not ask."""
        if not _ASKS.search(text):
            return None
        right = [i for i, change in enumerate(self._changes) if listed(change, text)]
        things = set(_THING.findall(text))
        if right and things <= {t for i in right for v in values(self._changes[i]) for t in _THING.findall(v)}:
            self._agreed += [i for i in right if i not in self._agreed]
            return "yes"
        return "no" if things else "unlisted" if self._changes else None

    def fulfilled(self, refusals: int) -> bool:
        """Whether nothing is left that it wants. One that should get nothing insists once before it gives in."""
        if self._wants_nothing:
            return refusals >= 2
        return len(self._agreed) == len(self._changes) and not self._untold


def values(value: Any) -> Iterator[str]:
    """The leaves of an argument as text; truth values and empty ones are left out."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for v in value:
            yield from values(v)
    elif isinstance(value, str):
        if value.strip():
            yield value
    elif not isinstance(value, bool) and value is not None:
        yield f"{value:g}"


def listed(arguments: dict[str, Any], text: str) -> bool:
    said = _plain(text)
    return all(re.search(rf"(?<!\w){re.escape(_plain(v))}(?!\w)", said) for v in values(arguments))


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace(",", "").split())
