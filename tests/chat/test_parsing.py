"""Whatever a policy writes is read without raising; what cannot be read tells the agent why."""

import json

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from rti.chat.parsing import MAX_DEPTH, load_json, parse_turn
from rti.trajectory import Message, ToolCall, ToolSchema


def call(arguments, name="search"):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def only_error(text):
    message = parse_turn(text)
    (parsed,) = message.tool_calls
    return parsed.error


def test_thinking_text_and_calls_are_told_apart():
    text = "<think>\nfirst\n\nsecond\n</think>\n\nI search.\n" + call({"query": "北京"}) + "\n" + call({}, "stop")
    assert parse_turn(text) == Message(
        role="assistant", reasoning="first\n\nsecond", content="I search.",
        tool_calls=[ToolCall(name="search", arguments={"query": "北京"}, id="call_0"), ToolCall(name="stop", id="call_1")])


@pytest.mark.parametrize("text, reasoning, content", [
    ("", "", ""), ("hello", "", "hello"), ("<think>", "", ""), ("<think>cut", "cut", ""), ("<think>a</think>b", "a", "b"),
    ("a</think>\n\nb", "a", "b"), ("</think>b", "", "b"), ("b<think>c", "", "b<think>c"),
    (" <think>\n\n</think>\n\nb", "", "b"),
    ("<think>a</think>b</think>c", "a", "b</think>c"),
])
def test_thinking_is_read_whole_empty_cut_or_opened_by_the_header(text, reasoning, content):
    assert parse_turn(text) == Message(role="assistant", reasoning=reasoning, content=content)


def test_a_call_inside_thinking_is_not_made():
    assert parse_turn("<think>" + call({}) + "</think>done").tool_calls == []
    assert parse_turn("<think>" + call({})).tool_calls == []


def test_tags_inside_arguments_are_text():
    arguments = {"a": "</tool_call>", "b": "<tool_call>{", "c": "</think>", "d": "<think>"}
    assert parse_turn(call(arguments)).tool_calls == [ToolCall(name="search", arguments=arguments, id="call_0")]


def test_text_after_and_between_calls_is_content():
    message = parse_turn(f"a\n{call({})}\nb\n{call({})}\nc")
    assert message.content == "a\nb\nc" and len(message.tool_calls) == 2


@pytest.mark.parametrize("end", ["", "\n", "</tool_call>", "<tool_call>"])
def test_a_whole_call_without_its_closing_tag_is_a_call(end):
    first = parse_turn('<tool_call>{"name": "stop", "arguments": {}}' + end).tool_calls[0]
    assert first == ToolCall(name="stop", id="call_0")


def test_arguments_written_as_a_string_of_json_are_read():
    assert parse_turn(call('{"query": "x"}')).tool_calls[0].arguments == {"query": "x"}


@pytest.mark.parametrize("text, said", [
    ('<tool_call>{"name": "search", "arguments": {"que', "not valid JSON"),
    ("<tool_call>", "not valid JSON"),
    ("<tool_call></tool_call>", "not valid JSON"),
    ("<tool_call>search(x)</tool_call>", "not valid JSON"),
    ("<tool_call>{'name': 'x'}</tool_call>", "not valid JSON"),
    ('<tool_call>{"name": "x"} trailing</tool_call>', "text follows"),
    ('<tool_call>{"name": "x"}}</tool_call>', "text follows"),
    ("<tool_call>[1]</tool_call>", "must be a JSON object"),
    ("<tool_call>{}</tool_call>", "needs the tool's name"),
    ('<tool_call>{"name": 3}</tool_call>', "needs the tool's name"),
    ('<tool_call>{"name": ""}</tool_call>', "needs the tool's name"),
    ('<tool_call>{"name": "\\ud800"}</tool_call>', "needs the tool's name"),
    ('<tool_call>{"name": "x", "arguments": [1]}</tool_call>', "must be a JSON object"),
    ('<tool_call>{"name": "x", "arguments": "{"}</tool_call>', "arguments are not valid JSON"),
    ('<tool_call>{"name": "x", "arguments": "3"}</tool_call>', "must be a JSON object"),
    ('<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>', "NaN is not JSON"),
    ('<tool_call>{"name": "x", "arguments": {"a": 1e999}}</tool_call>', "not finite"),
    ('<tool_call>{"name": "x", "arguments": {"a": [99999999999999999999]}}</tool_call>', "64 bits"),
    ('<tool_call>{"name": "x", "arguments": {"a": "\\udc00"}}</tool_call>', "not valid Unicode"),
    ('<tool_call>{"name": "x", "arguments": {"\\udc00": 1}}</tool_call>', "not valid Unicode"),
    ('<tool_call>{"name": "x", "arguments": {"a": ' + "[" * 50 + "]" * 50 + "}}</tool_call>", f"more than {MAX_DEPTH} deep"),
    ("<tool_call>" + "[" * 100_000, "nested too deep"),
    ('<tool_call>{"name": "x", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "not valid JSON"),
])
def test_a_call_that_cannot_be_read_says_why_and_its_text_stays_in_the_content(text, said):
    assert said in only_error(text)
    assert parse_turn("before " + text).content == f"before\n{text}"


# --- the XML form ------------------------------------------------------------------------------------------------
def xml(*parameters, name="search"):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def test_a_call_in_xml_is_read_and_both_forms_may_stand_in_one_turn():
    message = parse_turn("a\n" + xml(("query", "北京\n\nand\n"), ("n", "3")) + "\n" + call({}, "stop") + xml(name="stop"))
    assert message.content == "a" and message.tool_calls == [
        ToolCall(name="search", arguments={"query": "北京\n\nand\n", "n": 3}, id="call_0"), ToolCall(name="stop", id="call_1"),
        ToolCall(name="stop", id="call_2")]


@pytest.mark.parametrize("schema, text, value", [
    ({"type": "string"}, "3", "3"), ({"type": "string"}, "None", "None"), ({"type": "string"}, "", ""),
    ({"type": "integer"}, "3", 3), ({"type": "integer"}, "3.5", "3.5"), ({"type": "integer"}, "true", "true"),
    ({"type": "number"}, "3", 3), ({"type": "number"}, "-1e-07", -1e-07), ({"type": "number"}, "NaN", "NaN"),
    ({"type": "boolean"}, "True", True), ({"type": "boolean"}, "false", False), ({"type": "boolean"}, "yes", "yes"),
    ({"type": "array"}, '["a", 1]', ["a", 1]), ({"type": "object"}, '{"a": {}}', {"a": {}}), ({"type": "object"}, "{", "{"),
    ({"type": ["string", "null"]}, "None", None), ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/x"}]}, '{"a": 1}', {"a": 1}), ({"enum": ["1", "2"]}, "1", "1"),
    ({}, "7", 7), ({}, "seven", "seven"), ({}, '"quoted"', '"quoted"'), (True, "7", 7),
])
def test_an_xml_value_has_the_type_that_its_schema_says(schema, text, value):
    tool = ToolSchema(name="search", description="", parameters={"type": "object", "properties": {"x": schema}})
    (parsed,) = parse_turn(xml(("x", text)), [tool]).tool_calls
    assert parsed.arguments == {"x": value} and type(parsed.arguments["x"]) is type(value)


def test_tags_inside_xml_values_are_text():
    value = "</tool_call><tool_call></parameter> x </think> <function=a>"
    assert parse_turn(xml(("a", value), ("b", "c"))).tool_calls == [
        ToolCall(name="search", arguments={"a": value, "b": "c"}, id="call_0")]


@pytest.mark.parametrize("end", ["", "\n", "<tool_call>"])
def test_a_whole_xml_call_without_its_closing_tag_is_a_call(end):
    first = parse_turn(xml(("a", "b")).removesuffix("\n</tool_call>") + end).tool_calls[0]
    assert first == ToolCall(name="search", arguments={"a": "b"}, id="call_0")


@pytest.mark.parametrize("text, said", [
    ("<tool_call><function=search", "<function=NAME>"),
    ("<tool_call><function>search</function></tool_call>", "<function=NAME>"),
    ("<tool_call><function=search>", "then </function>"),
    ("<tool_call><function=search><parameter=a>b</function></tool_call>", "each closed"),
    ("<tool_call><function=search>a=b</function></tool_call>", "each closed"),
    ("<tool_call><function=></function></tool_call>", "needs the tool's name"),
    ("<tool_call><function=search></function> and more</tool_call>", "text follows"),
    ("<tool_call><function=x><parameter=a>99999999999999999999</parameter></function></tool_call>", "64 bits"),
])
def test_an_xml_call_that_cannot_be_read_says_why_and_its_text_stays(text, said):
    assert said in only_error(text)
    assert parse_turn("before " + text).content == f"before\n{text}"


def test_an_unreadable_call_does_not_hide_the_next_one():
    message = parse_turn("<tool_call>{oops</tool_call>" + call({}) + "<tool_call>{oops" + call({}, "stop"))
    assert [(c.name, bool(c.error)) for c in message.tool_calls] == [("", True), ("search", False), ("", True), ("stop", False)]
    assert [c.id for c in message.tool_calls] == ["call_0", "call_1", "call_2", "call_3"]


PIECES = st.one_of(
    st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', '{"name": ', "{",
                     "<function=f>", "</function>", "<parameter=p>", "</parameter>",
                     "}", "[", '"', "\\ud83d", "\\", "NaN", "\n", "<|im_end|>", "\u0000", "𝔘", "\ufffd", "\ue0000\ue001"]),
    st.text(max_size=8), st.text(st.characters(categories=["Cs"]), max_size=2))


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_no_text_makes_the_parser_raise_and_every_message_can_be_recorded(text):
    message = parse_turn(text)
    assert message.role == "assistant"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
    for parsed in message.tool_calls:
        assert parsed.error or parsed.name


JSON = st.recursive(st.none() | st.booleans() | st.integers(-2**63, 2**63 - 1)
                    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3), max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=3))
def test_any_json_arguments_are_read_as_they_are(arguments):
    assert parse_turn(call(arguments)).tool_calls == [ToolCall(name="search", arguments=arguments, id="call_0")]


@given(st.text())
def test_load_json_raises_value_errors_alone(text):
    try:
        load_json(text)
    except ValueError:
        pass
