"""Which runs a study consists of, in the order in which they tell most, and what each may spend. Pure.

Keeps: every training run may spend the same number of rollouts, intervened ones and the teacher's own included. A method that
may run failed groups again reserves the most that this can cost and takes fewer steps for it, so that no baseline has less.
Every method gets the same search over the learning rate, on a seed that nothing else uses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Mapping, Sequence

ALGORITHMS = ("rti", "grpo", "luffy", "opd", "gspo", "aepo")
"""The trained methods, the most telling first."""

TAUGHT = ("luffy", "opd")
BASE, TEACHER, MAKE_TEACHER = "base", "teacher", "make_teacher"
RUN_AGAIN = ("rti", "luffy")
"""Methods that may run a failed group again."""

SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "ablations": {
        "no_verifier": ("intervention.verifier=false",),
        "no_gate": ("intervention.delta=inf",),
        "no_reweighting": ("intervention.reweight=false",),
    },
    "sweep": {
        "delta_0": ("intervention.delta=0",),
        "delta_3": ("intervention.delta=3",),
        "delta_20": ("intervention.delta=20",),
    },
    "intervener": {
        "external": tuple(f"intervention.{role}.player=teacher" for role in ("validator", "corrector", "verifier_role")),
    },
    "settings": {
        "attempts_4": ("intervention.attempts=4",),
        "replace_first": ("intervention.replace=first",),
    },
}
"""RTI with another setting, by the part of the study: name -> words. delta 5 is `rti`, delta inf is `no_gate`."""


class PlanError(ValueError):
    """A scale that cannot be: its text says which field and what it may be."""


@dataclass(frozen=True)
class Scale:
    """How large a study is. `budget`: rollouts of a run. docs/lab.md says what the defaults take."""

    budget: int = 1152              # 36 steps of 4 x 8 plain rollouts; 32 where each of the 4 groups may be run again once
    groups: int = 4                 # of a step: small steps, so that few rollouts make many updates; 0: as configured
    search_budget: int = 1152       # a shorter search would take the rate that does least: what learns gets worse before better
    rates: tuple[float, ...] = (1e-4, 2e-4, 4e-4)
    seeds: tuple[int, ...] = (0, 1, 2)
    search_seed: int = 100
    every: int = 12                 # steps between the evaluations that show how RTI and GRPO go on the first seed; 0: none
    tasks: int = 0                  # test tasks of an evaluation; 0: all
    samples: int = 4
    teacher_steps: int = 48         # of RTI on a larger policy and on the search seed, which make the teacher
    parts: tuple[str, ...] = ("methods", *SETTINGS)
    algorithms: tuple[str, ...] = ALGORITHMS

    def with_words(self, words: Sequence[str]) -> Scale:
        """The scale with `field=value` put in; lists have commas between. Raises PlanError."""
        changed = {}
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        for word in words:
            name, equals, text = word.partition("=")
            if not equals or name not in known:
                raise PlanError(f"{word!r}: expected field=value with one of {', '.join(known)}, e.g. seeds=0,1,2")
            changed[name] = _parsed(name, known[name], text)
        return replace(self, **changed).checked()

    @property
    def words(self) -> tuple[str, ...]:
        """Configuration keys of every run."""
        return (f"rollout.groups_per_step={self.groups}",) if self.groups else ()

    def checked(self) -> Scale:
        if set(self.parts) - {"methods", *SETTINGS}:
            raise PlanError(f"parts={','.join(self.parts)}: there are {', '.join(('methods', *SETTINGS))}")
        if set(self.algorithms) - set(ALGORITHMS):
            raise PlanError(f"algorithms={','.join(self.algorithms)}: there are {', '.join(ALGORITHMS)}")
        if not self.rates or not self.seeds or self.search_seed in self.seeds:
            raise PlanError("a study needs rates and seeds, and a search_seed that is none of the seeds")
        return self


SCALES = {
    "hour": Scale(),
    "day": Scale(budget=5760, search_budget=5760, groups=8, seeds=(0, 1, 2, 3, 4), every=16, teacher_steps=80),
}


def _parsed(name: str, like: object, text: str) -> object:
    kind = type(like[0]) if isinstance(like, tuple) else type(like)
    try:
        values = tuple(kind(part) for part in text.split(",") if part) if isinstance(like, tuple) else kind(text)
    except ValueError:
        raise PlanError(f"{name}={text}: expected {kind.__name__}{'s with commas between' if isinstance(like, tuple) else ''}"
                        ) from None
    return values


@dataclass(frozen=True)
class Shape:
    """Of a step: `groups` groups of `size` plain rollouts each."""

    size: int
    groups: int

    def steps(self, budget: int, attempts: int) -> int:
        """Steps that `budget` rollouts surely cover where each group may be run again `attempts` times. Raises PlanError."""
        steps = budget // (self.groups * (self.size + attempts))
        if not steps:
            raise PlanError(f"budget={budget} does not cover one step of {self.groups} groups of {self.size} rollouts with "
                            f"{attempts} more for each; give at least {self.groups * (self.size + attempts)}")
        return steps


@dataclass(frozen=True)
class Entry:
    """One piece of work. `words` are those of launch/rti.py or launch/eval.py beside what every run gets."""

    name: str                       # also of its directory
    part: str                       # base, make_teacher, teacher, search, methods, or a key of SETTINGS
    method: str
    seed: int
    words: tuple[str, ...] = ()
    steps: int = 0                  # 0: nothing is trained
    searched: str = ""              # the algorithm whose search gives the learning rate; "": the words say it

    @property
    def trains(self) -> bool:
        return self.steps > 0

    @property
    def needs_teacher(self) -> bool:
        return self.method in TAUGHT or self.method == "external" or self.part == TEACHER

    @property
    def makes_teacher(self) -> bool:
        return self.part == MAKE_TEACHER


def plan(scale: Scale, shape: Shape) -> list[Entry]:
    """All entries, the most telling first; a search stands before what it is for."""
    entries = [Entry(f"base-{seed}", BASE, BASE, seed) for seed in scale.seeds]
    taught = any(a in TAUGHT for a in scale.algorithms) or "intervener" in scale.parts
    for algorithm in scale.algorithms:
        if algorithm in TAUGHT and not any(e.makes_teacher for e in entries):
            entries += _teacher(scale)
        entries += _search(scale, shape, algorithm)
        if "methods" in scale.parts:
            entries += [_method(scale, shape, algorithm, seed) for seed in scale.seeds]
    if taught and not any(e.makes_teacher for e in entries):
        entries += _teacher(scale)
    if "rti" in scale.algorithms:       # a seed of everything before the next seed of anything
        entries += [_setting(scale, shape, part, name, seed) for seed in scale.seeds
                    for part in scale.parts if part != "methods" for name in SETTINGS[part]]
    return entries


def _teacher(scale: Scale) -> list[Entry]:
    """A larger policy is trained with RTI, on a seed of no other run, and then tested like the others."""
    return [Entry("make-teacher", MAKE_TEACHER, MAKE_TEACHER, scale.search_seed, ("algo=rti",), scale.teacher_steps),
            Entry("teacher", TEACHER, TEACHER, scale.seeds[0])]


def _search(scale: Scale, shape: Shape, algorithm: str) -> list[Entry]:
    """One run a rate, all over the same tasks; the middle rate first. With one rate there is nothing to search."""
    steps = shape.steps(scale.search_budget, int(algorithm in RUN_AGAIN))
    order = sorted(scale.rates, key=lambda rate: abs(scale.rates.index(rate) - len(scale.rates) // 2))
    return [Entry(f"search-{algorithm}-{rate:g}", "search", algorithm, scale.search_seed,
                  (f"algo={algorithm}", f"learner.lr={rate:g}"), steps) for rate in order if len(scale.rates) > 1]


def _method(scale: Scale, shape: Shape, algorithm: str, seed: int) -> Entry:
    steps = shape.steps(scale.budget, int(algorithm in RUN_AGAIN))
    watched = scale.every and seed == scale.seeds[0] and algorithm in ("rti", "grpo")
    words = (f"algo={algorithm}", *((f"evaluation.every={scale.every}",) if watched else ()))
    return Entry(f"{algorithm}-{seed}", "methods", algorithm, seed, words, steps, algorithm)


def _setting(scale: Scale, shape: Shape, part: str, name: str, seed: int) -> Entry:
    words = SETTINGS[part][name]
    attempts = next((int(w.partition("=")[2]) for w in words if w.startswith("intervention.attempts=")), 1)
    return Entry(f"{name}-{seed}", part, name, seed, ("algo=rti", *words), shape.steps(scale.budget, attempts), "rti")


def chosen_rates(scale: Scale, scores: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """algorithm -> the rate with the best score, for those of which every rate has one. Ties: the rate nearest the middle."""
    middle = len(scale.rates) // 2
    order = sorted(range(len(scale.rates)), key=lambda i: abs(i - middle))
    if len(scale.rates) == 1:
        return {a: scale.rates[0] for a in scale.algorithms}
    return {a: max((scale.rates[i] for i in order), key=of.__getitem__)
            for a, of in scores.items() if set(of) == set(scale.rates)}


def scale_of(name: str, words: Sequence[str] = ()) -> Scale:
    """The scale of that name with fields changed. Raises PlanError."""
    if name not in SCALES:
        raise PlanError(f"--scale {name}: there are {', '.join(SCALES)}, and every field can be given, e.g. budget=2304")
    return SCALES[name].with_words(words)
