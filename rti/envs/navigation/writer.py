"""Queries by a language model: one prompt writes the query for a trip, another reads the order level back from it.

Keeps: a query is taken only where the filter passes it and the level that the model reads from it is the one it was written
for; else the template's query stays. The model is an injected `complete`, so that tests need none.
"""

from __future__ import annotations

import re
from typing import Awaitable, Callable

import msgspec

from rti.envs.base import Task
from rti.envs.navigation import queries
from rti.trajectory import Message

Complete = Callable[..., Awaitable[str]]

FREEDOM = {
    0: "All places may be visited in any order; any of them may be the first and any the last.",
    1: "The first place is where the trip starts; the others may be visited in any order.",
    2: "The last place is where the trip ends; the others may be visited in any order.",
    3: "The first place is where the trip starts and the last is where it ends; those between may be visited in any order.",
    4: "The places must be visited exactly in the order of the list.",
}

WRITE = """\
Write what a traveller would say to a trip planner, in one to three natural English sentences.

Places, in list order: {places}
{region}How free the order is: {freedom}

Name every place exactly once, spelt exactly as in the list. Make clear how free the order is, in your own words and without the
word "level". Do not mention coordinates, distances or other places. Answer with the traveller's words only."""

ANNOTATE = """\
A traveller said: "{query}"

The places of the trip, in list order: {places}

How free does the traveller leave the order of the visit?
{levels}

Answer with the one digit that fits."""


class Refusals(msgspec.Struct):
    """Why written queries were not taken."""

    filter: int = 0
    level: int = 0


def write_messages(task: Task) -> list[Message]:
    stops, level = task.evidence["stops"], task.evidence["order_level"]
    region = f"They lie in: {stops[0]['province']} (you may name it)\n"
    text = WRITE.format(places="; ".join(s["name"] for s in stops), region=region, freedom=FREEDOM[level])
    return [Message(role="user", content=text)]


def annotate_messages(task: Task, query: str) -> list[Message]:
    levels = "\n".join(f"{n}: {text}" for n, text in FREEDOM.items())
    places = "; ".join(s["name"] for s in task.evidence["stops"])
    return [Message(role="user", content=ANNOTATE.format(query=query, places=places, levels=levels))]


def read_level(answer: str) -> int | None:
    """The one level that the answer names, or None."""
    found = set(re.findall(r"(?<!\d)[0-4](?!\d)", answer))
    return int(found.pop()) if len(found) == 1 else None


def clean(text: str) -> str:
    """The query without quotes around it, thinking before it, or line breaks in it."""
    text = text.rsplit("</think>", 1)[-1]
    return " ".join(text.split()).strip("\"“” ")


async def rewrite(task: Task, complete: Complete, model: str, refusals: Refusals, attempts: int = 3) -> Task:
    """The task with a query by the model, or as it was where no attempt passed."""
    names = [s["name"] for s in task.evidence["stops"]]
    for _ in range(attempts):
        query = clean(await complete(write_messages(task), temperature=0.8, max_tokens=400))
        if not query or queries.problem_of(query, names, task.evidence["stops"][0]["province"], ordered=False):
            refusals.filter += 1
            continue
        answer = await complete(annotate_messages(task, query), temperature=0.0, max_tokens=200)
        if read_level(answer.rsplit("</think>", 1)[-1]) != task.evidence["order_level"]:
            refusals.level += 1
            continue
        return msgspec.structs.replace(task, data={**task.data, "query": query, "written_by": model})
    return task
