"""The lab format's reading of a turn: JSON that the records cannot hold is an error for the agent, not for the run."""

import msgspec
import pytest

from rti.chat.lab import parse_turn, turn_text
from rti.trajectory import Message, ToolCall


def test_a_written_turn_reads_back_as_the_message():
    message = Message(role="assistant", content="done", reasoning="北京",
                      tool_calls=[ToolCall(name="direction", arguments={"origin": "1,2", "waypoints": ["3,4"]}, id="call_0")])
    assert parse_turn(turn_text(message)) == message


@pytest.mark.parametrize("text, said", [
    ("", "not valid JSON"), ("{", "not valid JSON"), ("[]", "not a JSON object"), ('{"tool_calls": 3}', "not a list"),
    ('{"content": NaN}', "NaN"), ('{"content": "\\ud800"}', "Unicode"), ("[" * 100_000, "nested too deep"),
    ('{"tool_calls": [{"name": "f", "arguments": {"a": 99999999999999999999}}]}', "64 bits"),
    ('{"tool_calls": [{"name": "f", "arguments": 3}]}', "must be a JSON object"),
    ('{"tool_calls": [3]}', "must be a JSON object"),
])
def test_a_turn_that_cannot_be_read_is_an_error_that_can_be_recorded(text, said):
    message = parse_turn(text)
    assert said in message.tool_calls[0].error
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
