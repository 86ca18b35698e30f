"""The progress display: plain lines without a terminal, a live display on one, the same interface."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

from rti.run.progress import LiveProgress, PlainProgress, duration, open_progress, shown

METRICS = {"reward/mean": 0.25, "pass@G/before": 0.5, "pass@G/after": 0.75, "groups/rescued": 2, "groups/failed": 4,
           "time/generator_tokens_per_s": 12345.6, "time/step_s": 3.0, "staleness/max": 0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_each_step_is_a_line_with_the_time_left() -> None:
    now, out = [0.0], io.StringIO()
    with open_progress(50, stream=out, clock=lambda: now[0]) as progress:
        assert isinstance(progress, PlainProgress)
        for step in (1, 2):
            now[0] += 30     # an evaluation in between is no part of the step's time
            progress.update(step, METRICS)
    first, second = out.getvalue().splitlines()
    assert first == ("step 1/50  reward 0.25  pass@G before 0.50  after 0.75  rescued 2 of 4 failed  tok/s 12,346  s/step 3.0  "
                     "left 2:27")
    assert second.startswith("step 2/50") and second.endswith("left 2:24")
    assert "\x1b" not in out.getvalue()


def test_stages_are_said_once_and_then_only_every_few_seconds() -> None:
    now, out = [0.0], io.StringIO()
    progress = PlainProgress(5, stream=out, clock=lambda: now[0], every_s=10)
    progress.stage("starting")
    for done in range(0, 151):
        now[0] += 0.25
        progress.stage("evaluating", done, 150)
    progress.stage("starting")
    assert out.getvalue().splitlines() == ["starting", "evaluating 0/150", "evaluating 40/150", "evaluating 80/150",
                                           "evaluating 120/150", "evaluating 150/150", "starting"]


def test_the_pace_of_a_resumed_run_is_its_own() -> None:
    now, out = [100.0], io.StringIO()
    progress = PlainProgress(50, done=40, stream=out, clock=lambda: now[0])
    now[0] += 6
    progress.update(41, {})
    assert out.getvalue() == "step 41/50  left 0:54\n"
    now[0] += 6
    progress.update(50, {"reward/mean": None})
    assert out.getvalue().splitlines()[-1] == "step 50/50"


def test_what_was_not_measured_is_left_out() -> None:
    assert shown({}) == [] and shown({"reward/mean": None, "unknown": 1}) == []
    assert ("staleness", "2") in shown({"staleness/max": 2}) and not shown({"staleness/max": 0})
    assert shown({"groups/failed": 3}) == [("failed", "3")]


def test_durations() -> None:
    assert [duration(s) for s in (0, 59.6, 61, 3600, 90061)] == ["0:00", "1:00", "1:01", "1:00:00", "25:01:01"]


def test_on_a_terminal_the_display_shows_stage_steps_and_numbers() -> None:
    now, out = [0.0], Terminal()
    with open_progress(50, stream=out, clock=lambda: now[0]) as progress:
        assert isinstance(progress, LiveProgress)
        progress.stage("evaluating", 30, 150)
        progress._live.refresh()
        now[0] = 3.0
        progress.update(1, METRICS)
        progress.note("generator-0 restarted [1 of 10]")
    text = out.getvalue()
    for word in ("evaluating", "30/150", "step 1/50", "left 2:27", "2 of 4 failed", "12,346", "generator-0 restarted [1 of"):
        assert word in text


def test_a_real_terminal_gets_the_live_display_and_a_pipe_gets_lines(tmp_path: Path) -> None:
    code = ("from rti.run.progress import open_progress\n"
            "with open_progress(3) as p:\n"
            "    p.stage('starting'); p.update(1, {'reward/mean': 0.5})\n"
            "    print('a line of the program')\n")
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stderr.splitlines()[0] == "starting" and "\x1b" not in piped.stderr
    master, slave = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    got = b""
    while True:
        try:
            block = os.read(master, 4096)
        except OSError:         # Linux: the other end is closed
            break
        if not block:
            break
        got += block
    os.close(master)
    assert child.wait() == 0
    assert b"step 1/3" in got and b"\x1b[" in got and b"a line of the program" in got


def test_an_error_inside_leaves_the_terminal_as_it_was() -> None:
    out = Terminal()
    try:
        with open_progress(3, stream=out) as progress:
            progress.stage("learning")
            raise KeyError("x")
    except KeyError:
        pass
    assert out.getvalue().rstrip("\n").endswith("\x1b[?25h")        # the cursor is shown again
