"""The agent's three tools over the map service: schemas, argument checks, calls, and their text.

Keeps: whatever the agent writes, a tool answers with text (errors begin with `error:`); only the service's own faults raise.
Every coordinate, in and out, is `longitude,latitude`.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple, Sequence

from rti.envs.navigation import render
from rti.envs.navigation.client import AgentMistake, MapClient
from rti.envs.navigation.geometry import CoordinateError, format_pair, parse_pair
from rti.envs.navigation.reward import split_waypoints
from rti.trajectory import ToolCall, ToolSchema

MAX_RADIUS, MAX_KEYWORD, MAX_WAYPOINTS, PAGE = 50_000, 80, 16, 25
MODES = ("driving", "walking", "bicycling", "transit")

_PAIR = "'longitude,latitude', at most 6 decimals, e.g. '114.26667,30.58333'"


def _schema(name: str, description: str, required: Sequence[str], **properties: dict[str, Any]) -> ToolSchema:
    return ToolSchema(name=name, description=description, parameters={
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False})


TOOLS = (
    _schema("poi_search", "Find a place by name. Returns places with province and coordinates, the best match first.",
            ["address"],
            address={"type": "string", "description": "name of the place"},
            region={"type": "string", "description": "province or city; only places there are returned"}),
    _schema("around_search", "Find places near a point, the nearest first.", ["location", "radius"],
            location={"type": "string", "description": f"the point, {_PAIR}"},
            radius={"type": "number", "description": "metres, at most 50000"},
            keyword={"type": "string", "description": "only places with this in their name"},
            region={"type": "string", "description": "province or city; only places there are returned"}),
    _schema("direction", "Plan the route. Waypoints are visited in the order given; only driving takes them.",
            ["origin", "destination", "mode"],
            origin={"type": "string", "description": f"start, {_PAIR}"},
            waypoints={"type": "array", "items": {"type": "string"}, "description": f"stops between, each {_PAIR}; at most 16"},
            destination={"type": "string", "description": f"end, {_PAIR}"},
            mode={"type": "string", "enum": list(MODES)}),
)
_BY_NAME = {t.name: t for t in TOOLS}


class ToolResult(NamedTuple):
    text: str
    locations: tuple[str, ...] = ()                 # normal form, of the places shown
    direction: Mapping[str, Any] | None = None      # arguments of a direction call that the service answered


class BadArguments(ValueError):
    """Arguments that the tool cannot take. The text is for the agent."""


def check_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments with absent optional ones left out. Raises BadArguments."""
    parameters = _BY_NAME[call.name].parameters
    properties = parameters["properties"]
    for name in call.arguments:
        if name not in properties:
            raise BadArguments(f"unknown argument '{str(name)[:40]}'; {call.name} takes {', '.join(properties)}")
    given = {k: v for k, v in call.arguments.items() if v is not None and v != "" and v != []}
    for name in parameters["required"]:
        if name not in given:
            raise BadArguments(f"{call.name} needs the argument '{name}'")
    for name, value in given.items():
        given[name] = _check_type(name, value, properties[name])
    return given


def _check_type(name: str, value: Any, schema: Mapping[str, Any]) -> Any:
    kind = schema["type"]
    if kind == "string":
        if not isinstance(value, str):
            raise BadArguments(f"'{name}' must be a string")
        if "enum" in schema and value not in schema["enum"]:
            raise BadArguments(f"'{name}' must be one of {', '.join(schema['enum'])}")
        return value.strip()
    if kind == "number":
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise BadArguments(f"'{name}' must be a number")
        return number
    items = split_waypoints(value) if isinstance(value, (str, list)) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise BadArguments(f"'{name}' must be a list of strings")
    return items


class NavigationTools:
    """Runs calls for any number of episodes; holds no state of any."""

    def __init__(self, client: MapClient, results: int, observation_chars: int) -> None:
        self._client, self._results, self._limit = client, results, observation_chars

    async def run(self, call: ToolCall) -> ToolResult:
        """The tool's reply. Raises EnvironmentFault or FatalEnvironmentError where the service itself fails."""
        if call.error:
            return self._error(call.error)
        tools = {"poi_search": self._poi_search, "around_search": self._around_search, "direction": self._direction}
        tool = tools.get(call.name)
        if tool is None:
            return self._error(f"unknown tool '{call.name[:40]}'; the tools are {', '.join(_BY_NAME)}")
        try:
            return await tool(check_arguments(call))
        except (BadArguments, CoordinateError, AgentMistake) as e:
            return self._error(str(e))

    def _error(self, text: str) -> ToolResult:
        return ToolResult(render.cut(f"error: {text}", self._limit))

    def _paging(self) -> dict[str, str]:
        """More than are shown are asked for only where the agent is told how many were left out."""
        return {"page_size": str(PAGE if self._results > 1 else 1)}

    def _places(self, reply: Mapping[str, Any]) -> ToolResult:
        rendered = render.places(reply, self._results, self._limit)
        return ToolResult(rendered.text, rendered.locations)

    async def _poi_search(self, arguments: Mapping[str, Any]) -> ToolResult:
        params = {"keywords": _short("address", arguments["address"]), **self._paging()}
        if "region" in arguments:
            params |= {"region": _short("region", arguments["region"]), "city_limit": "true"}
        return self._places(await self._client.request("/v5/place/text", params))

    async def _around_search(self, arguments: Mapping[str, Any]) -> ToolResult:
        radius = arguments["radius"]
        if not 1 <= radius <= MAX_RADIUS:   # the real service would fall back to 5000 without a word
            raise BadArguments(f"'radius' must be 1 to {MAX_RADIUS} metres")
        params = {"location": format_pair(*parse_pair(arguments["location"])), "radius": str(round(radius)), **self._paging()}
        if "keyword" in arguments:
            params["keywords"] = _short("keyword", arguments["keyword"])
        if "region" in arguments:
            params |= {"region": _short("region", arguments["region"]), "city_limit": "true"}
        return self._places(await self._client.request("/v5/place/around", params))

    async def _direction(self, arguments: Mapping[str, Any]) -> ToolResult:
        origin, destination = (format_pair(*parse_pair(arguments[n])) for n in ("origin", "destination"))
        waypoints = [format_pair(*parse_pair(w)) for w in arguments.get("waypoints", ())]
        mode = arguments["mode"]
        if waypoints and mode != "driving":
            raise BadArguments("only driving takes waypoints")
        if len(waypoints) > MAX_WAYPOINTS:
            raise BadArguments(f"at most {MAX_WAYPOINTS} waypoints; {len(waypoints)} were given")
        params = {"origin": origin, "destination": destination, "show_fields": "cost"}
        if waypoints:
            params["waypoints"] = ";".join(waypoints)
        path = f"/v5/direction/{mode}"
        if mode == "transit":
            path += "/integrated"
            params |= {"city1": await self._citycode(origin), "city2": await self._citycode(destination)}
        rendered = render.route(await self._client.request(path, params))
        if not rendered.text.startswith("ok"):
            return ToolResult(rendered.text)
        made = {"origin": origin, "destination": destination, "waypoints": waypoints, "mode": mode}
        return ToolResult(rendered.text, direction=made)

    async def _citycode(self, location: str) -> str:
        reply = await self._client.request("/v3/geocode/regeo", {"location": location})
        code = ((reply.get("regeocode") or {}).get("addressComponent") or {}).get("citycode")
        if not isinstance(code, str) or not code:
            raise AgentMistake("there is no public transport at a coordinate")
        return code


def _short(name: str, text: str) -> str:
    if not text or len(text) > MAX_KEYWORD:
        raise BadArguments(f"'{name}' must have 1 to {MAX_KEYWORD} characters")
    return text
