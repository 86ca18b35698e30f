"""Tasks by the inverse protocol: draw the places first, induce the direction call, then write the query that asks for it.

Keeps: names of the gazetteer's test part appear in test tasks only, those of the train part in train tasks only; the same seed
gives the same tasks; every task has a reference solution (`reference_turns`) whose coordinates all come from searches.
"""

from __future__ import annotations

import functools
import random
import re
from typing import Mapping, Sequence

import msgspec

from rti.control.seeds import derive
from rti.envs.base import Task
from rti.envs.navigation import queries
from rti.envs.navigation.gazetteer import Gazetteer, Place, fold, part
from rti.envs.navigation.reward import ORDER_LEVELS
from rti.trajectory import Message, ToolCall

SIZES = {"train": 600, "test": 150}
DEFAULT_SEED = 20
"""Of the task sets that go by name, so that every run measures itself on the same tasks."""

LAB_LEVELS = (0, 1, 3, 4)
LAB_REACH = 0.7                 # degrees from the start
LAB_AMBIGUOUS = 2 / 3
"""The share among trips of three places drawn freely. Starts that the plain search finds, and stops that a region finds, would
lower it to 0.42; the draw makes up for that."""
FULL_RADIUS = 50_000            # metres
FULL_WAYPOINTS = (3, 9)
_LAB_NAME = re.compile(r"[A-Za-z]+(?: [A-Za-z]+)*")
_MAX_NAME = 20

MAX_DRAWS = 5_000
"""Draws of a trip before a gazetteer counts as too small (the shipped one needs a handful)."""


class TooFewPlaces(ValueError):
    """The gazetteer does not give what was asked for."""


class TaskSplit(msgspec.Struct, frozen=True):
    train: list[Task]
    test: list[Task]


class _Candidates:
    """Which places of a part can be a start, and which a later stop. Computed once a gazetteer and part."""

    def __init__(self, gazetteer: Gazetteer, which: str) -> None:
        self.gazetteer = gazetteer
        self.stops: dict[int, Place] = {}
        self.starts: list[Place] = []
        for place in gazetteer.places:
            if len(place.name) > _MAX_NAME or part(place.name) != which or not _LAB_NAME.fullmatch(place.name):
                continue
            if first(gazetteer, place.name, place.province) is not place:
                continue
            self.stops[place.id] = place
            if first(gazetteer, place.name) is place:
                self.starts.append(place)
        if not self.starts:
            raise TooFewPlaces(f"the gazetteer has no start for {which}")
        self._near: dict[int, list[Place]] = {}

    def within_reach(self, start: Place) -> list[Place]:
        """Stops of the start's province within 0.7 degrees, with other names and coordinates, nearest first."""
        if start.id not in self._near:
            self._near[start.id] = [
                h.place for h in self.gazetteer.around(start.lng, start.lat, LAB_REACH * 112_000, limit=10**6)
                if h.place.id in self.stops and self.suits(start, h.place)
                and (h.place.lng - start.lng) ** 2 + (h.place.lat - start.lat) ** 2 <= LAB_REACH ** 2]
        return self._near[start.id]

    @staticmethod
    def suits(start: Place, place: Place) -> bool:
        apart = (place.lng, place.lat) != (start.lng, start.lat)
        return apart and place.province == start.province and fold(place.name) != fold(start.name)


@functools.lru_cache(maxsize=8)
def _candidates(gazetteer: Gazetteer, which: str) -> _Candidates:
    return _Candidates(gazetteer, which)


def first(gazetteer: Gazetteer, name: str, region: str = "") -> Place | None:
    """What a search shows first."""
    return next(iter(gazetteer.search(name, region, limit=1)), None)


def is_ambiguous(gazetteer: Gazetteer, stops: Sequence[Place]) -> bool:
    """Whether the first result of the plain search is wrong for at least one stop."""
    return any(first(gazetteer, p.name) is not p for p in stops)


def make_task(gazetteer: Gazetteer, prefix: str, stops: Sequence[Place], level: int, query: str, instructions: bool) -> Task:
    """The task over `stops` in reference order."""
    locations = [p.location for p in stops]
    return Task(
        id=f"{prefix}-{level}-{'-'.join(str(p.id) for p in stops)}",
        cls="ambiguous" if is_ambiguous(gazetteer, stops) else "plain",
        data={"query": query, "instructions": instructions, "written_by": "template"},
        evidence={
            "order_level": level,
            "reference": {"origin": locations[0], "waypoints": locations[1:-1], "destination": locations[-1]},
            "stops": [{"name": p.name, "province": p.province, "location": p.location} for p in stops],
        })


def _distinct(rng: random.Random, places: Sequence[Place], count: int) -> list[Place]:
    """`count` places of different names and coordinates in random order, or fewer where there are not so many."""
    chosen: list[Place] = []
    for place in rng.sample(places, len(places)):
        if len(chosen) == count:
            break
        if all(fold(place.name) != fold(c.name) and (place.lng, place.lat) != (c.lng, c.lat) for c in chosen):
            chosen.append(place)
    return chosen


def lab_trip(gazetteer: Gazetteer, rng: random.Random, part: str = "train") -> Task:
    """A three-stop trip with a short query. Its start is what the plain search for its name shows first; the other two are
    what a search within the start's province shows first. Ambiguous with probability LAB_AMBIGUOUS."""
    candidates = _candidates(gazetteer, part)
    ambiguous = rng.random() < LAB_AMBIGUOUS
    for _ in range(MAX_DRAWS):
        start = rng.choice(candidates.starts)
        others = _distinct(rng, candidates.within_reach(start), 2)
        if len(others) == 2 and is_ambiguous(gazetteer, others) == ambiguous:
            break
    else:
        raise TooFewPlaces(f"no {'ambiguous' if ambiguous else 'plain'} lab trip for {part} in {MAX_DRAWS} draws")
    level = rng.choice(LAB_LEVELS)
    stops = [start, *others]
    query = queries.lab_query(rng, level, [p.name for p in stops])
    return make_task(gazetteer, f"lab-{part}", stops, level, query, instructions=False)


def full_trip(gazetteer: Gazetteer, rng: random.Random, part: str = "train") -> Task:
    """A trip of 3 to 9 waypoints between start and end, all within 50 km of the start (the anchor). Names are unique there."""
    for _ in range(MAX_DRAWS):
        stops = _draw_full(gazetteer, rng, part)
        if stops is None:
            continue
        level = rng.choice(ORDER_LEVELS)
        names = [p.name for p in stops]
        query = queries.full_query(rng, level, names, stops[0].province)
        if not queries.problem_of(query, names, stops[0].province):
            return make_task(gazetteer, f"full-{part}", stops, level, query, instructions=True)
    raise TooFewPlaces(f"no full trip for {part} in {MAX_DRAWS} draws")


def _draw_full(gazetteer: Gazetteer, rng: random.Random, part: str) -> list[Place] | None:
    candidates = _candidates(gazetteer, part)
    anchor = rng.choice(candidates.starts)
    hits = gazetteer.around(anchor.lng, anchor.lat, FULL_RADIUS, limit=10**6)
    names = [fold(h.place.name) for h in hits]
    near = [h.place for h in hits if h.place.id in candidates.stops and candidates.suits(anchor, h.place)
            and names.count(fold(h.place.name)) == 1]
    wanted = rng.randint(*FULL_WAYPOINTS) + 1        # the waypoints and the end
    others = _distinct(rng, near, wanted)
    return [anchor, *others] if len(others) == wanted else None


DRAW = {"lab": lab_trip, "full": full_trip}


def task_set(gazetteer: Gazetteer, name: str, seed: int = DEFAULT_SEED, sizes: Mapping[str, int] = SIZES) -> TaskSplit:
    """The task set `lab` or `full`: no task twice, disjoint in places' names, the same for the same seed."""
    parts: dict[str, list[Task]] = {}
    for which, size in sizes.items():
        rng = random.Random(derive(seed, "navigation", name, which))
        tasks: dict[tuple[str, ...], Task] = {}
        draws = 0
        while len(tasks) < size:
            draws += 1
            if draws > 20 * size + 1000:
                raise TooFewPlaces(f"the gazetteer gives only {len(tasks)} different {name} tasks for {which}, not {size}")
            task = DRAW[name](gazetteer, rng, which)
            tasks.setdefault(tuple(sorted(s["location"] for s in task.evidence["stops"])), task)
        parts[which] = list(tasks.values())
    return TaskSplit(**parts)


def reference_turns(task: Task) -> list[Message]:
    """A solution: a search for every stop, refined by region but for the first, then the direction call."""
    stops, reference = task.evidence["stops"], task.evidence["reference"]
    searches = [ToolCall(name="poi_search", arguments={"address": stops[0]["name"]})]
    searches += [ToolCall(name="poi_search", arguments={"address": s["name"], "region": s["province"]}) for s in stops[1:]]
    call = ToolCall(name="direction", arguments={
        "origin": reference["origin"], "destination": reference["destination"], "mode": "driving",
        "waypoints": list(reference["waypoints"])})
    turns = [searches, [call]]
    return [Message(role="assistant", tool_calls=[
        msgspec.structs.replace(c, id=f"call_{i}_{j}") for j, c in enumerate(calls)]) for i, calls in enumerate(turns)]
