"""Every ablation of RTI in docs/teachers.md is one setting, and the table there names settings that load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rti.config.load import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "teachers.md"


def words() -> list[str]:
    """`key=value` of the table, with each further value that stands beside it."""
    table = PAGE.read_text(encoding="utf-8").partition("## Ablations")[2]
    found = []
    for row in table.splitlines():
        named = re.findall(r"`([^`]+)`", row)
        if named:
            key = named[0].partition("=")[0]
            found += [word if "=" in word else f"{key}={word}" for word in named]
    return [w.replace("<role>", role) for w in found for role in (("validator", "corrector") if "<role>" in w else ("",))]


ENDPOINT = [f"intervention.{role}.endpoint.{key}" for role in ("validator", "corrector")
            for key in ("base_url=http://127.0.0.1:8000/v1", "model=large")]


@pytest.mark.parametrize("word", words())
def test_an_ablation_of_the_page_loads(word):
    load("lab.yaml", [word, "teacher.path=lab", *ENDPOINT])


def test_the_page_names_all_of_the_papers_ablations():
    assert {"intervention.verifier=false", "intervention.reweight=false", "intervention.corrector.player=teacher",
            *(f"intervention.delta={d}" for d in ("0", "3", "5", "20", "inf"))} <= set(words())
