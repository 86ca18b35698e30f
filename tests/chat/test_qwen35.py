"""The real Qwen3.5 vocabulary and template: thinking opened by the header, calls in XML, byte for byte."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rti.chat import next_prompt
from rti.chat.hermes import HermesChatFormat
from rti.trajectory import Message, ToolCall, ToolSchema

TYPED = ToolSchema(name="book", description="Book it.", parameters={"type": "object", "properties": {
    "code": {"type": "string"}, "n": {"type": "integer"}, "price": {"type": "number"}, "paid": {"type": "boolean"},
    "stops": {"type": "array", "items": {"type": "string"}}, "who": {"type": "object"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}}})
ASK = [Message(role="system", content="Be brief."), Message(role="user", content="Find 北京.")]


@pytest.fixture
def chat(qwen35):
    return qwen35


def book(**arguments):
    return Message(role="assistant", reasoning="so", tool_calls=[ToolCall(name="book", arguments=arguments, id="call_0")])


def test_qwen35_takes_the_hermes_format_with_thinking_opened_by_the_header(chat):
    assert isinstance(chat, HermesChatFormat) and not chat.extends_prefix
    assert chat.decode(chat.stop_token_ids[:1]) == "<|im_end|>" and chat.vocab_size == 248077
    assert chat.decode(chat.render(ASK, ())).endswith("<|im_start|>assistant\n<think>\n")


def test_a_turn_goes_on_where_the_header_left_off(chat):
    message = Message(role="assistant", content="I look.", reasoning="where?", tool_calls=[
        ToolCall(name="search", arguments={"query": "北京", "n": 1}), ToolCall(name="stop")])
    assert chat.decode(chat.encode_turn(message)) == (
        "where?\n</think>\n\nI look.\n\n"
        "<tool_call>\n<function=search>\n<parameter=query>\n北京\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=stop>\n</function>\n</tool_call><|im_end|>")


@pytest.mark.parametrize("written, reasoning, content, n_calls", [
    ("hm\n</think>\n\nHello.", "hm", "Hello.", 0),
    ("\n</think>\n\nHello.", "", "Hello.", 0),
    ("cut in the middle of a thou", "cut in the middle of a thou", "", 0),
    ("I could <tool_call>\n<function=stop>\n</function>\n</tool_call>", None, "", 0),
    ("or\n<tool_call>\n<function=stop>\n</function>\n</tool_call>\n</think>\n\nNo.", None, "No.", 0),
    ("<think>\nagain\n</think>\n\nHello.", "again", "Hello.", 0),
    ("go\n</think>\n\n<tool_call>\n<function=stop>\n</function>\n</tool_call>", "go", "", 1),
])
def test_a_sampled_turn_begins_inside_the_thinking(chat, written, reasoning, content, n_calls):
    ids = [*chat._encode(written), chat.stop_token_ids[0]]
    message = chat.parse(ids)
    assert message.content == content and len(message.tool_calls) == n_calls
    assert reasoning is None or message.reasoning == reasoning
    assert chat.decode_text(chat._encode("hm {\n</think>\n\n{\"ok\": true}")) == '{"ok": true}'


def test_types_of_xml_values_come_from_the_tools_schema(chat):
    message = book(code="007", n=7, price=114.5, paid=True, stops=["a", "b"], who={"name": "Li"}, note=None)
    assert chat.parse(chat.encode_turn(message), [TYPED]) == message
    assert chat.parse(chat.encode_turn(book(code="True", note="text")), [TYPED]) == book(code="True", note="text")
    assert chat.parse(chat.encode_turn(book(n="many")), [TYPED]) == book(n="many")      # the environment says what is wrong


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>\ue000\ue001\r"), max_size=20)
ARGUMENTS = st.fixed_dictionaries({}, optional={
    "code": TEXT, "n": st.integers(-9999, 9999), "price": st.floats(-1e9, 1e9) | st.integers(-9, 9), "paid": st.booleans(),
    "stops": st.lists(TEXT, max_size=3), "who": st.dictionaries(TEXT, TEXT | st.integers(-9, 9), max_size=2)})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reasoning=TEXT.map(str.strip), arguments=st.lists(ARGUMENTS, min_size=1, max_size=2))
def test_any_call_reads_back_as_written(chat, reasoning, arguments):
    calls = [ToolCall(name="book", arguments=a, id=f"call_{i}") for i, a in enumerate(arguments)]
    message = Message(role="assistant", reasoning=reasoning, tool_calls=calls)
    assert chat.parse(chat.encode_turn(message), [TYPED]) == message


def test_thinking_stays_while_tools_answer_and_a_user_message_begins_a_new_sample(chat, tools):
    history, ids = list(ASK), chat.render(ASK, tools)
    for turn, answers in [
        ("where?\n</think>\n\n<tool_call>\n<function=search>\n<parameter=query>\n北京\n</parameter>\n</function>\n</tool_call>",
         [Message(role="tool", content="114.2,30.5"), Message(role="tool", content="北 🙂")]),
        ("\n</think>\n\n<tool_call>\n<function=search>\n<parameter=query>\n", [Message(role="tool", content="error: no XML")]),
    ]:
        sampled = [*chat._encode(turn), chat.stop_token_ids[0]]
        so_far, history = ids + sampled, [*history, chat.parse(sampled, tools), *answers]
        ids, extends = next_prompt(chat, history, tools, so_far)
        assert extends and ids[:len(so_far)] == so_far
    assert "where?" in chat.decode(ids)
    sampled = [*chat._encode("\n</think>\n\nWhich one?"), chat.stop_token_ids[0]]
    history += [chat.parse(sampled), Message(role="user", content="The first.")]
    forked, extends = next_prompt(chat, history, tools, ids + sampled)
    assert not extends and forked == chat.render(history, tools) and "where?" not in chat.decode(forked)
