"""The paper's claims as checks over study.json: each holds, does not, or cannot be told, with its numbers. Pure.

Keeps: a verdict goes by the measured values alone; whether its interval leaves a doubt is said beside it. What is compared is
compared on the same tasks and the same seeds. A claim whose runs are missing is neither true nor false.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

import msgspec
import numpy as np

from rti.study import statistics
from rti.study.plan import ALGORITHMS, BASE
from rti.study.records import Outcome, Study, quarters
from rti.study.statistics import MEASURES, Estimate, Formula

WITHIN = 0.05       # of the base policy, in which GRPO is claimed to stay
SWEEP = (("0", "delta_0"), ("3", "delta_3"), ("5", "rti"), ("20", "delta_20"), ("inf", "no_gate"))


class Number(NamedTuple):
    """A difference that a verdict rests on; `clear` where its interval does not reach the threshold."""

    label: str
    estimate: Estimate
    holds: bool
    clear: bool


class Verdict(msgspec.Struct, kw_only=True):
    """`holds`: None where it cannot be told, and `why` says what is missing. `clear`: no interval leaves a doubt."""

    key: str
    claim: str
    holds: bool | None
    clear: bool = False
    numbers: list[Number] = []
    why: str = ""


class Missing(Exception):
    """A claim cannot be told wholly: its text says which runs are missing. `numbers`: what could be told."""

    def __init__(self, text: str, numbers: Sequence[Number] = ()):
        super().__init__(text)
        self.numbers = list(numbers)


def check(study: Study) -> list[Verdict]:
    """Every claim, in order."""
    verdicts = []
    for key, (claim, judge) in CLAIMS.items():
        why = ""
        try:
            numbers = judge(study)
        except Missing as e:
            numbers, why = e.numbers, str(e)
        against = [n for n in numbers if not n.holds]
        holds = False if against else None if why else True     # one comparison that fails is enough
        clear = any(n.clear for n in against) if against else all(n.clear for n in numbers)
        verdicts.append(Verdict(key=key, claim=claim, holds=holds, clear=clear, numbers=numbers, why=why))
    return verdicts


# --- comparing methods -------------------------------------------------------------------------------------------
def table(study: Study, outcomes: Sequence[Outcome], measure: Formula, cls: str = "") -> np.ndarray:
    """[seeds, tasks] of a measure, all tasks or those of a class. Raises Missing where there is nothing."""
    evaluated = [o for o in outcomes if o.passed]
    if not evaluated:
        raise Missing("no run was evaluated")
    tasks = [t for t, c in study.classes.items() if cls in ("", c)]
    counts = np.array([[o.passed[t] for t in tasks] for o in evaluated])
    return statistics.values(counts, evaluated[0].samples, measure)


def less(study: Study, a: str, b: str, measure: str) -> Estimate:
    """Method a less method b over the seeds that both have. Raises Missing where they share none."""
    seeds = {o.seed for o in study.of(a) if o.passed} & {o.seed for o in study.of(b) if o.passed}
    if not seeds:
        raise Missing(f"no seed of {a} and of {b} is complete")
    one, other = (table(study, [o for o in study.of(m) if o.seed in seeds], MEASURES[measure]) for m in (a, b))
    return statistics.difference(one, other)


def _above(label: str, estimate: Estimate, threshold: float = 0.0) -> Number:
    """Holds where the value is above the threshold."""
    clear = estimate.low > threshold or estimate.high <= threshold
    return Number(label, estimate, estimate.value > threshold, clear)


def _not_above(label: str, estimate: Estimate, threshold: float = 0.0) -> Number:
    clear = estimate.low > threshold or estimate.high <= threshold
    return Number(label, estimate, estimate.value <= threshold, clear)


def _all_above(study: Study, comparisons: Sequence[tuple[str, str, str, str]]) -> list[Number]:
    """(label, method, the one that it is to be above, measure) of each. Raises Missing, with what could be told."""
    numbers, missing = [], []
    for label, a, b, measure in comparisons:
        try:
            numbers.append(_above(label, less(study, a, b, measure)))
        except Missing as e:
            missing.append(str(e))
    if missing:
        raise Missing("; ".join(dict.fromkeys(missing)), numbers)
    return numbers


def rti_beats_all(study: Study) -> list[Number]:
    others = [BASE, *(a for a in ALGORITHMS if a != "rti")]
    return _all_above(study, [(f"rti - {other}, {measure}", "rti", other, measure)
                              for other in others for measure in ("p@1", "avg p^k")])


def grpo_stays(study: Study) -> list[Number]:
    d = less(study, "grpo", BASE, "p@1")
    return [Number("grpo - base, p@1", d, abs(d.value) <= WITHIN, d.low > -WITHIN and d.high < WITHIN
                   or d.low > WITHIN or d.high < -WITHIN)]


def verifier_matters(study: Study) -> list[Number]:
    return _all_above(study, [("rti - no_verifier, p@1", "rti", "no_verifier", "p@1")])


def gate_matters(study: Study) -> list[Number]:
    return _all_above(study, [("rti - no_gate, p@1", "rti", "no_gate", "p@1")])


def reweighting_is_mildest(study: Study) -> list[Number]:
    """What its loss costs is less than what the loss of the others costs: they end below it."""
    return _all_above(study, [(f"no_reweighting - {other}, p@1", "no_reweighting", other, "p@1")
                              for other in ("no_verifier", "no_gate")])


def delta_5_is_best(study: Study) -> list[Number]:
    return _all_above(study, [(f"delta 5 - delta {delta}, p@1", "rti", method, "p@1")
                              for delta, method in SWEEP if method != "rti"])


def stronger_is_not_better(study: Study) -> list[Number]:
    return [_not_above("external - rti, p@1", less(study, "external", "rti", "p@1"))]


# --- within runs -------------------------------------------------------------------------------------------------
def _runs(study: Study, method: str) -> list[Outcome]:
    found = study.of(method, "methods")
    if not found:
        raise Missing(f"no run of {method} is complete")
    return found


def pass_8_rises(study: Study) -> list[Number]:
    parts = [quarters(o.curves.get("pass@G/before", [])) for o in _runs(study, "rti")]
    first, last = [v for a, _ in parts for v in a], [v for _, b in parts for v in b]
    if not first:
        raise Missing("no step was measured")
    return [_above("Pass@8 before intervention, last quarter - first", statistics.of_parts(last, first))]


def accepted_ppl(outcome: Outcome) -> tuple[list[float], list[float]]:
    """PPL of the accepted steps in the first and in the second half of the steps, each step's mean as often as it accepted."""
    pairs = list(zip(outcome.curves.get("ppl/accepted_mean", []), outcome.curves.get("intervention/accepted", [])))
    half = len(pairs) // 2
    return tuple([v for v, n in part if v is not None for _ in range(int(n or 0))] for part in (pairs[:half], pairs[half:]))


def ppl_falls(study: Study) -> list[Number]:
    parts = [accepted_ppl(o) for o in _runs(study, "rti")]
    first, last = [v for a, _ in parts for v in a], [v for _, b in parts for v in b]
    if not first or not last:
        raise Missing("no correction was accepted in one half of the runs")
    return [_above("PPL of accepted steps, first half - second", statistics.of_parts(first, last))]


def spread(outcomes: Sequence[Outcome]) -> list[float]:
    """Entropy of the number of turns in each run's last quarter, nats."""
    return [statistics.entropy(list(o.turns.values())) for o in outcomes if o.turns]


def turns_stay_broad(study: Study) -> list[Number]:
    rti, grpo = spread(_runs(study, "rti")), spread(_runs(study, "grpo"))
    if not rti or not grpo:
        raise Missing("no trajectories of the last quarter are stored")
    return [_above("entropy of the number of turns, rti - grpo, nats", statistics.of_parts(rti, grpo))]


CLAIMS: dict[str, tuple[str, Callable[[Study], list[Number]]]] = {
    "rti_beats_all": ("RTI beats every other method on p@1 and on avg p^k", rti_beats_all),
    "grpo_stays": ("GRPO stays within 5 points of the base policy", grpo_stays),
    "verifier_matters": ("RTI is worse without the Verifier", verifier_matters),
    "gate_matters": ("RTI is worse without the gate", gate_matters),
    "reweighting_is_mildest": ("Of the three ablations, that of reweighting is the mildest", reweighting_is_mildest),
    "delta_5_is_best": ("delta = 5 is the best of {0, 3, 5, 20, inf}", delta_5_is_best),
    "pass_8_rises": ("Pass@8 before intervention rises over training", pass_8_rises),
    "ppl_falls": ("The perplexity of accepted steps falls over training", ppl_falls),
    "turns_stay_broad": ("RTI keeps a broader distribution of turns than GRPO", turns_stay_broad),
    "stronger_is_not_better": ("A stronger intervener is not better than self-intervention", stronger_is_not_better),
}


def listed(verdicts: Sequence[Verdict]) -> str:
    """For a terminal: a claim a line, and its numbers under it."""
    lines: list[str] = []
    for v in verdicts:
        word = {True: "true", False: "FALSE", None: "unknown"}[v.holds]
        doubt = "" if v.holds is None or v.clear else ", within its interval"
        lines.append(f"{word:<8}{v.claim}{doubt}" + (f": {v.why}" if v.why else ""))
        lines += [f"          {n.label}: {shown(n)}" + ("" if n.holds else "   <-") for n in v.numbers]
    return "\n".join(lines)


def shown(n: Number) -> str:
    """Its value and interval, in points where it is a share."""
    scale, unit = (100, " points") if "p@1" in n.label or "p^k" in n.label or "Pass@8" in n.label else (1, "")
    value, low, high = (scale * x for x in n.estimate)
    return f"{value:+.2f}{unit} [{low:+.2f}, {high:+.2f}]"
