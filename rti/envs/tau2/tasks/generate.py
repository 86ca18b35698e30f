"""Draws training tasks for retail and airline over the official databases.

Keeps: the same database, seed and size give the same tasks. Every task changes the database; no two of one draw change it in
the same way, and none in the way of a base task; the change does not depend on the order in which goals are served.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from typing import Any, Callable, Mapping, Protocol, Sequence

from rti.envs.tau2 import official
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.tasks import airline, retail
from rti.envs.tau2.tasks.effects import NOTHING, CallFailed, Effect, as_set, effect_of
from rti.envs.tau2.tasks.goal import Call, Customer, Goal, Row, compose

COUNTS = {"retail": 563, "airline": 271}
"""Tasks of a set, as in the paper."""
DEFAULT_SEED = 0
MOST_DRAWS = 200
"""Draws per task of the set before the database counts as too small for it."""
SIZES = {1: 0.35, 2: 0.4, 3: 0.25}
"""Goals of a task, with their probability."""


class TooFewTasks(ValueError):
    """The database does not hold as many different tasks as were asked for."""


class Caller(Protocol):
    def customer(self) -> Customer: ...


DOMAINS: Mapping[str, tuple[Callable[[Any, str, Random], Caller], Mapping[Callable[[Any], Goal | None], float]]] = {
    "retail": (retail.Shopper, retail.GOALS),
    "airline": (airline.Traveller, airline.GOALS),
}


def generate(domain: Domain, count: int = 0, seed: int = DEFAULT_SEED) -> list[Row]:
    """`count` tasks (0: as in the paper) over the domain's own database, away from its base split."""
    count = count or COUNTS[domain.name]
    db = official.load().utils.load_file(domain.data / "domains" / domain.name / "db.json")
    taken = {NOTHING} | {as_set(domain.gold(t)) for t in domain.tasks("base")}
    rows: list[Row] = []
    for n in range(count * MOST_DRAWS):
        rng = Random(f"{domain.name} {seed} {n}")
        row = _draw(domain, db, rng, f"{domain.name}_made_{seed}_{len(rows):04d}", taken)
        if row is not None:
            rows.append(row)
        if len(rows) == count:
            return rows
    raise TooFewTasks(f"the {domain.name} database gave {len(rows)} of {count} different tasks in {count * MOST_DRAWS} draws; "
                      "mend: ask for fewer")


def _draw(domain: Domain, db: Mapping[str, Any], rng: Random, task_id: str, taken: set[Effect]) -> Row | None:
    """A task whose change is not in `taken`, to which it is added; None where this draw gave none."""
    make, weights = DOMAINS[domain.name]
    caller = make(db, rng.choice(list(db["users"])), rng)
    size = rng.choices(list(SIZES), list(SIZES.values()))[0]
    goals = _goals(caller, weights, rng, size)
    if len(goals) < size or not any(g.writes for g in goals):
        return None
    row = compose(domain.name, task_id, caller.customer(), goals, rng)
    effect = _effect_in_any_order(domain, goals)
    if effect is None or effect in taken:
        return None
    taken.add(effect)
    return row


def _goals(caller: Caller, weights: Mapping[Callable[[Any], Goal | None], float], rng: Random, count: int) -> list[Goal]:
    """Up to `count` goals about different records."""
    goals: list[Goal] = []
    for _ in range(4 * count):
        kind = rng.choices(list(weights), list(weights.values()))[0]
        goal = kind(caller)
        if goal is not None and goal.subject not in {g.subject for g in goals}:
            goals.append(goal)
        if len(goals) == count:
            break
    return goals


def _effect_in_any_order(domain: Domain, goals: Sequence[Goal]) -> Effect | None:
    """What the goals' calls change, if that is the same in every order of the goals and with lists of items turned around;
    None where it is not, or where a call fails."""
    orders = list(itertools.permutations([g for g in goals if g.writes]))
    runs = [[c for g in order for c in g.writes] for order in orders]
    if any("item_ids" in c.arguments for c in runs[0]):
        runs.append([_turned(c) for c in runs[0]])
    try:
        effects = {effect_of(domain, run) for run in runs}
    except CallFailed:
        return None
    return effects.pop() if len(effects) == 1 else None


def _turned(call: Call) -> Call:
    items = {key: call.arguments[key][::-1] for key in ("item_ids", "new_item_ids") if key in call.arguments}
    return replace(call, arguments={**call.arguments, **items})
