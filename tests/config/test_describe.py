"""The written documentation of the configuration is what the schema says, whole and current."""

from pathlib import Path

from rti.config.describe import describe, document, help_text

ROOT = Path(__file__).resolve().parents[2]


def test_docs_configuration_is_current():
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == document(), "run: python -m rti.config.describe > docs/configuration.md"


def test_every_key_has_help():
    assert [k.name for k in describe() if not k.is_section and not k.doc] == []


def test_help_text_has_one_line_a_key_with_type_and_default():
    lines = help_text().splitlines()
    assert len(lines) == sum(not k.is_section for k in describe())
    assert any(line.startswith("  learner.lr=1e-06  [number]") for line in lines)
    assert any(line.startswith("  async.max_staleness=0  [integer]") for line in lines)
