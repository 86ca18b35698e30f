"""What a person sees while a run works: a live display on a terminal, plain lines elsewhere. One interface for both.

Keeps: nothing here decides or delays anything; what is shown was measured and logged elsewhere (keys of metrics.py).
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Callable, Mapping, Protocol, TextIO

Clock = Callable[[], float]


class Progress(Protocol):
    """A context manager. `done` steps of a resumed run count as done."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def stage(self, text: str, done: int = 0, total: int = 0) -> None:
        """What the run is at: stage("starting"), or with how far it is: stage("evaluating", 30, 150)."""
        ...

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Step `step` is done, with these metrics."""
        ...

    def note(self, text: str) -> None:
        """One line that stays (a restarted actor, a checkpoint that was skipped)."""
        ...


def open_progress(total_steps: int, *, done: int = 0, stream: TextIO | None = None, clock: Clock = time.monotonic) -> Progress:
    """The display that suits `stream` (standard error by default)."""
    stream = sys.stderr if stream is None else stream
    kind = LiveProgress if stream.isatty() else PlainProgress
    return kind(total_steps, done=done, stream=stream, clock=clock)


class Eta:
    """Time left, from the mean of the last `window` steps that this process did."""

    def __init__(self, total: int, done: int, clock: Clock, window: int = 20):
        self._total, self._step, self._clock, self._window = total, done, clock, window
        self._took: list[float] = []
        self._last = clock()

    def mark(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Step `step` is done. It took what was measured, else the time since the one before."""
        now = self._clock()
        measured = metrics.get("time/step_s")
        self._took = [*self._took, now - self._last if measured is None else measured][-self._window:]
        self._step, self._last = step, now

    def text(self) -> str:
        """For people; "" where it is not known yet or nothing is left."""
        left = self._total - self._step
        return duration(left * sum(self._took) / len(self._took)) if self._took and left > 0 else ""


def duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


_SHOWN = (      # label, key, form
    ("reward", "reward/mean", "{:.2f}"),
    ("pass@G before", "pass@G/before", "{:.2f}"),
    ("after", "pass@G/after", "{:.2f}"),
    ("rescued", "groups/rescued", "{:.0f}"),
    ("failed", "groups/failed", "{:.0f}"),
    ("staleness", "staleness/max", "{:.0f}"),
    ("tok/s", "time/generator_tokens_per_s", "{:,.0f}"),
    ("s/step", "time/step_s", "{:.1f}"),
)


def shown(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, value as text) of what a step shows; what was not measured is left out."""
    cells = [(label, form.format(metrics[key])) for label, key, form in _SHOWN if metrics.get(key) is not None]
    cells = [(label, text) for label, text in cells if label != "staleness" or text != "0"]     # synchronous: always 0
    pair = dict(cells)
    if "rescued" in pair and "failed" in pair:
        joined = ("rescued", f"{pair['rescued']} of {pair['failed']} failed")
        cells = [joined if label == "rescued" else (label, text) for label, text in cells if label != "failed"]
    return cells


class PlainProgress:
    """Lines, for logs and pipes: one a step; stages in hand at most one every `every_s` seconds."""

    def __init__(self, total_steps: int, *, done: int = 0, stream: TextIO, clock: Clock = time.monotonic,
                 every_s: float = 10.0):
        self._total, self._stream, self._clock, self._every_s = total_steps, stream, clock, every_s
        self._eta = Eta(total_steps, done, clock)
        self._stage, self._said = "", clock()

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stream.flush()

    def stage(self, text: str, done: int = 0, total: int = 0) -> None:
        now = self._clock()
        fresh, ended = text != self._stage, total > 0 and done >= total
        if fresh or ended or now - self._said >= self._every_s:
            self._stage, self._said = text, now
            self._say(f"{text} {done}/{total}" if total else text)

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._stage = ""
        self._eta.mark(step, metrics)
        eta = self._eta.text()
        cells = [f"{label} {text}" for label, text in shown(metrics)] + ([f"left {eta}"] if eta else [])
        self._say("  ".join([f"step {step}/{self._total}", *cells]))

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveProgress:
    """A bar over the steps, the current stage, and the last step's numbers, redrawn in place (Rich)."""

    def __init__(self, total_steps: int, *, done: int = 0, stream: TextIO, clock: Clock = time.monotonic):
        from rich.console import Console
        from rich.live import Live

        self._total, self._step = total_steps, done
        self._eta = Eta(total_steps, done, clock)
        self._stage = ("", 0, 0)
        self._cells: list[tuple[str, str]] = []
        self._live = Live(console=Console(file=stream), refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveProgress:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)

    def stage(self, text: str, done: int = 0, total: int = 0) -> None:
        self._stage = (text, done, total)

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._step, self._cells, self._stage = step, shown(metrics), ("", 0, 0)
        self._eta.mark(step, metrics)

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        top = Table.grid(padding=(0, 1))
        eta = self._eta.text()
        top.add_row(Text(f"step {self._step}/{self._total}", style="bold"),
                    ProgressBar(total=max(self._total, 1), completed=self._step, width=30), Text(f"left {eta}" if eta else ""))
        text, done, total = self._stage
        if text:
            bar = ProgressBar(total=total, completed=done, width=30) if total else Text("")
            top.add_row(Text(text), bar, Text(f"{done}/{total}" if total else ""))
        if not self._cells:
            return top
        numbers = Table.grid(padding=(0, 2))
        numbers.add_row(*(Text(label, style="dim") for label, _ in self._cells))
        numbers.add_row(*(Text(value) for _, value in self._cells))
        return Group(top, numbers)
