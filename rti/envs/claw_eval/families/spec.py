"""What a family's generator makes (`Spec`), how it draws names, days and amounts (`Draw`), and the task that comes of it.

Keeps: everything is drawn from the seed, so that the same seed gives the same task; no name, address or amount is drawn twice
for one task, so that one value never stands for two things by accident.
"""

from __future__ import annotations

import datetime
import random
from typing import Any, Sequence

import msgspec

from rti.control.seeds import derive
from rti.envs.base import Task
from rti.envs.claw_eval.evidence import Component, Evidence, Planned, SafetyCheck
from rti.envs.claw_eval.faults import Fault
from rti.envs.claw_eval.services import TOOLS
from rti.envs.claw_eval.services.base import Row

FIRST = ("Amara Bruno Chiara Dmitri Elif Farid Greta Hiro Ines Jonas Katya Liam Maren Nadia Oskar Priya Quentin Rosa Samir "
         "Tove Umar Vera Wim Xenia Yusuf Zofia").split()
LAST = ("Abel Brandt Castillo Duarte Eklund Ferrari Grant Haas Ivanov Jensen Kaya Lindqvist Moreau Novak Okafor Petit Quispe "
        "Rossi Sato Tanaka Ueda Varga Weber Yilmaz Zhang Acosta").split()
COMPANY = ("Aldergate Brightwater Copperfield Dunmore Eastvale Fernhill Glenmark Harrowgate Ironbridge Juniper Kestrel "
           "Larkspur Millbrook Northway Oakhurst Pinecrest Quarrymen Riverton Silverton Thornbury").split()
KIND = "Logistics Foods Textiles Energy Optics Media Robotics Paper Glass Marine".split()
DEPARTMENT = "Facilities Marketing Research Sales Logistics Legal Procurement Training".split()


class Spec(msgspec.Struct, kw_only=True):
    """A task before it is one. `constants`: what the instruction names; it must stand in instruction and fixtures alike."""

    instruction: str
    services: list[str]
    fixtures: dict[str, dict[str, list[Row]]]
    components: list[Component]
    safety_checks: list[SafetyCheck] = []
    reference: list[list[Planned]]
    closing: str
    constants: list[str]
    now: str
    faults: list[Fault] = []
    older: dict[str, dict[str, list[Row]]] = {}
    completion: str = ""


class Draw:
    """A task's random stream. `index` is the variant's number, for what should go round evenly (phrasings, kinds of faults)."""

    def __init__(self, seed: int, index: int) -> None:
        self.index = index
        self._random = random.Random(seed)
        self._used: set[Any] = set()
        self.today = datetime.date(2026, 1, 5) + datetime.timedelta(days=self._random.randrange(300))

    def choice(self, values: Sequence[Any]) -> Any:
        return self._random.choice(values)

    def turn(self, values: Sequence[Any]) -> Any:
        """The values one after another from variant to variant."""
        return values[self.index % len(values)]

    def shuffled(self, values: Sequence[Any]) -> list[Any]:
        return self._random.sample(values, len(values))

    def integer(self, low: int, high: int) -> int:
        return self._fresh(lambda: self._random.randint(low, high))

    def amount(self, low: int = 100, high: int = 5000) -> float:
        """Never a whole number: it can be told from counts and ids."""
        return self._fresh(lambda: round(self._random.randint(low, high) + self._random.randint(1, 19) * 0.05 + 0.01, 2))

    def person(self, first: str = "", last: str = "") -> str:
        return self._fresh(lambda: f"{first or self.choice(FIRST)} {last or self.choice(LAST)}")

    def company(self, first: str = "") -> str:
        return self._fresh(lambda: f"{first or self.choice(COMPANY)} {self.choice(KIND)}")

    def department(self) -> str:
        return self._fresh(lambda: self.choice(DEPARTMENT))

    def id(self, prefix: str) -> str:
        return self._fresh(lambda: f"{prefix}-{self._random.randint(200, 899)}")

    def day(self, low: int, high: int) -> str:
        """A working day from `low` to `high` days after today."""
        def drawn() -> str:
            day = self.today + datetime.timedelta(days=self._random.randint(low, high))
            return (day + datetime.timedelta(days=2 if day.weekday() > 4 else 0)).isoformat()
        return self._fresh(drawn)

    @property
    def now(self) -> str:
        return f"{self.today.isoformat()} 09:00"

    def _fresh(self, draw: Any) -> Any:
        for _ in range(1000):
            value = draw()
            if value not in self._used:
                self._used.add(value)
                return value
        raise RuntimeError("a family draws more different values than there are; mend: a wider range or a longer list")


def address(name: str, house: str = "example.org") -> str:
    return f"{name.casefold().replace(' ', '.')}@{house}"


def call(name: str, fails: bool = False, /, **arguments: Any) -> Planned:
    return Planned(name=name, arguments=arguments, fails=fails)


def task_of(spec: Spec, family: str, category: str, id: str) -> Task:
    """The RTI task: what the world is made from goes into `data`, what is privileged into `evidence`."""
    writes = [n for n, t in TOOLS.items() if t.writes and t.service in spec.services]
    evidence = Evidence(family=family, components=spec.components, safety_checks=spec.safety_checks, reference=spec.reference,
                        closing=spec.closing, writes=writes, completion=spec.completion or completion_of(spec))
    data = {"instruction": spec.instruction, "services": spec.services, "now": spec.now, "fixtures": spec.fixtures,
            "older": spec.older, "faults": spec.faults, "constants": spec.constants}
    return Task(id=id, cls=category, data=msgspec.to_builtins(data), evidence=msgspec.to_builtins(evidence))


def completion_of(spec: Spec) -> str:
    calls = sum(c.call is not None for c in spec.components)
    parts = [f"the {calls} calls that the rubric asks for have taken effect, each once" if calls else "",
             "the last reply has the right answer line" if any(c.answer for c in spec.components) else ""]
    return f"Done when {', and '.join(p for p in parts if p)}, and nothing else was changed."


def seed_of(family: str, split: str, variant: int, seed: int, attempt: int = 0) -> int:
    return derive(seed, "claw_eval", family, split, variant, attempt)
