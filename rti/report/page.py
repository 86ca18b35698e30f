"""The page: plots, tables and viewer put into one HTML file that loads nothing and runs no script but its own.

Keeps: every text of a model, a tool or a configuration is escaped (Jinja's autoescape) or travels as JSON that the page's
script writes as text; the content security policy lets no other script run, and nothing be fetched, whatever a text holds.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from pathlib import Path
from typing import Any, Sequence

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from rti.report import plots, results, viewer
from rti.report.runs import Run, read_runs, settings
from rti.run.charts import CHARTS
from rti.run.files import write_atomic

NAME = "report.html"
MEGABYTES = 25.0
"""Trajectories in a page; beyond that it is slow to open on a phone."""


def write(paths: Sequence[Path], out: Path | None = None, *, megabytes: float = MEGABYTES) -> Path:
    """Write the report of the runs in `paths` and return where it is: `out`, or report.html in the first run's directory.

    Raises NotARun where a path is no run's directory.
    """
    out = paths[0] / NAME if out is None else out
    write_atomic(out, render(read_runs(paths), megabytes=megabytes).encode())
    return out


def render(runs: Sequence[Run], *, megabytes: float = MEGABYTES) -> str:
    """The page as text."""
    shown, full = viewer.collect(runs, megabytes)
    script, style, template = (_part(name) for name in ("viewer.js", "page.css", "page.html.jinja"))
    # the page's own script is let through by what it holds: a script in a model's text has another hash
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        template).render(
        title=" and ".join(run.name for run in runs), runs=runs, settings=settings(runs), result=results.result_table(runs),
        totals=results.totals_table(runs), survived=results.survived(runs), sections=_sections(runs),
        notes=[f"{run.name}: {text}" for run in runs for text in (*run.records.damage, *run.records.notes)],
        smooth=(plots.SMOOTH_FROM, plots.WINDOW), n_shown=len(shown), full=full, labels=viewer.LABELS,
        show=_show, style=Markup(style), script=Markup(script), digest=digest, data=_data(runs, shown))


def _sections(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str, Markup]]]]:
    """(section, [(title, explanation, SVG)]); plots that have nothing to show are left out, and sections of none."""
    found = []
    for section, wanted in CHARTS.items():
        drawn = [(plot.title, plot.text, plots.draw(plot, runs)) for plot in wanted]
        if section == "Training":
            drawn.insert(0, ("Evaluation", "On the test tasks, with 95 % intervals over tasks.", plots.draw_evaluations(runs)))
        if section == "Intervention":
            drawn.insert(1, ("Refused, by reason", "Flagged steps that went on with the draft.", plots.draw_refusals(runs)))
        kept = [(title, text, Markup(svg)) for title, text, svg in drawn if svg]
        if kept:
            found.append((section, kept))
    return found


def _data(runs: Sequence[Run], shown: Sequence[bytes]) -> Markup:
    """JSON for a script element: what could end the element or begin a comment in it is spelt out."""
    head = msgspec.json.encode([run.name for run in runs])
    text = b'{"runs":' + head + b',"items":[' + b",".join(shown) + b"]}"
    return Markup(text.decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _show(value: Any) -> str:
    """A configuration value as YAML would show it."""
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value or "(empty)"


def _part(name: str) -> str:
    return (importlib.resources.files("rti.report") / "parts" / name).read_text(encoding="utf-8")
