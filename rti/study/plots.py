"""The study's plots as PNG: training dynamics, perplexity of accepted steps, turns, the sweep, and weights token by token.

Keeps: every axis has its unit and every curve its legend; a plot for which nothing was measured is not made.
"""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import matplotlib
import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from rti.evaluation import pass_at_k
from rti.report.plots import trailing_mean
from rti.report.tokens import TokenTexts, turns
from rti.run import trajectories
from rti.run.directory import TRAJECTORIES
from rti.run.files import write_atomic
from rti.study import statistics
from rti.study.claims import SWEEP, table
from rti.study.plan import BASE
from rti.study.records import Study
from rti.study.tables import NAMES, evaluated
from rti.trajectory import Source, Trajectory

COLOURS = {"rti": "#c0392b", "grpo": "#2471a3", BASE: "#7f8c8d"}
WINDOW = 3              # steps that a curve's trailing mean is over
LINE = 92               # characters of a line of the heatmap
POINTS, SHADE = 8, 0.6  # its font, and how dense its colours are: text must be read through them
ADVANCE = 0.602 * POINTS / 72       # inches that a character of DejaVu Sans Mono takes
Piece = tuple[str, float | None]        # a token's text, and its weight where it is a correction's


def draw_all(study: Study, out: Path, weights: Sequence[Piece] = ()) -> list[str]:
    """Write every plot that there is data for into `out`; their file names."""
    made = []
    for name, draw in PLOTS.items():
        figure = draw(study)
        if figure is not None:
            made.append(_write(out / f"{name}.png", figure))
    if weights:
        made.append(_write(out / "weights.png", heatmap(weights)))
    return made


def _write(path: Path, figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    write_atomic(path, buffer.getvalue())
    return path.name


def _panels(number: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(4.8 * number, 3.4), layout="constrained")
    return figure, list(figure.subplots(1, number, squeeze=False)[0])


def mean_curve(curves: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Mean over runs at each step of the shortest, over what is known there; NaN where nothing is."""
    length = min(map(len, curves))
    values = np.array([[np.nan if v is None else v for v in c[:length]] for c in curves], dtype=np.float64)
    known = ~np.isnan(values)
    counts = known.sum(0)
    return np.where(counts > 0, np.where(known, values, 0).sum(0) / np.maximum(counts, 1), np.nan)


def dynamics(study: Study) -> Figure | None:
    """Pass@k on the test tasks over the steps, and Pass@G of the rollouts before and after intervention."""
    runs = {m: study.of(m, "methods") for m in ("rti", "grpo")}
    if not any(runs.values()):
        return None
    figure, (left, right) = _panels(2)
    base = evaluated(study, BASE)
    for method, outcomes in runs.items():
        watched = [o for o in outcomes if len(o.evaluations) > 1]
        for o in watched[:1]:
            points = [(0, _pass_k(study, [b for b in base if b.seed == o.seed]))] if base else []
            points += [(step, e["pass@k"][-1]) for step, e in sorted(o.evaluations.items())]
            steps, values = zip(*[(s, v) for s, v in points if v is not None])
            left.plot(steps, 100 * np.array(values), marker="o", color=COLOURS[method], label=f"{NAMES[method]}, seed {o.seed}")
        curves = [o.curves["pass@G/before"] for o in outcomes if "pass@G/before" in o.curves]
        if curves:
            for key, dash in (("pass@G/before", "-"), *((("pass@G/after", "--"),) if method == "rti" else ())):
                mean = trailing_mean(mean_curve([o.curves[key] for o in outcomes]), WINDOW)
                when = f", {key.partition('/')[2]} intervention" if method == "rti" else ""
                right.plot(range(1, len(mean) + 1), 100 * mean, dash, color=COLOURS[method], label=NAMES[method] + when)
    _label(left, "step", "% of the test tasks", "Evaluation: Pass@k, all samples")
    _label(right, "step", "% of the groups", f"Rollouts: Pass@{study.rollouts_per_step[0]} (trailing mean of {WINDOW} steps)")
    return figure


def perplexity(study: Study) -> Figure | None:
    """PPL of accepted steps over the steps of RTI, each seed and their mean."""
    curves = [o.curves["ppl/accepted_mean"] for o in study.of("rti", "methods") if "ppl/accepted_mean" in o.curves]
    if not curves:
        return None
    figure, (axes,) = _panels(1)
    for curve in curves:
        steps = [i for i, v in enumerate(curve, 1) if v is not None]
        axes.plot(steps, [curve[i - 1] for i in steps], "o", ms=3, color=COLOURS["rti"], alpha=0.35)
    mean = mean_curve(curves)
    known = ~np.isnan(mean)
    axes.plot(np.arange(1, len(mean) + 1)[known], mean[known], color=COLOURS["rti"], label="mean over seeds; points: one seed")
    _label(axes, "step", "perplexity under the rollout prompt", "Accepted corrections of RTI")
    return figure


def turn_counts(study: Study) -> Figure | None:
    """Distribution of turns in the last quarter of the steps, RTI beside GRPO, seeds together."""
    found = {m: [o.turns for o in study.of(m, "methods") if o.turns] for m in ("grpo", "rti")}
    if not all(found.values()):
        return None
    figure, (axes,) = _panels(1)
    longest = max(t for runs in found.values() for counts in runs for t in counts)
    for place, (method, runs) in enumerate(found.items()):
        whole = sum(sum(counts.values()) for counts in runs)
        shares = [100 * sum(counts.get(t, 0) for counts in runs) / whole for t in range(1, longest + 1)]
        axes.bar(np.arange(1, longest + 1) + 0.4 * place - 0.2, shares, 0.4, color=COLOURS[method], label=NAMES[method])
    axes.set_xticks(range(1, longest + 1))
    _label(axes, "agent turns of an episode", "% of the plain rollouts", "Last quarter of training")
    return figure


def sweep(study: Study) -> Figure | None:
    """p@1 over the gate's threshold, with intervals."""
    points = []
    for delta, method in SWEEP:
        if outcomes := evaluated(study, method):
            points.append((delta, statistics.mean(table(study, outcomes, statistics.p_at_1))))
    if len(points) < 2:
        return None
    figure, (axes,) = _panels(1)
    values = 100 * np.array([e for _, e in points])
    errors = np.abs(values[:, 1:] - values[:, :1]).T
    axes.errorbar(range(len(points)), values[:, 0], yerr=errors, marker="o", capsize=3, color=COLOURS["rti"], label="RTI")
    axes.set_xticks(range(len(points)), [delta for delta, _ in points])
    _label(axes, "delta", "p@1, %", "The gate's threshold")
    return figure


PLOTS: dict[str, Callable[[Study], Figure | None]] = {
    "dynamics": dynamics, "perplexity": perplexity, "turns": turn_counts, "sweep": sweep,
}


def _label(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _pass_k(study: Study, outcomes: Sequence[Any]) -> float | None:
    """pass@n of n samples: the share of tasks that were passed at all."""
    return float(table(study, outcomes, statistics.at(pass_at_k, outcomes[0].samples)).mean()) if outcomes else None


# --- weights, token by token -------------------------------------------------------------------------------------
def rescued_pieces(run: Path, texts: TokenTexts) -> list[Piece]:
    """The agent's tokens of the first rescued rollout of a run with a correction in it, and the weights of the corrected."""
    for trajectory in _rescued(run):
        by_turn = turns(trajectory, texts)
        corrected = {int(t) for s in trajectory.samples for t in np.unique(s.turns[s.sources == Source.CORRECTION])}
        pieces: list[Piece] = []
        for turn, told in sorted(by_turn.items()):
            weights = told.get("weight") or [1.0] * len(told["text"])
            pieces.append((f"turn {turn + 1}{' (corrected)' if turn in corrected else ''}:", None))
            pieces += [(text, w if turn in corrected else None) for text, w in zip(told["text"], weights)]
        return pieces
    return []


def _rescued(run: Path) -> Iterator[Trajectory]:
    for path in trajectories.files(run / TRAJECTORIES).values():
        for group in trajectories.read(path):
            if group.replaced is not None and group.members[group.replaced].n_accepted:
                yield group.members[group.replaced]


def heatmap(pieces: Sequence[Piece]) -> Figure:
    """Text with a box a token, coloured by weight; a piece that begins a turn begins a line."""
    lines = _wrapped(pieces)
    height = 0.5 + 0.22 * len(lines)
    figure = Figure(figsize=(LINE * ADVANCE / 0.86, height))
    axes = figure.add_axes((0.01, 0.02, 0.86, 1 - 0.4 / height))
    axes.set_axis_off()
    axes.set_xlim(0, LINE)
    axes.set_ylim(len(lines), 0)
    reach = max([abs(w - 1) for _, w in pieces if w is not None] or [0.0]) or 0.01
    norm, colours = Normalize(1 - reach, 1 + reach), matplotlib.colormaps["coolwarm"]
    for row, line in enumerate(lines):
        for column, text, weight in line:
            if weight is not None:
                axes.add_patch(matplotlib.patches.Rectangle((column, row), len(text), 0.9, lw=0.3, ec="white", alpha=SHADE,
                                                            fc=colours(norm(weight))))
            axes.text(column, row + 0.65, text, family="DejaVu Sans Mono", fontsize=POINTS, parse_math=False)
    place = figure.add_axes((0.9, 0.1, 0.015, 0.7))
    bar = figure.colorbar(matplotlib.cm.ScalarMappable(norm, colours), cax=place, alpha=SHADE)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("weight", fontsize=8)
    axes.set_title("Weights of a rescued rollout's tokens; those without a box weigh 1", fontsize=9, loc="left")
    return figure


def _wrapped(pieces: Sequence[Piece]) -> list[list[tuple[int, str, float | None]]]:
    """Lines of (column, text, weight); a text longer than a line goes on in the next."""
    lines: list[list[tuple[int, str, float | None]]] = [[]]
    column = 0
    for text, weight in pieces:
        starts = weight is None and text.startswith("turn ") and text.endswith(":")
        for part in textwrap.wrap(text, LINE, drop_whitespace=False, replace_whitespace=False) or [text]:
            part = part.replace("\n", " ")
            if lines[-1] and (column + len(part) > LINE or starts):
                lines.append([])
                column = 0
            lines[-1].append((column, part, weight))
            column += len(part) + int(starts)
    return lines
