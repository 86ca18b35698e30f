"""docs/records.md says what the code does: its table of metrics, its lists of checks and fields, and its example run."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

from rti.run import metrics
from rti.run.audit import GROUP_CHECKS, RUN_CHECKS
from rti.run.ledger import DISPOSITIONS, LedgerEntry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "records.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_table_of_metrics_is_current() -> None:
    assert metrics.markdown() in section("metrics.jsonl"), "run: python -m rti.run.metrics --write"


def test_the_table_is_printed() -> None:
    done = subprocess.run([sys.executable, "-m", "rti.run.metrics"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == metrics.markdown()


def test_every_check_of_the_audit_is_listed() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", section("Checking a run"), re.MULTILINE)
    assert listed == [c.name for c in (*RUN_CHECKS, *GROUP_CHECKS)]


def test_every_field_and_disposition_of_the_ledger_is_listed() -> None:
    text = section("ledger.jsonl")
    assert all(f"`{name}`" in text for name in (*LedgerEntry.__struct_fields__, *DISPOSITIONS))


def test_the_command_and_the_example_run(whole: Path) -> None:
    (command,) = re.findall(r"```bash\n(.*?)\n```", section("Checking a run"), re.DOTALL)
    words = command.replace("runs/lab", str(whole)).split()
    assert subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True).returncode == 0
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(example.replace("runs/lab", str(whole)), "records.md", "exec"), {})
    assert out.getvalue().splitlines()[0] == "1 0-0 [1.0, 0.0, 0.0, 1.0]"
