"""Literal values in text and JSON, in one normal form: coordinates to six decimals, numbers, dates, names.

Used by the guards and the rule-based roles. The normal form is that of the environments' rewards, so that a value written in
another way is the same value here and there. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Iterator

PAIR = re.compile(r"(?<![\d.])(-?\d{1,3}(?:\.\d+)?)\s*[,，]\s*(-?\d{1,3}(?:\.\d+)?)(?!\d|\.\d)")


def strings(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value, as text, depth first; the keys are left out."""
    if isinstance(value, dict):
        for v in value.values():
            yield from strings(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from strings(v)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield repr(value)


def coordinate(a: str | float, b: str | float) -> str:
    """A coordinate pair in its normal form "lng,lat": at most six decimals, trailing zeros trimmed, longitude first.

    In China longitude is above 73 and latitude below 54, so a pair given latitude first is recognised and turned round.
    """
    x, y = float(a), float(b)
    if abs(x) <= 54.0 and 73.0 <= y <= 180.0:
        x, y = y, x
    return f"{_decimal(x)},{_decimal(y)}"


def _decimal(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def coordinates(text: str) -> list[str]:
    """The coordinate pairs in a text, in their normal form, in order."""
    return [pair for pair, _ in located(text)]


def located(text: str) -> list[tuple[str, re.Match[str]]]:
    """The coordinate pairs in a text with where they stand."""
    found = []
    for match in PAIR.finditer(text):
        a, b = match.groups()
        if abs(float(a)) <= 180 and abs(float(b)) <= 180:
            found.append((coordinate(a, b), match))
    return found


def name(text: str) -> str:
    """A name in its normal form: case and runs of white space do not matter."""
    return " ".join(text.casefold().split())
