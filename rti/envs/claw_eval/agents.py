"""Agents without a model that show what a task is worth: the reference solution, and those that must not pass.

Each is a generator of turns: it yields a message and is sent the tools' replies. For the checks of task sets, and for tests.
"""

from __future__ import annotations

import random
from typing import Any, Generator, Sequence

from rti.envs.base import Outcome, Task
from rti.envs.claw_eval import evidence
from rti.envs.claw_eval.environment import ClawEvalEnvironment
from rti.envs.claw_eval.services import SERVICES
from rti.trajectory import Message, ToolCall

Agent = Generator[Message, Sequence[Message], None]


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def turn(calls: Sequence[tuple[str, dict[str, Any]]]) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(name=n, arguments=a, id=f"call_{i}")
                                                 for i, (n, a) in enumerate(calls)])


async def play(task: Task, agent: Agent, environment: ClawEvalEnvironment | None = None, seed: int = 0) -> Outcome:
    """The outcome of an episode in which `agent` acts until the environment ends it or it runs out of turns."""
    environment = environment or ClawEvalEnvironment()
    await environment.reset(task, seed)
    message = next(agent)
    for _ in range(environment.max_turns):
        result = await environment.step(message)
        if result.done:
            break
        message = agent.send(result.messages)
    outcome = await environment.outcome()
    await environment.close()
    return outcome


def reference(task: Task) -> Agent:
    known = evidence.read(task.evidence)
    for calls in known.reference:
        yield turn([(c.name, c.arguments) for c in calls])
    yield say(known.closing)


def do_nothing(task: Task) -> Agent:
    """Says that all is done, with the words of the reference but without its answer: it has looked at nothing."""
    yield say(evidence.read(task.evidence).closing.partition("\n")[0])


def answer_everything(task: Task) -> Agent:
    """Calls nothing and offers every value of the task's world as the answer."""
    yield say("\n".join(f"Answer: {v}" for v in values_of(task.data["fixtures"])) + "\nAnswer: " +
              "; ".join(values_of(task.data["fixtures"])))


def do_everything(task: Task) -> Agent:
    """Makes every call that changes something with every row it could mean, then the reference's calls, and answers rightly:
    all that is asked for is done, and much else."""
    known = evidence.read(task.evidence)
    calls = list(every_change(task))
    for i in range(0, len(calls), 32):
        yield turn(calls[i:i + 32])
    for wanted in known.reference:
        yield turn([(c.name, c.arguments) for c in wanted])
    yield say(known.closing)


def at_random(task: Task, seed: int, turns: int = 12) -> Agent:
    """Calls tools of the task with values out of its world, and ends with such a value as its answer."""
    stream = random.Random(seed)
    tools = [t for name in task.data["services"] for t in SERVICES[name].tools]
    values = values_of(task.data["fixtures"])
    for _ in range(turns):
        chosen = stream.choice(tools)
        yield turn([(chosen.schema.name, {p: _random_value(s, values, stream)
                                          for p, s in chosen.schema.parameters["properties"].items()})])
    yield say(f"Answer: {stream.choice(values)}")


# --- values -------------------------------------------------------------------------------------------------------------
def every_change(task: Task) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Calls of all changing tools of the task's services, for each row: its id where one is asked for, its values, else any."""
    fixtures = task.data["fixtures"]
    for service in task.data["services"]:
        for tool in (t for t in SERVICES[service].tools if t.writes):
            properties = tool.schema.parameters["properties"]
            for row in (r for rows in fixtures.get(service, {}).values() for r in rows):
                yield tool.schema.name, {p: row["id"] if p.endswith("_id") else _fitting(p, s, row)
                                         for p, s in properties.items()}


def _fitting(name: str, schema: dict[str, Any], row: dict[str, Any]) -> Any:
    if name in row and not isinstance(row[name], (dict, list)):
        return row[name]
    plain = {"integer": 5, "number": float(row.get("amount", 5)), "array": ["somebody@example.org"]}
    formed = {"due": "2026-12-01", "start": "2026-12-01 09:00", "end": "2026-12-01 10:00", "address": "somebody@example.org"}
    return schema["enum"][0] if "enum" in schema else plain.get(schema["type"], formed.get(name, "everything"))


def _random_value(schema: dict[str, Any], values: list[str], stream: random.Random) -> Any:
    if "enum" in schema:
        return stream.choice(schema["enum"])
    kinds = {"integer": lambda: stream.randrange(1, 500), "number": lambda: round(stream.uniform(1, 5000), 2),
             "array": lambda: [stream.choice(values)]}
    return kinds.get(schema["type"], lambda: stream.choice(values))()


def values_of(value: Any) -> list[str]:
    """All texts and numbers in a JSON value, as texts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for v in value for text in values_of(v)]
    return [str(value)]
