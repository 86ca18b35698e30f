"""The real Qwen3 tokenizer and template: what this family does, byte for byte."""

import pytest

from rti.chat.hermes import HermesChatFormat
from rti.trajectory import Message, ToolCall


@pytest.fixture
def chat(qwen3):
    return qwen3


def test_qwen3_takes_the_hermes_format(chat):
    assert isinstance(chat, HermesChatFormat) and not chat.extends_prefix
    assert chat.decode(chat.stop_token_ids[:1]) == "<|im_end|>" and chat.vocab_size == 151669


def test_a_turn_is_written_as_the_template_writes_the_last_turn(chat):
    message = Message(role="assistant", content="I look.", reasoning="where?",
                      tool_calls=[ToolCall(name="search", arguments={"query": "北京", "n": 1}), ToolCall(name="stop")])
    assert chat.decode(chat.encode_turn(message)) == (
        "<think>\nwhere?\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "北京", "n": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call><|im_end|>')


def test_tool_replies_come_in_one_user_turn(chat):
    glue = chat.append(chat.encode_turn(Message(role="assistant", content="x")),
                       [Message(role="tool", content="a"), Message(role="tool", content="b")])
    assert chat.decode(glue) == ("\n<|im_start|>user\n<tool_response>\na\n</tool_response>"
                                 "\n<tool_response>\nb\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_the_rendered_prompt_is_the_tokenizers_own(chat, tools):
    offered = [{"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
               for t in tools]
    expected = chat._tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find 北京."}], tools=offered,
        tokenize=True, add_generation_prompt=True, return_dict=False)
    rendered = chat.render([Message(role="system", content="Be brief."), Message(role="user", content="Find 北京.")], tools)
    assert rendered == list(expected)
