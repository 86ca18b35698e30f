"""Queries for trips: templates by order level, and the filter that checks a query against its stops.

Keeps: the order in which a query names the places is itself an order that its level accepts, the start first; a query holds
every stop's name once and no coordinates.
"""

from __future__ import annotations

import random
import re
from typing import Sequence

LAB_TEMPLATES = {
    0: ("Visit {A}, {B} and {C} in any order.", "See {A}, {B} and {C}, any order."),
    1: ("Start at {A}, then {B} and {C} in any order.", "From {A}, see {B} and {C} in any order."),
    3: ("Start at {A}, pass {B}, end at {C}.", "Begin at {A}, stop at {B}, finish at {C}."),
    4: ("Drive from {A} via {B} to {C}.", "Go from {A} to {B}, then to {C}."),
}
"""Three stops; A is the start."""

FULL_TEMPLATES = {
    0: ("I want to see {stops}{where}. The order does not matter, nor where I start or end. Plan the drive.",
        "Plan a drive{where} that takes in {stops}, in whatever order you like, with any of them as start or end."),
    1: ("I set out from {first}{where} and want to see {rest}; after the start any order will do. Plan the drive.",
        "Starting at {first}{where}, plan a drive to {rest}. Only the start is fixed."),
    2: ("I want to see {rest}{where} and must finish at {last}; before that any order will do. Plan the drive.",
        "Plan a drive{where} that takes in {rest} in any order and ends at {last}. Only the end is fixed."),
    3: ("I leave from {first}{where}, want to see {middle} in any order, and must finish at {last}. Plan the drive.",
        "Plan a drive{where} from {first}, through {middle} in whatever order suits, ending at {last}."),
    4: ("Plan a drive{where} from {first} to {sequence}, in exactly this order.",
        "I drive from {first}{where}, then go to {sequence}, one after the other in this order. Plan the route."),
}

_COORDINATES = re.compile(r"\d{1,3}\.\d+\s*[,;]\s*\d{1,3}\.\d+")


def lab_query(rng: random.Random, level: int, names: Sequence[str]) -> str:
    a, b, c = names
    return rng.choice(LAB_TEMPLATES[level]).format(A=a, B=b, C=c)


def listing(names: Sequence[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def full_query(rng: random.Random, level: int, names: Sequence[str], region: str) -> str:
    """A query over the names in reference order. Every second one names the region that the trip lies in."""
    where = f" in {region}" if rng.random() < 0.5 else ""
    rest = names[:-1] if level == 2 else names[1:]
    return rng.choice(FULL_TEMPLATES[level]).format(
        where=where, stops=listing(names), first=names[0], last=names[-1], rest=listing(rest), middle=listing(names[1:-1]),
        sequence=", then ".join(names[1:]))


def problem_of(query: str, names: Sequence[str], region: str = "", ordered: bool = True) -> str:
    """What is wrong with a query for these stops, or "" where nothing is. `ordered`: names must come in the order given.

    A name within another name (Xin in Xinhe) counts once for itself: longer names are taken out of the text first.
    """
    if _COORDINATES.search(query):
        return "the query holds coordinates"
    text, places = query, {}
    for name in sorted(names, key=len, reverse=True):
        pattern = re.compile(rf"(?<![\w'-]){re.escape(name)}(?![\w'-])")
        found = [m.start() for m in pattern.finditer(text)]
        if name == region:
            found = found[:1]       # the region may share a stop's name
        if len(found) != 1:
            return f"the query names {name} {len(found)} times"
        places[name] = found[0]
        text = pattern.sub(lambda m: "#" * len(m[0]), text)
    if ordered and [places[n] for n in names] != sorted(places.values()):
        return "the query does not name the stops in their order"
    return ""
