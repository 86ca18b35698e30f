"""The check of a model's chat: real templates and the lab policy pass with their format named; one that loses calls fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from rti.chat import check
from rti.trajectory import Message


def broken(chat) -> list[str]:
    return [f.text for f in check.findings(chat) if f.ok is False]


@pytest.mark.parametrize("chat", ["qwen3", "qwen35", "hermes", "hermes_keeping", "generic"], indirect=True)
def test_formats_over_templates_hold(chat) -> None:
    assert broken(chat) == []


@pytest.mark.parametrize(("chat", "extends"), [("qwen3", False), ("hermes", False), ("hermes_keeping", True),
                                               ("generic", True)], indirect=["chat"])
def test_dropped_thinking_is_a_note_and_no_breach(chat, extends: bool) -> None:
    (found,) = [f for f in check.findings(chat) if f.text.startswith("a user's words")]
    assert found.ok is (True if extends else None)
    assert ("new sample" in found.text) is not extends


def test_the_lab_policy_is_told_its_format_and_answers_when_it_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["lab", "--chat", "lab", "--sample", "2"]) == 0
    said = capsys.readouterr().out
    assert "Use model.chat=auto, which is lab. Turns end with <|end|>." in said and "BREACH" not in said
    assert "the prompt does not show the tools" in said and "Of 2 sampled turns" in said


@pytest.mark.parametrize("chat", ["generic"], indirect=True)
def test_a_format_that_loses_calls_is_a_breach(chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "parse", lambda ids, tools=(): Message(role="assistant", content="?"), raising=False)
    assert {text.partition(":")[0] for text in broken(chat)} >= {"a call", "two calls", "plain words"}


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(tmp_path)]) == 2 and "no tokenizer can be loaded" in capsys.readouterr().err
