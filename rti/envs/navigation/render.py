"""Service replies as compact text for the agent: one line a place, one short line a route.

A place's line is `{name}, {province} {lng},{lat}`; a real service's street address stands between province and coordinates.
Keeps: a cut never splits a line and always says how much was left out; only the places whose line is shown count as returned.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

from rti.envs.navigation.geometry import CoordinateError, format_pair, parse_pair

NO_MATCH = "no match"


class Rendered(NamedTuple):
    text: str
    locations: tuple[str, ...] = ()     # normal form, of the places shown


def text_of(value: Any) -> str:
    """A string field; the service writes a missing one as []. Line breaks become spaces."""
    return " ".join(value.split()) if isinstance(value, str) else ""


def place_line(poi: Mapping[str, Any]) -> tuple[str, str] | None:
    """(line, location), or None for a place without usable coordinates."""
    try:
        location = format_pair(*parse_pair(text_of(poi.get("location"))))
    except CoordinateError:
        return None
    region = text_of(poi.get("pname"))
    address, district = text_of(poi.get("address")), text_of(poi.get("adname"))
    if address or district:
        city = text_of(poi.get("cityname"))
        region = " ".join(x for x in (region, city if city != region else "", district, address) if x)
    name = text_of(poi.get("name"))
    return f"{name}, {region} {location}" if region else f"{name} {location}", location


def places(reply: Mapping[str, Any], results: int, limit: int) -> Rendered:
    """At most `results` places in at most `limit` characters. With results > 1 the last line says how many were left out."""
    lines = [line for poi in reply.get("pois") or () if (line := place_line(poi)) is not None]
    if not lines:
        return Rendered(NO_MATCH)
    shown = lines[:results]
    while len(shown) > 1 and len(_join(shown, len(lines), results)) > limit:
        shown.pop()
    text = _join(shown, len(lines), results)
    if len(text) > limit:
        return Rendered(cut(text, limit))
    return Rendered(text, tuple(location for _, location in shown))


def _join(shown: list[tuple[str, str]], total: int, results: int) -> str:
    text = "\n".join(line for line, _ in shown)
    return f"{text}\n(+{total - len(shown)} more)" if results > 1 and total > len(shown) else text


def route(reply: Mapping[str, Any]) -> Rendered:
    """Distance and duration of the best path of a direction reply."""
    body = reply.get("route") or {}
    options = body.get("paths") or body.get("transits") or ()
    if not options:
        return Rendered("error: the service found no route")
    best = options[0]
    metres, seconds = _number(best.get("distance")), _number((best.get("cost") or {}).get("duration") or best.get("duration"))
    text = "ok" if metres is None else f"ok {_kilometres(metres)} km"
    return Rendered(text if seconds is None else f"{text}, {round(seconds / 60)} min")


def _kilometres(metres: float) -> str:
    return str(round(metres / 1000)) if metres >= 10_000 else f"{metres / 1000:.1f}"


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def cut(text: str, limit: int) -> str:
    """Text of at most about `limit` characters; what was left out is counted in its last line."""
    if len(text) <= limit:
        return text
    kept = text[:limit]
    line_end = kept.rfind("\n")
    kept = kept[:line_end] if line_end > limit // 2 else kept
    return f"{kept}\n({len(text) - len(kept)} characters left out)"
