"""Studies made by hand: a method's successes by class of task, and curves as wanted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rti.study.plan import Scale
from rti.study.records import Account, Outcome, Study

CLASSES = {f"t{i}": "plain" if i % 3 == 0 else "ambiguous" for i in range(30)}
SAMPLES = 4


def outcome(method: str, seed: int, plain: int, ambiguous: int, part: str = "methods", **more: Any) -> Outcome:
    """Of a method that passes `plain` and `ambiguous` of 4 samples of every task of the class."""
    passed = {t: plain if cls == "plain" else ambiguous for t, cls in CLASSES.items()}
    known = dict(
        by={"plain": plain / SAMPLES, "ambiguous": ambiguous / SAMPLES},
        account=Account(steps=16, updates=12, plain=1024, intervened=40, failed=40, rescued=20, wall_s=100.0))
    return Outcome(name=f"{method}-{seed}", part=part, method=method, seed=seed, words=[], passed=passed, samples=SAMPLES,
                   **known | more)


def study(outcomes: list[Outcome], **more: Any) -> Study:
    known: dict[str, Any] = dict(
        scale=asdict(Scale()), rollouts_per_step=[8, 8], classes=dict(CLASSES), rates={"rti": 2e-4},
        scores={"rti": {"0.0001": 0.25, "0.0002": 0.5}}, missing=[], parameters={"policy": 1_200_000})
    return Study(outcomes=outcomes, **known | more)
