"""Literal values in text and JSON, in one normal form: coordinates to six decimals, numbers, dates, names.

Used by the guards and the rule-based roles. The normal form is that of the environments' rewards, so that a value written in
another way is the same value here and there. Pure.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Iterable, Iterator

import msgspec

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


# --- every literal of a text, by class --------------------------------------------------------------------------------
_MONTHS = {m: i for i, m in enumerate(
    "january february march april may june july august september october november december".split(), 1)}
_MONTHS |= {m[:3]: i for m, i in list(_MONTHS.items())}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_ISO = re.compile(r"(?<!\d)(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})(?!\d)")
_MONTH_FIRST = re.compile(rf"\b({_MONTH})\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(\d{{4}}))?", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+({_MONTH})\b\.?(?:,?\s+(\d{{4}}))?", re.IGNORECASE)
_ID = re.compile(r"#?[A-Za-z0-9]+(?:[_\-][A-Za-z0-9]+)*")
_NUMBER = re.compile(r"([$€£¥]\s*)?(?<![\w.])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?![\w]|\.\d)")


class Literals(msgspec.Struct, frozen=True):
    """The literals of a text by class, each in its normal form."""

    coordinate: frozenset[str] = frozenset()
    date: frozenset[str] = frozenset()
    id: frozenset[str] = frozenset()
    number: frozenset[str] = frozenset()


def literals(text: str) -> Literals:
    """Coordinates, dates, ids and telling numbers of a text.

    A date with a year also counts without it. A number is telling where it has a currency sign, a fraction or three digits
    and more: a small count says nothing. Numbers inside a coordinate or a date are not numbers of their own.
    """
    pairs, text = _take_pairs(text)
    dates, text = _take_dates(text)
    ids = {t.lstrip("#").casefold() for t in _ID.findall(text) if _is_id(t)}
    numbers = {number(n) for sign, n in _NUMBER.findall(text) if sign or "." in n or len(n) >= 3}
    return Literals(frozenset(pairs), frozenset(dates), frozenset(ids), frozenset(numbers))


_of_one = functools.lru_cache(maxsize=4096)(literals)


def of_all(texts: Iterable[str]) -> Literals:
    """The literals of several texts together. Each text is kept for the next time: a history grows by a message a step."""
    found = [_of_one(t) for t in texts]
    return Literals(*(frozenset().union(*(getattr(f, kind) for f in found)) for kind in Literals.__struct_fields__))


def number(text: str) -> str:
    """A number in its normal form: no thousands separators, at most six decimals, no trailing zeros."""
    return _decimal(float(text.replace(",", "")))


def decimals(text: str) -> list[str]:
    """Every number in a text as it is written."""
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)


def _take_pairs(text: str) -> tuple[set[str], str]:
    found = located(text)
    for _, match in reversed(found):
        text = f"{text[:match.start()]} {text[match.end():]}"
    return {pair for pair, _ in found}, text


def _take_dates(text: str) -> tuple[set[str], str]:
    found: set[str] = set()

    def take(year: str | None, month: int, day: str, whole: str) -> str:
        if not (1 <= month <= 12 and 1 <= int(day) <= 31):
            return whole
        found.add(f"{month:02d}-{int(day):02d}")
        if year:
            found.add(f"{year}-{month:02d}-{int(day):02d}")
        return " "

    text = _ISO.sub(lambda m: take(m[1], int(m[2]), m[3], m[0]), text)
    text = _MONTH_FIRST.sub(lambda m: take(m[3], _MONTHS[m[1].casefold()], m[2], m[0]), text)
    return found, _DAY_FIRST.sub(lambda m: take(m[3], _MONTHS[m[2].casefold()], m[1], m[0]), text)


def _is_id(token: str) -> bool:
    """Letters and digits mixed, three characters and more: `HAT045`, `sara_doe_496`, `#W2378156`. `3rd` and `5km` are none."""
    bare = token.lstrip("#")
    mixed = any(c.isdigit() for c in bare) and any(c.isalpha() for c in bare)
    return mixed and len(bare) >= 3 and not re.fullmatch(r"\d+(st|nd|rd|th|km|m|min|h|s|kg|am|pm)", bare, re.IGNORECASE)


_NAME = re.compile(r"\b[A-Z][\w'’.\-]*(?:\s+[A-Z][\w'’.\-]*)+")
_CJK = re.compile(r"[㐀-鿿]")
MAX_NAME = 60


def names(value: Any) -> set[str]:
    """The names in a JSON value, in normal form: short texts that begin with a capital or hold Chinese characters, and the
    runs of capitalised words in longer ones."""
    found: set[str] = set()
    for text in strings(value):
        text = text.strip()
        short = 2 <= len(text) <= MAX_NAME and len(text.split()) <= 5 and text[-1] not in ".!?:" and not located(text)
        if short and (text[0].isupper() or _CJK.search(text)):
            found.add(name(text))
        else:
            for run in _NAME.findall(text):
                words = run.rstrip(".-'’").split()
                # the first word may be capitalised only because a sentence begins with it
                found |= {name(" ".join(words)), *([name(" ".join(words[1:]))] if len(words) > 2 else [])}
    return found


def holds_name(text: str, wanted: str) -> bool:
    """Whether a text in normal form holds a name in normal form as whole words (Chinese has no word limits).

    A name of two letters is found in no running text: it would be taken for a word.
    """
    if len(wanted) < 3 and not _CJK.search(wanted):
        return False
    at = text.find(wanted)
    while at >= 0:
        before, after = text[max(at - 1, 0):at], text[at + len(wanted):at + len(wanted) + 1]
        if _CJK.search(wanted) or not (before.isalnum() or after.isalnum()):
            return True
        at = text.find(wanted, at + 1)
    return False
