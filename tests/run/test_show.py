"""Rollouts in the terminal: what is stored, the draft struck through, evidence only on request, no control characters."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rti.run.show import harmless, main, show_group, stored


def test_the_list_names_every_stored_group_newest_first(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(whole)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [f"0-{n}" for n in (6, 7, 8, 3, 4, 5, 0, 1, 2)]
    assert "rescued" in lines[2] and "0 of 4" in lines[2] and "1 of 4" in lines[2]


def test_a_group_shows_draft_correction_and_verdict(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(whole), "--group", "0-1", "--member", "i1"]) == 0
    text = capsys.readouterr().out
    places = [text.index(part) for part in ("draft, replaced", "direction(", "correction, taken", "poi_search(")]
    assert places == sorted(places)
    assert "outcome: accepted" in text and "Validator: too early" in text and "perplexity: " in text
    assert "rollout 0-1/i1" in text and "rollout 0-1/0" not in text and "Qingshan" not in text


def test_the_draft_is_struck_through(whole: Path) -> None:
    step, group = next((s, g) for s, g in stored(whole) if g.id == "0-1")
    out = io.StringIO()
    assert show_group(step, group, Console(file=out, force_terminal=True, width=100), member="i1") == 1
    line = next(line for line in out.getvalue().splitlines() if "direction(" in line)
    assert "9m" in line[:line.index("direction")]       # ANSI: crossed out


def test_evidence_is_printed_on_request_alone(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(whole), "--group", "0-1", "--evidence"]) == 0
    assert "Qingshan" in capsys.readouterr().out


def test_control_characters_are_spelt_out() -> None:
    assert harmless("a\x1b[2Jb\x07\r\n\t\x9b山") == "a␛[2Jb␇␍\n\t\ufffd山"


@pytest.mark.parametrize(("words", "why"), [(["--group", "9-9"], "is not stored"),
                                            (["--group", "0-1", "--member", "7"], "no rollout 7")])
def test_what_is_not_there_is_said(whole: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str) -> None:
    assert main([str(whole), *words]) == 1 and why in capsys.readouterr().err


def test_a_directory_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1 and "is not the directory of a run" in capsys.readouterr().err
