"""The next correct step in retail and airline: find the user, look up what a change needs, list it, get a yes, make it, tell.

A value that the history does not show is looked up (the reference's own look-ups first, then what the records name) or worked
out by `calculate`; where neither helps, the user is asked, once.
"""

from __future__ import annotations

import re
from typing import Any, Iterator

from rti.envs.tau2.evidence import RequiredAction
from rti.mas.roles import Correction
from rti.mas.rules.tau2_case import Case, lists, spoken
from rti.mas.rules.tau2_telecom import PLEASE_HOLD
from rti.trajectory import ToolCall

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w+")
_USER_ID = re.compile(r"\b[a-z]+_[a-z]+_\d{3,5}\b")
_ZIP = re.compile(r"\b\d{5}\b")
_NAME = re.compile(r"(?:I am|I'm|[Nn]ame is|[Nn]ame:)\s+([A-Z][\w'-]+)\s+([A-Z][\w'-]+)")
ASK_RETAIL = "I will gladly help. What is your email address, or your full name and zip code?"
ASK_AIRLINE = "I will gladly help. What is your user id, and which reservation is it about?"
ASK_MORE = "Could you tell me again exactly what you would like to change, with all details?"
REFUSE = ("I am sorry, but that is not possible under our policy.",
          "I understand, but I cannot do this: our policy does not allow it.",
          "Unfortunately there is no way for me to do that.")
DONE = ("That is done. Is there anything else that I can do for you?", "Everything you asked for is settled now.")


def next_step(case: Case) -> Correction | None:
    """None where the visible history offers no way forward."""
    if case.made("transfer_to_human_agents"):
        return _say("The transfer is made, so I tell the user.", PLEASE_HOLD)
    if (step := _identify(case)) is not None:
        return step
    if writes := case.open_writes():
        return _change(case, writes[0])
    if untold := case.untold():
        return _tell(case, untold)
    if any(a.name == "transfer_to_human_agents" for _, a in case.open_actions()):
        summary = f"The customer asks: {case.user_texts[0]}"
        return _call("This is beyond what I can do here.", "transfer_to_human_agents", summary=summary)
    nothing_due = not case.evidence.communicate and not any(
        a.name in case.evidence.agent_writes for a in case.evidence.agent_actions)
    text = next((t for t in (REFUSE if nothing_due else DONE) if t not in case.agent_texts), None)
    return _say("Nothing more is to be changed.", text) if text else None


# --- who it is -------------------------------------------------------------------------------------------------------
def _identify(case: Case) -> Correction | None:
    if case.made("get_user_details"):
        return None
    found = next((d.reply for d in case.calls if d.call.name.startswith("find_user_id") and not d.failed and d.reply), "")
    if not found and case.evidence.domain == "retail":
        return _find(case)
    ids = [found.strip('"')] if found else _USER_ID.findall("\n".join(case.user_texts))
    if ids:
        if case.tried("get_user_details", {"user_id": ids[0]}):
            return None
        return _call("I look at the user's profile.", "get_user_details", user_id=ids[0])
    return _say("I have to know who the user is first.", ASK_AIRLINE) if ASK_AIRLINE not in case.agent_texts else None


def _find(case: Case) -> Correction | None:
    said = "\n".join(case.user_texts)
    options = [("find_user_id_by_email", {"email": e}) for e in _EMAIL.findall(said)]
    names, zips = _NAME.findall(said), _ZIP.findall(said)
    options += [("find_user_id_by_name_zip", {"first_name": f, "last_name": l, "zip": z}) for f, l in names for z in zips]
    options += [(a.name, a.arguments) for a in case.evidence.agent_actions if a.name.startswith("find_user")
                and case.shows(a.arguments)]
    for name, arguments in options:
        if not case.tried(name, arguments):
            return _call("I find the user by what was given.", name, **arguments)
    return _say("I have to know who the user is first.", ASK_RETAIL) if ASK_RETAIL not in case.agent_texts else None


# --- changes ---------------------------------------------------------------------------------------------------------
def _change(case: Case, write: RequiredAction) -> Correction | None:
    subject = _subject(write)
    missing = case.missing(write.arguments)
    if missing or subject and not case.tried(subject.name, subject.arguments):
        for call in _lookups(case, write, missing):
            if not case.tried(call.name, call.arguments) and case.shows(call.arguments):
                return Correction(reasoning="I look up what I need for this.", tool_calls=[call])
        return _say("I need more from the user.", ASK_MORE) if ASK_MORE not in case.agent_texts else None
    if case.confirmed(write.arguments):
        return Correction(reasoning="The user has agreed to these details.",
                          tool_calls=[ToolCall(name=write.name, arguments=write.arguments)])
    if sum(lists(write.arguments, t) for t in case.agent_texts) >= 2:
        return None
    return _say("I list the details before I change anything.", proposal(write))


def _subject(write: RequiredAction) -> ToolCall | None:
    """The look-up of the order or reservation that a change is about: the policies want its state seen first."""
    for key, name in (("order_id", "get_order_details"), ("reservation_id", "get_reservation_details")):
        if key in write.arguments:
            return ToolCall(name=name, arguments={key: write.arguments[key]})
    return None


def proposal(write: RequiredAction) -> str:
    """The details of a change, and the question whether to go on."""
    lines = [f"- {key.replace('_', ' ')}: {_shown(value)}" for key, value in write.arguments.items() if value not in ("", [])]
    return "\n".join([f"This is what I am about to do: {write.name.replace('_', ' ')}.", *lines, "Shall I proceed (yes/no)?"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k.replace('_', ' ')} {_shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "; ".join(map(_shown, value))
    return spoken(value)


def _lookups(case: Case, write: RequiredAction, missing: list[str]) -> Iterator[ToolCall]:
    """Calls that may show what is missing, the likeliest first. Those that were made, or cannot be made yet, are among them."""
    if (subject := _subject(write)) is not None:
        yield subject
    for side, action in case.open_actions():
        if side == "assistant" and action.name not in (*case.evidence.agent_writes, "transfer_to_human_agents"):
            yield ToolCall(name=action.name, arguments=action.arguments)
    yield from (_retail_lookups if case.evidence.domain == "retail" else _airline_lookups)(case, write)
    for value in missing:
        yield from _sums(value)


def _retail_lookups(case: Case, write: RequiredAction) -> Iterator[ToolCall]:
    """The products in the order, then the user's other orders."""
    items = set(write.arguments.get("item_ids") or ())
    orders = [d.data for d in case.calls if d.call.name == "get_order_details" and isinstance(d.data, dict)]
    inside = [i for o in orders for i in o.get("items", [])]
    for item in sorted(inside, key=lambda i: i.get("item_id") not in items):
        if not items or item.get("item_id") in items:
            yield ToolCall(name="get_product_details", arguments={"product_id": item["product_id"]})
    profile = case.made("get_user_details")
    for order in (profile.data or {}).get("orders", []) if profile else []:
        yield ToolCall(name="get_order_details", arguments={"order_id": order})


def _airline_lookups(case: Case, write: RequiredAction) -> Iterator[ToolCall]:
    """Flights between the reservation's places on the days in question, then the user's other reservations."""
    arguments = write.arguments
    own = arguments.get("reservation_id")
    made = case.made("get_reservation_details", {"reservation_id": own}) if own else None
    trip = made.data if made and isinstance(made.data, dict) else arguments
    ends = [trip.get("origin"), trip.get("destination")]
    days = [f.get("date") for f in arguments.get("flights") or []]
    for search in ("search_direct_flight", "search_onestop_flight"):
        for origin, destination in (ends, ends[::-1]):
            for day in dict.fromkeys(days):
                if origin and destination and day:
                    yield ToolCall(name=search, arguments={"origin": origin, "destination": destination, "date": day})
    profile = case.made("get_user_details")
    for reservation in (profile.data or {}).get("reservations", []) if profile else []:
        yield ToolCall(name="get_reservation_details", arguments={"reservation_id": reservation})


def _sums(value: str) -> Iterator[ToolCall]:
    """An amount that follows from the policy's 50 or 100 dollars a passenger."""
    if not re.fullmatch(r"\d+(\.0)?", value):
        return
    for rate in (100, 50):
        times, rest = divmod(int(float(value)), rate)
        if not rest and 1 < times < 10:
            yield ToolCall(name="calculate", arguments={"expression": f"{rate} * {times}"})


# --- information -----------------------------------------------------------------------------------------------------
def _tell(case: Case, untold: list[str]) -> Correction | None:
    """Say what is due where it is shown; else the look-ups that may show it."""
    shown = [i for i in untold if case.shows(i)]
    if shown:
        return _say("I can answer that from what I have found.", f"Here is what you asked about: {', '.join(shown)}.")
    for call in _lookups(case, RequiredAction(id="", name="", arguments={}), []):
        if not case.tried(call.name, call.arguments) and case.shows(call.arguments):
            return Correction(reasoning="I look this up.", tool_calls=[call])
    return None


def _say(reasoning: str, text: str) -> Correction:
    return Correction(reasoning=reasoning, content=text)


def _call(reasoning: str, name: str, **arguments: Any) -> Correction:
    return Correction(reasoning=reasoning, tool_calls=[ToolCall(name=name, arguments=arguments)])
