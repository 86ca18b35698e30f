"""The reward rule: does a direction call visit the reference's places in an order that the task accepts?

Coordinates are compared in the normal form (6 decimals), so 114.3 and 114.300000 are the same place. Pure; the role rules and
the guards of the intervention use the same functions.

Order levels: 0 any order of all the places, start and end included; 1 start fixed, the rest free; 2 end fixed, the rest
free; 3 start and end fixed, the middle free; 4 exact order.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterable, Mapping, Sequence

from rti.envs.navigation.geometry import CoordinateError, normalise_pair

ORDER_LEVELS = (0, 1, 2, 3, 4)


def order_accepted(level: int, reference: Sequence[str], visited: Sequence[str]) -> bool:
    """Whether `visited` is an order of `reference` that the level accepts. Both are start, ..., end in normal form."""
    if level not in ORDER_LEVELS:
        raise ValueError(f"order level {level!r} is not one of {ORDER_LEVELS}")
    if len(visited) != len(reference) or not reference:
        return False
    if level == 4:
        return list(visited) == list(reference)
    if level in (1, 3) and visited[0] != reference[0]:
        return False
    if level in (2, 3) and visited[-1] != reference[-1]:
        return False
    return Counter(visited) == Counter(reference)


def split_waypoints(value: Any) -> list[str]:
    """Waypoints as a list: given as one, as text with `;` between, or not at all."""
    if not value:
        return []
    return [w.strip() for w in value.split(";") if w.strip()] if isinstance(value, str) else list(value)


def route_places(call: Mapping[str, Any]) -> list[str]:
    """origin, waypoints, destination of a direction call's arguments in normal form. Raises CoordinateError or KeyError."""
    return [normalise_pair(p) for p in (call["origin"], *split_waypoints(call.get("waypoints")), call["destination"])]


def is_right(evidence: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Whether a direction call's arguments fit the task's evidence."""
    try:
        visited = route_places(call)
    except (CoordinateError, KeyError):
        return False
    return order_accepted(evidence["order_level"], route_places(evidence["reference"]), visited)


def all_returned(call: Mapping[str, Any], returned: Iterable[str]) -> bool:
    """Whether every coordinate of the call was returned by a tool before (`returned` in normal form)."""
    return set(route_places(call)) <= set(returned)
