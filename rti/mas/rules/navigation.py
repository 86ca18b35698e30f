"""The three roles for navigation as rules that work from the evidence: pure functions of a RoleContext.

Evidence: `order_level`, `reference` {origin, waypoints, destination} and `stops` [{name, province, location}], locations as
"lng,lat". Every value that a correction holds is taken from the visible history: a region from a result already returned, a
coordinate from the text of the tool message that gave it. So the oracle keeps the rule it teaches: nothing underivable.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, Iterator, Sequence

import msgspec

from rti.envs.navigation.geometry import CoordinateError, normalise_pair
from rti.envs.navigation.reward import order_accepted, route_places
from rti.mas import literals
from rti.mas.roles import Correction, RoleContext, Validation, Verdict
from rti.mas.rules import verdicts
from rti.trajectory import Message, ToolCall

SEARCH, AROUND, DIRECTION = "poi_search", "around_search", "direction"
FIND, LOOK_AGAIN, ALL_FOUND = "Find the places.", "Look again.", "All found."
RADIUS = 50000              # metres: the largest that the service takes


class Stop(msgspec.Struct, frozen=True):
    name: str
    province: str
    location: str           # normal form


class Done(msgspec.Struct, frozen=True):
    """A call of the history with the tool's reply ("" where none came)."""

    call: ToolCall
    reply: str


# --- the Validator -------------------------------------------------------------------------------------------------
def validate(ctx: RoleContext) -> Validation:
    """Whether the draft does harm that the agent cannot undo, or is pointless. Look-ups are otherwise let pass."""
    done = list(history_calls(ctx.history))
    calls = [c for c in ctx.draft.tool_calls if not c.error]
    if repeat := _repeated_search(calls, done):
        return _invalid(f"Repeats the search for {repeat}.", "POINTLESS_REPEAT", "Search in another way.")
    for call in calls:
        if call.name == DIRECTION and (bad := _bad_direction(call, ctx, done)):
            return bad
    if not ctx.draft.tool_calls and not _has_route(ctx.evidence, done):
        return _invalid("Ends without a route.", "PREMATURE_TERMINATION", _next_hint(ctx, done))
    return Validation(diagnosis="Fine.", is_valid=True)


def _invalid(diagnosis: str, error: str, suggest: str) -> Validation:
    return Validation(diagnosis=diagnosis, is_valid=False, error_types=[error], suggest_next=suggest)


def _repeated_search(calls: Sequence[ToolCall], done: Sequence[Done]) -> str:
    """The address that is searched twice in one turn, or was searched before with the same arguments and got an answer."""
    seen = {_key(d.call) for d in done if d.reply and not _failed(d.reply)}
    for call in calls:
        if call.name not in (SEARCH, AROUND):
            continue
        key = _key(call)
        if key in seen:
            return str(call.arguments.get("address") or call.arguments.get("keyword") or "the same place")
        seen.add(key)
    return ""


def _bad_direction(call: ToolCall, ctx: RoleContext, done: Sequence[Done]) -> Validation | None:
    """Why a direction call must not be made, or None. Such a call cannot be taken back: it ends the task."""
    stops, visible = stops_of(ctx.evidence), _visible(done)
    used = route_of(call)
    if any(c not in visible for c in used):
        return _invalid("Uses coordinates that no tool returned.", "FABRICATED_ARGUMENTS", _next_hint(ctx, done))
    meant = [s.location for s in stops]
    wrong = [s.name for s in stops if s.location not in used]
    if any(c not in meant for c in used):
        return _invalid(f"Wrong place: {', '.join(wrong)}.", "ARGUMENT_MISMATCH", _next_hint(ctx, done))
    if missing := [s.name for s in stops if s.location not in visible]:
        return _invalid(f"Not yet found: {', '.join(missing)}.", "PREMATURE_TERMINATION", _next_hint(ctx, done))
    if not order_holds(used, ctx.evidence):
        return _invalid("Not the stops in the order asked for.", "ARGUMENT_MISMATCH", _next_hint(ctx, done))
    return None


def _next_hint(ctx: RoleContext, done: Sequence[Done]) -> str:
    visible = _visible(done)
    missing = [s.name for s in stops_of(ctx.evidence) if s.location not in visible]
    return f"Search again: {', '.join(missing)}." if missing else "Call direction with the places found."


def _has_route(evidence: dict[str, Any], done: Sequence[Done]) -> bool:
    routes = (d for d in done if d.call.name == DIRECTION and d.reply and not _failed(d.reply))
    return any(order_holds(route_of(d.call), evidence) for d in routes)


# --- the Corrector -------------------------------------------------------------------------------------------------
def correct(ctx: RoleContext) -> Correction:
    """The next action that helps: searches for every stop still missing, in one turn, or else the direction call.

    Empty (no calls, no content) where the visible history offers no way forward.
    """
    done = list(history_calls(ctx.history))
    stops, visible = stops_of(ctx.evidence), _visible(done)
    missing = [s for s in stops if s.location not in visible]
    if not missing:
        return Correction(reasoning=ALL_FOUND, tool_calls=[_direction(ctx, done)])
    right = [s for s in stops if s.location in visible]
    calls = [c for s in missing if (c := _search(s, right, ctx, done)) is not None]
    if not calls:
        return Correction(reasoning="")
    return Correction(reasoning=LOOK_AGAIN if any(d.call.name in (SEARCH, AROUND) for d in done) else FIND, tool_calls=calls)


def _search(stop: Stop, right: Sequence[Stop], ctx: RoleContext, done: Sequence[Done]) -> ToolCall | None:
    """The most promising search for a stop that was not yet made, from what the history shows; None where there is none."""
    tried = {_key(d.call) for d in done if d.reply and not _failed(d.reply)}
    same = literals.name(stop.province)
    regions = [r for s in right if literals.name(r := _shown_region(s, done)) == same]
    asked = " ".join(m.content for m in ctx.history if m.role == "user")
    if same and same in literals.name(asked):
        regions.append(stop.province)
    options = [ToolCall(name=SEARCH, arguments={"address": stop.name, "region": r}) for r in regions]
    if not any(d.call.name == SEARCH and _address(d.call) == literals.name(stop.name) for d in done):
        options.append(ToolCall(name=SEARCH, arguments={"address": stop.name}))
    if not ctx.tools or any(t.name == AROUND for t in ctx.tools):
        options += [_around(stop, s, done) for s in right]
    return next((c for c in options if _key(c) not in tried), None)


def _around(stop: Stop, near: Stop, done: Sequence[Done]) -> ToolCall:
    place = _shown_location(near.location, done)
    return ToolCall(name=AROUND, arguments={"location": place, "radius": RADIUS, "keyword": stop.name})


def _direction(ctx: RoleContext, done: Sequence[Done]) -> ToolCall:
    """The right call, with every coordinate written as the tool message that returned it writes it."""
    reference = ctx.evidence["reference"]
    shown = {k: _shown_location(_one(reference[k]), done) for k in ("origin", "destination")}
    between = [_shown_location(_one(w), done) for w in _listed(reference.get("waypoints"))]
    tool = next((t for t in ctx.tools if t.name == DIRECTION), None)
    properties = tool.parameters.get("properties", {}) if tool else {}
    as_text = properties.get("waypoints", {}).get("type", "array") == "string"
    arguments: dict[str, Any] = {**shown, "mode": _mode(ctx, properties)}
    if between:     # only driving takes them
        arguments |= {"mode": "driving", "waypoints": ";".join(between) if as_text else between}
    order = list(properties) or ["origin", "waypoints", "destination", "mode"]
    return ToolCall(name=DIRECTION, arguments={k: arguments[k] for k in order if k in arguments})


def _mode(ctx: RoleContext, properties: dict[str, Any]) -> str:
    """The draft's mode of travel where it has one, else the one that the user named, else driving."""
    for call in ctx.draft.tool_calls:
        if call.name == DIRECTION and isinstance(call.arguments.get("mode"), str):
            return call.arguments["mode"]
    modes = [m for m in properties.get("mode", {}).get("enum", []) if isinstance(m, str)]
    asked = literals.name(" ".join(m.content for m in ctx.history if m.role == "user"))
    return next((m for m in modes if m.casefold() in asked), "driving" if "driving" in modes or not modes else modes[0])


# --- the Verifier --------------------------------------------------------------------------------------------------
_HIDDEN = verdicts.hidden_words("reference route", "order level")


def verify(ctx: RoleContext) -> Verdict:
    """Refuses a correction that tells of hidden material, holds what the history does not show, or repeats the draft."""
    reply = ctx.correction
    if reply is None:
        return verdicts.refuse("unreasonable_calibration", "There is no correction.")
    if _HIDDEN.search(f"{reply.reasoning} {reply.content}"):
        return verdicts.refuse("leak", "Speaks of hidden material.")
    done = list(history_calls(ctx.history))
    visible = _visible(done)
    spoken = literals.coordinates(f"{reply.reasoning} {reply.content}")
    written = [c for call in reply.tool_calls for v in literals.strings(call.arguments) for c in literals.coordinates(v)]
    if any(c not in visible for c in spoken + written):
        return verdicts.refuse("not_derivable", "Holds coordinates that no tool returned.")
    shown = literals.name(" ".join(m.content for m in ctx.history))
    for call in reply.tool_calls:
        words = [call.arguments.get(k) for k in ("address", "region", "keyword")]
        if any(isinstance(w, str) and literals.name(w) not in shown for w in words):
            return verdicts.refuse("not_derivable", "Holds a name that the history does not show.")
    if [_key(c) for c in reply.tool_calls] == [_key(c) for c in ctx.draft.tool_calls] and reply.content == ctx.draft.content:
        return verdicts.refuse("unreasonable_calibration", "Is the draft again.")
    return verdicts.FINE


# --- reading the evidence and the history ----------------------------------------------------------------------------
def stops_of(evidence: dict[str, Any]) -> list[Stop]:
    return [Stop(str(s["name"]), str(s.get("province", "")), _one(s["location"])) for s in evidence.get("stops", [])]


def history_calls(history: Sequence[Message]) -> Iterator[Done]:
    """Every readable call of the history with its reply, paired by call id where ids are given, else by order."""
    for i, message in enumerate(history):
        if message.role != "assistant" or not message.tool_calls:
            continue
        replies = list(itertools.takewhile(lambda m: m.role == "tool", history[i + 1:]))
        by_id = {r.tool_call_id: r.content for r in replies if r.tool_call_id}
        for j, call in enumerate(message.tool_calls):
            reply = by_id.get(call.id) if call.id else None
            if reply is None and j < len(replies):
                reply = replies[j].content
            if not call.error:
                yield Done(call, reply or "")


def route_of(call: ToolCall) -> list[str]:
    """The coordinates of a direction call in travel order, in normal form; what is not a coordinate pair is left out."""
    arguments = call.arguments
    values = [arguments.get("origin"), *_listed(arguments.get("waypoints")), arguments.get("destination")]
    return [c for text in literals.strings(values) for c in _pairs(text)]


def _pairs(text: str) -> list[str]:
    try:
        return [normalise_pair(text)]       # the environment also reads "lng lat"
    except CoordinateError:
        return literals.coordinates(text)


def order_holds(route: Sequence[str], evidence: dict[str, Any]) -> bool:
    """Whether a route visits exactly the places of the reference in an order that the task's order level allows."""
    return order_accepted(int(evidence["order_level"]), route_places(evidence["reference"]), route)


def _visible(done: Sequence[Done]) -> set[str]:
    """Coordinates that a search returned. A direction reply shows none: it only repeats what it was called with."""
    return {c for d in done if d.call.name != DIRECTION for c in literals.coordinates(d.reply)}


def _shown(location: str, done: Sequence[Done]) -> tuple[str, re.Match[str]] | None:
    """The line of a search's reply that returned a location, and where in it the coordinates stand."""
    for d in done:
        if d.call.name == DIRECTION:
            continue
        for line in d.reply.splitlines():
            for pair, match in literals.located(line):
                if pair == location:
                    return line, match
    return None


def _shown_location(location: str, done: Sequence[Done]) -> str:
    """A location as the history writes it, without spaces."""
    found = _shown(location, done)
    return ",".join(found[1].groups()) if found else location


def _shown_region(stop: Stop, done: Sequence[Done]) -> str:
    """The province of a stop as the result line that returned it shows it; "" where the line does not."""
    found = _shown(stop.location, done)
    if not found or not stop.province:
        return ""
    at = re.search(re.escape(stop.province), found[0], re.IGNORECASE)
    return at.group() if at else ""


def _key(call: ToolCall) -> str:
    """What makes two calls the same: tool and arguments in normal form, empty ones left out."""
    arguments = {k: literals.name(v) if isinstance(v, str) else v for k, v in call.arguments.items() if v not in (None, "", [])}
    return json.dumps([call.name, arguments], sort_keys=True, ensure_ascii=False, default=str)


def _address(call: ToolCall) -> str:
    value = call.arguments.get("address")
    return literals.name(value) if isinstance(value, str) else ""


def _failed(reply: str) -> bool:
    return reply.lstrip().casefold().startswith("error")


def _listed(value: Any) -> list[Any]:
    """Waypoints as a list: given as one, as text with `;` between, or not at all."""
    if isinstance(value, str):
        return [v for v in value.split(";") if v.strip()]
    return value if isinstance(value, list) else []


def _one(value: Any) -> str:
    """The one coordinate pair in a value of the evidence, in normal form."""
    found = [c for text in literals.strings(value) for c in literals.coordinates(text)]
    if len(found) != 1:
        raise ValueError("evidence holds a location that is not one \"lng,lat\" pair")
    return found[0]
