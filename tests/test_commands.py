"""How commands end: an error is one line and no stack trace, unless RTI_DEBUG=1; nothing of a trace is lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rti.commands import guarded
from rti.config.keys import ConfigError
from rti.control.faults import ActorFailed

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = sorted(p for root in ("rti", "launch") for p in (ROOT / root).rglob("*.py")
                  if 'if __name__ == "__main__":\n    ' in p.read_text(encoding="utf-8"))


def fail(error):
    def work():
        raise error
    return work


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path):
    monkeypatch.delenv("RTI_DEBUG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_exit_code_is_that_of_the_work():
    assert [guarded(lambda: 0), guarded(lambda: 3), guarded(lambda: None)] == [0, 3, 0]


def test_a_mendable_error_is_its_message(capsys, tmp_path):
    assert guarded(fail(ConfigError("give steps"))) == 1
    assert capsys.readouterr().err == "error: give steps\n(RTI_DEBUG=1 shows where it was raised)\n"
    assert not list(tmp_path.iterdir())


def test_an_error_that_nobody_foresaw_keeps_its_trace_in_a_file(capsys):
    assert guarded(fail(ZeroDivisionError("x"))) == 1
    text = capsys.readouterr().err
    assert text.startswith("error: ZeroDivisionError: x\n") and "Traceback" not in text
    kept = Path(re.search(r"stack trace is in (\S+),", text)[1]).read_text()
    assert "Traceback" in kept and "in work" in kept


def test_debugging_shows_the_trace_here_and_that_of_the_actor(capsys, monkeypatch):
    monkeypatch.setenv("RTI_DEBUG", "1")
    assert guarded(fail(ActorFailed("a.run failed", where="remote trace"))) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text and "remote trace" in text and text.rstrip().endswith("a.run failed")


def test_an_interrupted_command_says_so(capsys):
    assert guarded(fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_has_seen_enough_is_no_error():
    program = "from rti.commands import guarded; guarded(lambda: [print('x' * 4096) for _ in range(2000)] and 0)"
    shell = f"'{sys.executable}' -c \"{program}\" | head -c 1"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "x" and done.stderr == ""


@pytest.mark.parametrize("path", COMMANDS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_is_guarded(path):
    standalone = {"rti/envs/claw_eval/sandbox_inside.py"}      # runs alone in the sandbox, without the package
    if str(path.relative_to(ROOT)) not in standalone:
        assert "guarded(" in path.read_text(encoding="utf-8"), "run it through rti.commands.guarded"


@pytest.mark.parametrize("words", [["launch/rti.py", "--config", "lab.yaml", "stepz=1"], ["launch/report.py", "nowhere"],
                                   ["launch/eval.py", "--config", "none.yaml"], ["-m", "rti.run.show", "nowhere"],
                                   ["-m", "rti.run.control", "nowhere", "steps=1"]], ids=" ".join)
def test_what_cannot_be_used_is_told_in_words(words, tmp_path):
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True,
                          env={k: v for k, v in os.environ.items() if k != "RTI_DEBUG"})
    assert done.returncode and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
