"""The deterministic guards: what counts as a leak of the evidence, and as a violation of a tool's schema."""

import jsonschema
import pytest

from rti.envs.navigation.geometry import normalise_pair
from rti.envs.navigation.tools import TOOLS
from rti.mas import guards, literals
from rti.trajectory import Message, ToolCall, ToolSchema

EVIDENCE = {
    "order_id": "#W2378156", "user": "sara_doe_496", "amount": 1250.5, "date": "2024-05-16", "location": "114.3,30.6",
    "stops": [{"name": "Xindian", "province": "Hubei"}], "order_level": 3, "nights": 2, "note": "Ask Acme Corp for 7 days.",
}
BOOK = ToolSchema(name="book", description="Books.", parameters={
    "type": "object", "required": ["id"], "properties": {
        "id": {"type": "string"}, "days": {"type": ["integer", "null"]}, "kind": {"enum": ["a", "b"]},
        "when": {"type": "array", "items": {"type": "string"}}, "how": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        "who": {"type": "object", "properties": {"age": {"type": "number", "minimum": 0}}, "required": ["age"]}}})


def leak(said, history="", tools=()):
    messages = [Message(role="user", content=history)] if history else []
    return guards.leak(Message(role="assistant", content=said), messages, tools, EVIDENCE)


@pytest.mark.parametrize("said,kind", [
    ("Go to 114.3,30.6", "coordinate"), ("Go to 114.300000, 30.600000", "coordinate"), ("Go to 30.6,114.3", "coordinate"),
    ("It is order W2378156.", "id"), ("For SARA_DOE_496.", "id"),
    ("That makes $1,250.50.", "number"), ("1250.500 in all", "number"),
    ("On May 16, 2024.", "date"), ("On 16 May.", "date"), ("By 2024/5/16", "date"), ("Go to xindian now", "name"),
    ("In Hubei.", "name"), ("Call ACME  Corp.", "name"),
])
def test_a_literal_of_the_evidence_is_a_leak_however_it_is_written(said, kind):
    assert leak(said) == f"leak:{kind}"


@pytest.mark.parametrize("said,history", [
    ("Go to 114.3,30.6", "Xindian, Hubei 114.300000,30.600000"), ("Go to 114.3,30.6", '{"lng": 114.30, "lat": 30.6}'),
    ("Order W2378156", "my order is #W2378156"), ("It is $1,250.50", "you owe 1250.5 dollars"), ("On May 16", "2024-05-16"),
    ("In Hubei", "Wuhan, hubei 1.0,2.0"), ("Xindian it is", "from Xindian"),
])
def test_what_the_history_shows_is_no_leak(said, history):
    assert leak(said, history) == ""


@pytest.mark.parametrize("said", [
    "3 stops, 2 nights", "Level 3 it is.", "Xindianzhen is fine", "On May 17", "114.4,30.6", "W237815"])
def test_small_counts_and_other_values_are_no_leak(said):
    assert leak(said) == ""


def test_a_leak_in_an_argument_or_in_the_reasoning_is_one():
    call = ToolCall(name="book", arguments={"who": {"ids": ["sara_doe_496"]}})
    assert guards.leak(Message(role="assistant", tool_calls=[call]), [], [], EVIDENCE) == "leak:id"
    assert guards.leak(Message(role="assistant", reasoning="Hubei, I think."), [], [], EVIDENCE) == "leak:name"
    number = ToolCall(name="book", arguments={"price": 1250.5})
    assert guards.leak(Message(role="assistant", tool_calls=[number]), [], [], EVIDENCE) == "leak:number"


def test_a_name_of_two_letters_counts_as_an_argument_only():
    evidence = {"name": "He"}
    assert guards.leak(Message(role="assistant", content="He said so."), [], [], evidence) == ""
    call = ToolCall(name="poi_search", arguments={"address": "he"})
    assert guards.leak(Message(role="assistant", tool_calls=[call]), [], [], evidence) == "leak:name"


def test_chinese_names_are_found_inside_running_text():
    message = Message(role="assistant", content="我们去新店镇吧")
    assert guards.leak(message, [], [], {"name": "新店镇"}) == "leak:name"
    assert guards.leak(message, [Message(role="tool", content="新店镇 114.3,30.6")], [], {"name": "新店镇"}) == ""


def test_what_a_tools_schema_names_is_visible():
    tool = ToolSchema(name="book", description="For Hubei.", parameters={"properties": {"k": {"enum": ["Xindian"]}}})
    assert leak("Hubei or Xindian", tools=[tool]) == ""


def test_a_refusal_never_holds_the_literal():
    for said in ("114.3,30.6", "W2378156", "Hubei", "$1,250.50"):
        assert said not in leak(said)


@pytest.mark.parametrize("pair", ["114.3,30.6", "87,43.1234567", "114.300000,30.6000", "73.5,53"])
def test_coordinates_have_the_rewards_normal_form(pair):
    assert literals.coordinates(pair) == [normalise_pair(pair)]


def test_what_a_service_says_is_shown_unless_it_repeats_the_evidence():
    assert guards.scrub("status 503", EVIDENCE) == "status 503"
    assert "sara" not in guards.scrub("bad prompt: SARA_DOE_496", EVIDENCE).casefold()


ARGUMENTS = [
    {"id": "x"}, {}, {"id": 3}, {"id": "x", "days": 2}, {"id": "x", "days": 2.5}, {"id": "x", "days": None},
    {"id": "x", "days": True}, {"id": "x", "kind": "a"}, {"id": "x", "kind": "c"},
    {"id": "x", "when": ["m"]}, {"id": "x", "when": [1]},
    {"id": "x", "when": "m"}, {"id": "x", "how": True}, {"id": "x", "how": 1},
    {"id": "x", "who": {"age": 3}}, {"id": "x", "who": {}},
    {"id": "x", "who": {"age": -1}}, {"id": "x", "who": {"age": "3"}},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_schema_violations_are_those_that_jsonschema_finds(arguments):
    bad = not jsonschema.Draft202012Validator(BOOK.parameters).is_valid(arguments)
    assert bool(guards.schema_violation(ToolCall(name="book", arguments=arguments), [BOOK])) == bad


def test_calls_that_no_tool_takes_are_violations():
    assert guards.schema_violation(ToolCall(name="fly"), [BOOK]) == "schema:unknown_tool"
    assert guards.schema_violation(ToolCall(name="book", arguments={"id": "x", "z": 1}), [BOOK]) == "schema:unknown_argument"
    assert guards.schema_violation(ToolCall(name="book", error="bad"), [BOOK]) == "schema:unreadable"
    assert guards.schema_violation(ToolCall(name="book"), [BOOK]) == "schema:missing"
    route = {"origin": "1,2", "destination": "3,4", "mode": "driving", "waypoints": ["5,6"]}
    good = ToolCall(name="direction", arguments=route)
    assert guards.schema_violation(good, TOOLS) == ""
    assert guards.schema_violation(ToolCall(name="direction", arguments={**route, "mode": "flying"}), TOOLS) == "schema:enum"


def test_a_correction_without_fault_passes():
    message = Message(role="assistant", tool_calls=[ToolCall(name="book", arguments={"id": "x"})])
    assert guards.refusal(message, [], [BOOK], EVIDENCE) == ""


def test_a_date_follows_from_its_day_and_a_year_that_both_stand_in_the_history():
    reply = Message(role="assistant", content="The flight of 2024-05-16.")
    evidence = {"date": "2024-05-16"}
    today, day = Message(role="system", content="It is 2024-05-15."), Message(role="user", content="I fly on May 16.")
    assert guards.leak(reply, [today, day], [], evidence) == ""
    assert guards.leak(reply, [today], [], evidence) == guards.leak(reply, [day], [], evidence) == "leak:date"
