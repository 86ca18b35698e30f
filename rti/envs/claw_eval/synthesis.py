"""Makes task sets from the own families, and checks each task before it is one.

The checks: its reference scores at least 0.99; what instruction, fixtures, constants and grader name agrees; every value that
the reference uses was said or shown before; doing nothing, doing everything and answering everything do not pass; it is no
near-duplicate of a task that is there. A variant that fails as a near-duplicate is drawn anew; any other failure is a fault of
its family, and raises.
"""

from __future__ import annotations

import re
from typing import Any, Iterator, Sequence

from rti.envs.base import Task
from rti.envs.claw_eval import agents, evidence
from rti.envs.claw_eval.environment import ClawEvalEnvironment
from rti.envs.claw_eval.families import FAMILIES
from rti.envs.claw_eval.families.spec import Draw, seed_of, task_of
from rti.envs.claw_eval.services import TOOLS
from rti.envs.claw_eval.similarity import Look, duplicate_of
from rti.envs.task_files import CheckFailed

REFERENCE_SCORE = 0.99
ATTEMPTS = 50
SPLITS = ("train", "test")
_VALUE = re.compile(r"[\w.+-]+@[\w.-]+\w|\d{4}-\d{2}-\d{2}|[A-Z]{1,5}-\d+|[A-Z]+=\d+|\d+\.\d+|(?<![\w.])\d{3,}(?![\w.])")


def make_task(family: str, split: str, variant: int, seed: int, attempt: int = 0) -> Task:
    """A task as its family's generator makes it, not checked yet."""
    if family not in FAMILIES:
        raise ValueError(f"there is no family {family!r}; mend: one of {', '.join(FAMILIES)}, or all")
    spec = FAMILIES[family].make(Draw(seed_of(family, split, variant, seed, attempt), variant))
    return task_of(spec, family, FAMILIES[family].CATEGORY, f"{family}-{split}-{variant:03d}")


def synthesise(families: Sequence[str], variants: int, seed: int = 0) -> tuple[dict[str, list[Task]], int]:
    """{"train": tasks, "test": tasks}, `variants` of each family in each, no two alike; and how many were drawn anew.

    Not checked beyond likeness: `problem_of` does the rest. Raises CheckFailed where a family cannot be varied that often."""
    found: dict[str, list[Task]] = {split: [] for split in SPLITS}
    redrawn = 0
    for family in families:
        looks: list[Look] = []
        for split in SPLITS:
            for variant in range(variants):
                task, attempts = _distinct(family, split, variant, seed, looks)
                found[split].append(task)
                redrawn += attempts
    return found, redrawn


def _distinct(family: str, split: str, variant: int, seed: int, looks: list[Look]) -> tuple[Task, int]:
    for attempt in range(ATTEMPTS):
        task = make_task(family, split, variant, seed, attempt)
        look = Look(task)
        if duplicate_of(look, looks) is None:
            looks.append(look)
            return task, attempt
    raise CheckFailed(f"{family}: variant {variant} of {split} was like an earlier one {ATTEMPTS} times; mend: fewer variants")


# --- checks --------------------------------------------------------------------------------------------------------------
async def problem_of(task: Task) -> str:
    """What is wrong with a task, or ""."""
    score = (await agents.play(task, agents.reference(task))).info["score"]
    if score < REFERENCE_SCORE:
        return f"its reference scores {score:.2f}"
    for agent in (agents.do_nothing, agents.answer_everything, agents.do_everything):
        if (await agents.play(task, agent(task), ClawEvalEnvironment(max_turns=1000))).success:
            return f"{agent.__name__} passes it"
    return next(disagreements(task), "") or await unfounded(task)


def disagreements(task: Task) -> Iterator[str]:
    """Where instruction, fixtures, constants and grader do not agree."""
    known, data = evidence.read(task.evidence), task.data
    shown = "\n".join(agents.values_of(data["fixtures"])).casefold()
    for constant in data["constants"]:
        if constant.casefold() not in data["instruction"].casefold():
            yield f"the instruction does not name {constant!r}"
        if constant.casefold() not in shown.replace(" ", ".") and not _stands_in(constant, shown):
            yield f"the fixtures do not hold {constant!r}"
    if abs(sum(c.weight for c in known.components) - 1) > 1e-9:
        yield "the weights of its components do not add up to 1"
    wants = [c.call for c in known.components if c.call] + [c.forbids for c in known.safety_checks]
    for name in [w.tool for w in wants] + [c.name for turn in known.reference for c in turn]:
        if name not in TOOLS or TOOLS[name].service not in data["services"]:
            yield f"{name} is no tool of its services"
    for want in wants:
        properties = TOOLS[want.tool].schema.parameters["properties"]
        if want.tool not in known.writes or not {*want.arguments, *want.contains} <= set(properties):
            yield f"what it wants or forbids of {want.tool} is nothing that the tool could do"
    if any(c.answer for c in known.components) != ("'Answer: " in data["instruction"]):
        yield "instruction and grader do not agree on whether an answer is asked for"


def _stands_in(constant: str, shown: str) -> bool:
    return all(word in shown for word in constant.casefold().split())


async def unfounded(task: Task) -> str:
    """The first value of the reference that nobody had said or shown before it was used, or ""."""
    environment = ClawEvalEnvironment()
    seen = "\n".join(m.content for m in await environment.reset(task, 0))
    for message in (agent := agents.reference(task)):
        while True:
            said: list[Any] = [message.content, *(c.arguments for c in message.tool_calls)]
            for value in _VALUE.findall("\n".join(agents.values_of(said))):
                if value not in seen and value.rstrip("0").rstrip(".") not in seen:
                    return f"its reference uses {value}, which stands nowhere before"
            result = await environment.step(message)
            if result.done:
                return ""
            seen += "\n".join(m.content for m in result.messages)
            message = agent.send(result.messages)
    return "its reference does not end"
