"""The plots of the report as SVG that a page can hold. What is on which plot: rti.run.charts.

Keeps: every axis has its unit, every curve its legend; colours are CSS variables of the page, so that a plot can be read in
light and in dark; equal records give equal bytes.
"""

from __future__ import annotations

import io
import re
from typing import Any, Sequence

import numpy as np

from rti.config.keys import value_of
from rti.report.runs import Run
from rti.run.charts import Chart
from rti.run.metrics import REFUSALS

SMOOTH_FROM, WINDOW = 20, 5
"""From so many steps on a curve is drawn thin, with the mean of the last WINDOW steps over it. One that was not measured at
every step is drawn as its points, joined."""

# stand-ins that matplotlib writes and the page replaces
_INK, _GRID = "#111213", "#c1c2c3"
_COLOURS = ("#a00000", "#a00001", "#a00002", "#a00003", "#a00004", "#a00005")
_TO_CSS = {_INK: "currentColor", _GRID: "var(--line)"} | {c: f"var(--c{i})" for i, c in enumerate(_COLOURS)}
_DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))


def draw(plot: Chart, runs: Sequence[Run]) -> str:
    """The plot of all runs as SVG; "" where none of them has any of its curves. One run: a colour a curve; several: a colour
    a run, a dash a curve."""
    found = [(r, c, run.curve(key)) for r, run in enumerate(runs) for c, (key, _) in enumerate(plot.curves)]
    found = [entry for entry in found if entry[2][0]]
    if not found:
        return ""
    figure, axes = _axes(plot.unit, "step")
    for r, c, (steps, values) in found:
        colour = _COLOURS[(c if len(runs) == 1 else r) % len(_COLOURS)]
        dash = "-" if len(runs) == 1 else _DASHES[c % len(_DASHES)]
        name = plot.curves[c][1] if len(runs) == 1 else f"{runs[r].name}: {plot.curves[c][1]}"
        _curve(axes, steps, plot.scale * np.asarray(values), colour, dash, name)
    axes.set_xlim(0, max(entry[2][0][-1] for entry in found) + 1)
    bounds = {float(value_of(run.config, plot.bound)) for run in runs} if plot.bound else set()
    for bound in sorted(bounds):
        axes.axhline(bound, color=_INK, lw=0.8, ls=":", label=f"{plot.bound_name} ({bound:g})")
    return _svg(figure, axes, plot.title)


def draw_evaluations(runs: Sequence[Run]) -> str:
    """p@1 and pass@k on the test tasks over the steps, with 95 % intervals; "" without any evaluation."""
    if not any(run.evaluations for run in runs):
        return ""
    figure, axes = _axes("% of the test tasks", "step")
    for r, run in enumerate(runs):
        for c, (name, of) in enumerate((("p@1", _first), ("all samples: pass@k", _last))):
            points = [(step, *of(e)) for step, e in run.evaluations.items() if of(e)[0] is not None]
            if not points:
                continue
            steps, values, lows, highs = (np.asarray(column, float) for column in zip(*points))
            colour = _COLOURS[(c if len(runs) == 1 else r) % len(_COLOURS)]
            axes.errorbar(steps, 100 * values, yerr=100 * np.stack([values - lows, highs - values]).clip(0), color=colour,
                          ls=_DASHES[c], marker="o", ms=4, lw=1.6, capsize=3,
                          label=name if len(runs) == 1 else f"{run.name}: {name}")
    return _svg(figure, axes, "Evaluation")


def draw_refusals(runs: Sequence[Run]) -> str:
    """Why flagged steps were not corrected, whole runs; "" where nothing was refused."""
    counts = [{key: run.total(f"intervention/refused/{key}") or 0 for key in REFUSALS} for run in runs]
    keys = [key for key in REFUSALS if any(c[key] for c in counts)]
    if not keys:
        return ""
    figure, axes = _axes("", "steps of the whole run", height=0.9 + 0.28 * len(keys) * max(1, 0.6 * len(runs)))
    bar = 0.8 / len(runs)
    for r, (run, count) in enumerate(zip(runs, counts)):
        places = [i + (r - (len(runs) - 1) / 2) * bar for i in range(len(keys))]
        drawn = axes.barh(places, [count[key] for key in keys], bar, color=_COLOURS[r % len(_COLOURS)], label=run.name)
        axes.bar_label(drawn, fmt="%d", padding=3, fontsize=8, color=_INK)
    axes.set_yticks(range(len(keys)), [key.replace("_", " ") for key in keys])
    axes.invert_yaxis()
    return _svg(figure, axes, "Refused, by reason")


def _first(evaluation: dict[str, Any]) -> tuple[Any, Any, Any]:
    return evaluation["p@1"], *(evaluation["ci"]["p@1"] or (None, None))


def _last(evaluation: dict[str, Any]) -> tuple[Any, Any, Any]:
    """pass@k of the largest k that was measured; None where that is p@1."""
    known = [i for i, v in enumerate(evaluation["pass@k"]) if v is not None]
    if len(known) < 2:
        return None, None, None
    return evaluation["pass@k"][known[-1]], *evaluation["ci"]["pass@k"][known[-1]]


def _curve(axes: Any, steps: Sequence[int], values: np.ndarray, colour: str, dash: Any, name: str) -> None:
    known = ~np.isnan(values)
    if len(steps) < SMOOTH_FROM or not known.all():
        axes.plot(np.asarray(steps)[known], values[known], color=colour, ls=dash, lw=1.2, marker="o", ms=2.5, label=name)
        return
    axes.plot(steps, values, color=colour, ls=dash, lw=0.7, alpha=0.45)
    axes.plot(steps, trailing_mean(values, WINDOW), color=colour, ls=dash, lw=1.8, label=name)


def trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each value and the `window` - 1 before it, over those that are known; NaN where the value itself is not."""
    there = ~np.isnan(values)
    sums, counts = (np.concatenate([[0.0], np.cumsum(a)]) for a in (np.where(there, values, 0.0), there))
    start = np.maximum(np.arange(len(values)) + 1 - window, 0)
    ends = np.arange(1, len(values) + 1)
    return np.where(there, (sums[ends] - sums[start]) / np.maximum(counts[ends] - counts[start], 1), np.nan)


def _axes(unit: str, below: str, height: float = 2.7) -> tuple[Any, Any]:
    from matplotlib.figure import Figure     # imported here: a run that draws nothing does not wait for it
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5.2, height), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.grid(color=_GRID, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(below, color=_INK, fontsize=9)
    axes.set_ylabel(unit, color=_INK, fontsize=9)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
    return figure, axes


def _svg(figure: Any, axes: Any, title: str) -> str:
    import matplotlib

    columns = 1 if len(axes.get_legend_handles_labels()[1]) <= 3 else 2
    figure.legend(loc="outside upper left", ncols=columns, fontsize=8, frameon=False, labelcolor=_INK)
    out = io.StringIO()
    # the salt keeps the ids of one plot's definitions from those of another on the page
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif",
                                "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg"):], flags=re.S)
    text = re.sub(r'<(g|text|svg)( [^>]*?)? id="[^"]*"', r"<\1\2", text)      # names of parts, the same in every plot
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text))
    for stand_in, css in _TO_CSS.items():
        text = text.replace(stand_in, css)
    return text
