"""Which format a model takes, and what is said when none can serve."""

import json
import shutil

import pytest
from tokenizers import Tokenizer, models

from rti.chat import load_chat_format
from rti.chat.generic import GenericChatFormat, describe_tools
from rti.chat.hermes import HermesChatFormat
from rti.chat.lab import END, PAD, ROLE_TOKENS, LabChatFormat


def lab_directory(directory, marked=True):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens([PAD, END, *ROLE_TOKENS.values()])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"rti_chat": "lab"} if marked else {}))
    return str(directory)


def test_auto_goes_by_the_mark_of_the_lab_policy(tmp_path):
    assert isinstance(load_chat_format("auto", lab_directory(tmp_path)), LabChatFormat)


def test_auto_goes_by_whether_the_template_speaks_of_tool_calls(tokenizer_dir):
    assert isinstance(load_chat_format("auto", tokenizer_dir("hermes")), HermesChatFormat)
    assert isinstance(load_chat_format("auto", tokenizer_dir("generic")), GenericChatFormat)


def test_a_named_format_is_taken_whatever_the_template_says(tokenizer_dir, tmp_path):
    assert isinstance(load_chat_format("generic", tokenizer_dir("hermes")), GenericChatFormat)
    assert isinstance(load_chat_format("lab", lab_directory(tmp_path, marked=False)), LabChatFormat)


def test_the_generation_configuration_adds_stop_tokens(tokenizer_dir, tmp_path):
    directory = tmp_path / "model"
    shutil.copytree(tokenizer_dir("hermes"), directory)
    chat = load_chat_format("auto", str(directory))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [chat.stop_token_ids[0], 3]}))
    assert load_chat_format("auto", str(directory)).stop_token_ids == (chat.stop_token_ids[0], 3)


def test_an_unknown_format_is_refused_with_the_choices(tmp_path):
    with pytest.raises(ValueError, match="auto, lab, hermes, generic"):
        load_chat_format("chatml", str(tmp_path))


@pytest.mark.parametrize("name", ["auto", "lab"])
def test_a_directory_without_a_tokenizer_is_refused_by_name(tmp_path, name):
    with pytest.raises(ValueError, match=str(tmp_path)):
        load_chat_format(name, str(tmp_path))


def test_a_tokenizer_without_a_template_is_refused(tmp_path, save_tokenizer):
    with pytest.raises(ValueError, match="no chat template"):
        load_chat_format("auto", save_tokenizer(tmp_path, None))


@pytest.mark.parametrize("template, said", [
    ("{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}", "end-of-turn token"),
    ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "leaves out"),
])
def test_a_template_that_cannot_serve_is_refused(tmp_path, save_tokenizer, template, said):
    with pytest.raises(ValueError, match=said):
        load_chat_format("auto", save_tokenizer(tmp_path, template))


def test_tools_are_told_in_words_with_their_arguments(tools):
    text = describe_tools(tools)
    assert "- search(query (string), region? (string; province or city)): Find a place." in text
    assert "- stop(): End." in text
