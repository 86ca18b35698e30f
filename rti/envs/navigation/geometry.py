"""Coordinates: their normal form (at most 6 decimals, trailing zeros trimmed), parsing, China's bounds, distance.

The environment's reward, the client's cache key, the renderer and the guards all use this one normal form. Depends on nothing.
"""

from __future__ import annotations

import math
import re

LNG_RANGE = (73.0, 135.5)
LAT_RANGE = (3.0, 54.0)
"""China's bounds. The two do not overlap, so a swapped pair is recognised."""

_NUMBER = r"[-+]?\d{1,3}(?:\.\d{0,15})?"
_PAIR = re.compile(rf"\s*({_NUMBER})\s*[,\s]\s*({_NUMBER})\s*")


class CoordinateError(ValueError):
    """Text that is not a usable coordinate pair. The message is written for the agent."""


def format_number(value: float) -> str:
    """At most 6 decimals, trailing zeros trimmed, never an exponent or a negative zero."""
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def format_pair(lng: float, lat: float) -> str:
    return f"{format_number(lng)},{format_number(lat)}"


def parse_pair(text: str) -> tuple[float, float]:
    """(lng, lat) rounded to 6 decimals. Raises CoordinateError, which names a swapped pair as such."""
    match = _PAIR.fullmatch(text)
    if match is None:
        raise CoordinateError(f"'{text[:60]}' is not a coordinate pair; write 'longitude,latitude', e.g. '114.26667,30.58333'")
    lng, lat = round(float(match[1]), 6), round(float(match[2]), 6)
    if in_range(lng, lat):
        return lng, lat
    if in_range(lat, lng):
        raise CoordinateError(f"'{text[:60]}' has latitude and longitude swapped; write '{format_pair(lat, lng)}'")
    raise CoordinateError(f"'{text[:60]}' is outside China (longitude 73 to 135.5, latitude 3 to 54)")


def normalise_pair(text: str) -> str:
    """The normal form of a coordinate pair in text. Raises CoordinateError."""
    return format_pair(*parse_pair(text))


def in_range(lng: float, lat: float) -> bool:
    return LNG_RANGE[0] <= lng <= LNG_RANGE[1] and LAT_RANGE[0] <= lat <= LAT_RANGE[1]


def distance_m(lng1: float, lat1: float, lng2: float, lat2: float) -> float:
    """Great-circle distance in metres (haversine, mean radius 6,371,008.8 m)."""
    phi1, phi2 = math.radians(lat1), math.radians(lat2)
    a = math.sin((phi2 - phi1) / 2) ** 2
    a += math.cos(phi1) * math.cos(phi2) * math.sin(math.radians(lng2 - lng1) / 2) ** 2
    return 2 * 6371008.8 * math.asin(min(1.0, math.sqrt(a)))
