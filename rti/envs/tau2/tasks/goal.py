"""What a made task is composed of, and its official form.

Keeps: a task's criteria are its goals' calls and nothing else; what the user is told suffices to tell which calls those are.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Iterable, Mapping, Sequence

Row = dict[str, Any]
"""A task in the official form (the fields of tau2's Task)."""


@dataclass(frozen=True)
class Call:
    """A tool call of the agent."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """One thing a user wants. Without `writes` the right answer is to refuse, and the database must stay as it is."""

    kind: str
    request: str
    """What the user is after, in the second person, whole sentences."""
    subject: str
    """The record it is about: two goals of a task never share one."""
    writes: tuple[Call, ...] = ()
    reads: tuple[Call, ...] = ()
    """What an agent looks up for it."""
    details: tuple[str, ...] = ()
    """How the user answers questions about it."""
    tell: tuple[str, ...] = ()
    """What the agent must say, as the official evaluator looks for it."""


@dataclass(frozen=True)
class Customer:
    """Who calls: what the user knows, does not know, and how an agent finds the record."""

    known: str
    unknown: str
    lookup: tuple[Call, ...]


MANNERS = (
    "You are friendly and to the point.",
    "You are in a hurry and answer in short sentences.",
    "You are polite, and you thank the agent when something is done.",
    "You are a little impatient, yet you answer what you are asked.",
    "You are chatty, but you never invent facts about yourself or your purchases.",
    "You are careful: you read what the agent proposes before you agree to it.",
)
TOGETHER = "You mention all of your requests in your first message."
IN_TURN = "You bring up your requests one after the other, the next one once the one before is settled."
CONFIRM = "When the agent lists what it is about to do and it is what you want, say yes. If it is not, say what is wrong."
NO_MORE = "You want nothing beyond that. Do not agree to anything else. When everything is settled, end the conversation."


def compose(domain: str, task_id: str, customer: Customer, goals: Sequence[Goal], rng: Random) -> Row:
    """The official form of a task. The order of `goals` is the order in which the user brings them up."""
    manner = [rng.choice(MANNERS)]
    if len(goals) > 1:
        manner.append(rng.choice((TOGETHER, IN_TURN)))
    details = dict.fromkeys(d for g in goals for d in g.details)
    calls = _unrepeated([*customer.lookup, *(c for g in goals for c in (*g.reads, *g.writes))])
    actions = [{"action_id": f"{task_id}_{n}", "requestor": "assistant", "name": c.name, "arguments": dict(c.arguments),
                "info": None, "compare_args": None} for n, c in enumerate(calls)]
    return {
        "id": task_id,
        "description": {"purpose": f"Training task: {', '.join(g.kind for g in goals)}.", "relevant_policies": None,
                        "notes": None},
        "user_scenario": {"persona": None, "instructions": {
            "domain": domain, "reason_for_call": " ".join(_joined(goals)), "known_info": customer.known,
            "unknown_info": customer.unknown or None,
            "task_instructions": " ".join([*manner, *details, CONFIRM, NO_MORE])}},
        "ticket": None, "initial_state": None,
        "evaluation_criteria": {"actions": actions, "env_assertions": None, "nl_assertions": None,
                                "communicate_info": [t for g in goals for t in g.tell],
                                "reward_basis": ["DB", "COMMUNICATE"]},
    }


def _joined(goals: Sequence[Goal]) -> Iterable[str]:
    links = ("", "Second: ", "Third: ", "Fourth: ") if len(goals) > 2 else ("", "Besides: ")
    return (link + g.request for link, g in zip(links, goals, strict=False))


def _unrepeated(calls: Iterable[Call]) -> list[Call]:
    """A record is looked up once, however many goals need it. Writes are never equal: their subjects differ."""
    seen: list[Call] = []
    for call in calls:
        if call not in seen:
            seen.append(call)
    return seen


def kinds_of(row: Row) -> list[str]:
    """The goal kinds of a task made here."""
    return row["description"]["purpose"].removeprefix("Training task: ").rstrip(".").split(", ")


def money(amount: float) -> str:
    """An amount as the official evaluator finds it in '$54.10' and in '54.1' alike."""
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def listing(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
