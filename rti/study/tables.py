"""The study's tables as Markdown, in the form of the paper's: percent with 95 % intervals over seeds and tasks. Pure."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from rti.evaluation import pass_at_k, pass_hat_k
from rti.run.metrics import REFUSALS
from rti.study import statistics
from rti.study.claims import SWEEP, table
from rti.study.plan import ALGORITHMS, BASE, SETTINGS, TEACHER
from rti.study.records import Outcome, Study
from rti.study.statistics import MEASURES, Estimate, at, p_at_1

NAMES = {"base": "base policy", "rti": "RTI", "grpo": "GRPO", "luffy": "LUFFY", "opd": "OPD", "gspo": "GSPO", "aepo": "AEPO",
         "teacher": "the teacher itself", "no_verifier": "without the Verifier", "no_gate": "without the gate",
         "no_reweighting": "without reweighting", "external": "RTI, the teacher plays all roles",
         "attempts_4": "RTI, up to 4 attempts", "replace_first": "RTI, replacing the first failed member"}


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; "" without rows."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines]) if lines else ""


def percent(e: Estimate) -> str:
    return f"{100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def methods(study: Study) -> str:
    """p@1, avg p@k, avg p^k of every method, and p@1 by class of task."""
    classes = sorted(set(study.classes.values()))
    rows = []
    for method in (BASE, *ALGORITHMS, TEACHER):
        outcomes = evaluated(study, method)
        if outcomes:
            cells = [percent(statistics.mean(table(study, outcomes, m))) for m in MEASURES.values()]
            by = [f"{100 * table(study, outcomes, p_at_1, c).mean():.1f}" for c in classes]
            rows.append([NAMES[method], len(outcomes), *cells, *by])
    return markdown(["method", "seeds", *MEASURES, *(f"p@1, {c}" for c in classes)], rows)


def budget(study: Study) -> str:
    """What each method spent, a mean over its seeds."""
    rows = []
    for method in (*ALGORITHMS, *(name for part in SETTINGS.values() for name in part)):
        accounts = [o.account for o in study.of(method) if o.account is not None]
        if accounts:
            def mean(field: str) -> str:
                return f"{sum(getattr(a, field) for a in accounts) / len(accounts):.1f}".removesuffix(".0")
            rows.append([name_of(method), len(accounts), *map(mean, ("steps", "updates", "plain", "intervened", "rollouts",
                                                                     "failed", "rescued", "wall_s"))])
    return markdown(["method", "seeds", "steps", "updates", "plain rollouts", "intervened", "together", "failed groups",
                     "rescued", "seconds"], rows)


def by_k(study: Study, named: Sequence[tuple[str, str]]) -> str:
    """pass@1..n and pass^1..n of RTI's variants: (label, method)."""
    rows, ks = [], 0
    for label, method in named:
        outcomes = evaluated(study, method)
        if outcomes:
            ks = outcomes[0].samples
            cells = [f"{100 * table(study, outcomes, at(formula, k)).mean():.1f}" for formula in (pass_at_k, pass_hat_k)
                     for k in range(1, ks + 1)]
            rows.append([label, len(outcomes), *cells])
    return markdown(["", "seeds", *(f"pass@{k}" for k in range(1, ks + 1)), *(f"pass^{k}" for k in range(1, ks + 1))], rows)


def ablations(study: Study) -> str:
    return by_k(study, [(NAMES[m], m) for m in ("rti", *SETTINGS["ablations"])])


def sweep(study: Study) -> str:
    return by_k(study, [(f"delta {delta}", method) for delta, method in SWEEP])


def others(study: Study) -> str:
    return by_k(study, [(NAMES[m], m) for m in ("rti", *SETTINGS["intervener"], *SETTINGS["settings"])])


def interventions(study: Study) -> str:
    """What interventions did, all seeds of a method together."""
    columns = [(name_of(m), total(study.of(m))) for m in ("rti", *(n for part in SETTINGS.values() for n in part))]
    columns = [(name, t) for name, t in columns if t]
    if not columns:
        return ""
    rows = [[label, *(shown(t) for _, t in columns)] for label, shown in _STATISTICS]
    rows += [[f"refused: {text.removeprefix('refused by ')}", *(f"{t.get(f'intervention/refused/{key}', 0):g}"
              for _, t in columns)] for key, text in REFUSALS.items()
             if any(t.get(f"intervention/refused/{key}") for _, t in columns)]
    return markdown(["", *(name for name, _ in columns)], rows)


def search(study: Study) -> str:
    """Every rate that was tried, and what it reached: mean outcome of the plain rollouts in the run's last quarter."""
    rates = sorted({float(r) for of in study.scores.values() for r in of})
    rows = [[NAMES[a], *(f"{of[str(r)]:.3f}" if str(r) in of else "" for r in rates), f"{study.rates[a]:g}"
             if a in study.rates else ""] for a, of in study.scores.items()]
    return markdown(["method", *(f"lr {r:g}" for r in rates), "taken"], rows)


def evaluated(study: Study, method: str) -> list[Outcome]:
    return [o for o in study.of(method) if o.passed]


def total(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Statistics of several runs together: counts added, means weighted by the accepted steps; `triggered`: failed groups."""
    parts = [o.statistics for o in outcomes if o.statistics]
    if not parts:
        return {}
    accepted = sum(p["intervention/accepted"] for p in parts)
    made = {}
    for key in {k for p in parts for k in p}:
        mean = key.startswith(("ppl/", "intervention/calls", "intervention/chars"))
        weights = [p["intervention/accepted"] if mean else 1 for p in parts]
        value = sum(p.get(key, 0.0) * w for p, w in zip(parts, weights))
        made[key] = value / accepted if mean and accepted else value
    made["triggered"] = sum(o.account.failed for o in outcomes if o.account is not None)
    return made


def name_of(method: str) -> str:
    return NAMES.get(method) or method.replace("delta_", "RTI, delta ")


def _count(key: str) -> Any:
    return lambda t: f"{t.get(key, 0):g}"


def _share(part: str, whole: str) -> Any:
    return lambda t: f"{t[part]:g} ({100 * t[part] / t[whole]:.1f} %)" if t.get(whole) else "0"


def _mean(key: str) -> Any:
    return lambda t: f"{t[key]:.2f}" if key in t and t.get("intervention/accepted") else "-"


_STATISTICS = (
    ("failed groups (triggered)", _count("triggered")),
    ("intervened rollouts", _count("intervention/rollouts")),
    ("... that succeeded", _share("successes", "intervention/rollouts")),
    ("... with an accepted correction", _share("with_accepted", "intervention/rollouts")),
    ("steps in them", _count("intervention/steps")),
    ("flagged by the Validator", _share("intervention/flagged", "intervention/steps")),
    ("accepted", _share("intervention/accepted", "intervention/flagged")),
    ("corrected tokens", _count("weight/tokens")),
    ("perplexity of accepted corrections", _mean("ppl/accepted_mean")),
    ("tool calls of a draft that was replaced", _mean("intervention/calls_original")),
    ("tool calls of its correction", _mean("intervention/calls_corrected")),
    ("characters of a draft that was replaced", _mean("intervention/chars_original")),
    ("characters of its correction", _mean("intervention/chars_corrected")),
)
