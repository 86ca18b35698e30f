"""docs/troubleshooting.md quotes messages that the source really gives: each stands in one text of it, … for what is put in."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.M)


@functools.cache
def texts():
    """Every text of rti/ that is not a docstring's own; what an f-string puts in is …."""
    found = set()
    for path in (ROOT / "rti").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_stands_in_the_source(message):
    quoted = re.compile(".*".join(re.escape(part) for part in message.split("…")), re.S)
    assert any(quoted.search(text) for text in texts()), "no text of rti/ says so (any more)"


def test_the_page_quotes_messages():
    assert len(MESSAGES) > 15 and len(set(MESSAGES)) == len(MESSAGES)
