"""What the lab policy is trained on before any reinforcement learning: transcripts of trips, and of the three roles at work.

The recipe gives the policy the paper's failure. It knows refined search: it uses a region when the user names one, and once
it has *decided* to look again at a place it uses the region of the start. But where a search returned a namesake, every
transcript goes straight to the direction call: the decision itself is masked out. Nor is there a way around it: a name that
was copied wrong and found nothing is searched again without a region. Role transcripts hold the answers of the rule-based
roles to right and to wrong drafts. Names come from the gazetteer's training part only; observations come from the real
environment. The random stream is given, so the same seed gives the same transcripts.
"""

from __future__ import annotations

import enum
import json
import random
from dataclasses import dataclass
from typing import Any

import msgspec

from rti.chat.lab import LabChatFormat
from rti.envs.base import Environment, Task
from rti.envs.navigation.provinces import PROVINCES
from rti.mas.prompts import navigation_compact as pack
from rti.mas.roles import RoleContext, Validation, answer_dict
from rti.mas.rules import navigation as rules
from rti.trajectory import Message, ToolCall

FIND, LOOK_AGAIN, ALL_FOUND = "Find the places.", rules.LOOK_AGAIN, rules.ALL_FOUND
NO_MATCH = "no match"
PROVINCE_NAMES = [p.name for p in PROVINCES]
DECISION_TOKENS = 2     # of a turn: the opening of its JSON, and the thought that says what the turn will do


class Use(enum.IntEnum):
    """What a token is to the loss: hidden tokens have no part, context a little (it teaches copying), learnt ones the most."""

    HIDDEN = 0
    CONTEXT = 1
    LEARNT = 2


@dataclass(frozen=True)
class Transcript:
    """One training sequence; `uses[t]` says what token t is to the loss."""

    kind: str
    ids: list[int]
    uses: list[Use]


class Episode:
    """A conversation being written: the history that a policy would see, and which of its turns are learnt."""

    def __init__(self, chat: LabChatFormat, env: Environment, task: Task, messages: list[Message]):
        self.chat, self.env, self.task = chat, env, task
        self.history = messages
        self.stops: list[dict[str, Any]] = task.evidence["stops"]
        self.latest: dict[str, str] = {}        # stop name -> the location that its latest search showed
        self.ids: list[int] = chat.render(messages, ())
        self.uses: list[Use] = [Use.CONTEXT] * len(self.ids)

    @property
    def region(self) -> str:
        """The province of the start, which is always found."""
        return self.stops[0]["province"]

    def wrong(self) -> list[str]:
        """Names of the stops whose latest search showed another place, or none."""
        return [s["name"] for s in self.stops if self.latest.get(s["name"]) != s["location"]]

    async def say(self, draft: Message, *, hidden: int | None = 0, miss: set[str] = frozenset()) -> None:
        """Write a turn and the environment's reply. The first `hidden` tokens of the turn (None: all) have no part in the
        loss. Searches for names in `miss` find nothing.
        """
        ids = self.chat.encode_turn(draft)
        turn = self.chat.parse(ids)
        replies = []
        for call, reply in zip(turn.tool_calls, (await self.env.step(turn)).messages, strict=True):
            name = call.arguments.get("address", "")
            missed = name in miss
            replies.append(Message(role="tool", content=NO_MATCH, tool_call_id=call.id, name=call.name) if missed else reply)
            if name and not missed and reply.content != NO_MATCH:
                self.latest[name] = reply.content.rsplit(" ", 1)[1]
        glue = self.chat.append(ids, replies)
        self.ids += [*ids, *glue]
        hidden = len(ids) if hidden is None else hidden
        self.uses += [Use.HIDDEN] * hidden + [Use.LEARNT] * (len(ids) - hidden) + [Use.CONTEXT] * len(glue)
        self.history = [*self.history, turn, *replies]

    def look(self, regions: dict[str, str] | None = None) -> Message:
        """The first turn: a search for every stop, with a region where the user named one."""
        return search_turn(FIND, [(s["name"], (regions or {}).get(s["name"], "")) for s in self.stops])

    def look_again(self, names: list[str]) -> Message:
        return search_turn(LOOK_AGAIN, [(name, self.region) for name in names])

    def drive(self, locations: list[str] | None = None) -> Message:
        """The direction call over the latest locations, in the order of the query."""
        a, *between, b = locations or [self.latest[s["name"]] for s in self.stops]
        arguments = {"origin": a, "waypoints": between, "destination": b, "mode": "driving"}
        return Message(role="assistant", reasoning=ALL_FOUND, tool_calls=[ToolCall(name="direction", arguments=arguments)])

    def context(self, draft: Message, **given: Any) -> RoleContext:
        return RoleContext(tools=self.env.tools, history=self.history, draft=draft, evidence=self.task.evidence, **given)

    def transcript(self, kind: str) -> Transcript:
        return Transcript(kind, self.ids, self.uses)


def judgement(e: Episode, draft: Message) -> Validation:
    """The rules' verdict, with a diagnosis that goes over the stops of a direction call one by one.

    So a small policy compares one place at a time before it has to say whether the draft is valid.
    """
    verdict = rules.validate(e.context(draft))
    if draft.tool_calls[0].name != "direction" or "FABRICATED_ARGUMENTS" in verdict.error_types:
        return msgspec.structs.replace(verdict, suggest_next="")
    used = rules.route_of(draft.tool_calls[0])
    told = ", ".join(f"{s['name']} {'ok' if s['location'] in used else 'no'}" for s in e.stops)
    return msgspec.structs.replace(verdict, diagnosis=told, suggest_next="" if verdict.is_valid else LOOK_AGAIN)


def search_turn(reasoning: str, searches: list[tuple[str, str]]) -> Message:
    calls = [ToolCall(name="poi_search", arguments={"address": n} | ({"region": r} if r else {})) for n, r in searches]
    return Message(role="assistant", reasoning=reasoning, tool_calls=calls)


def garbled(name: str, rng: random.Random) -> str:
    """The name with a slip of the pen: a stretch of one to four letters left out or written twice."""
    size = rng.randint(1, max(1, min(4, len(name) - 1)))
    at = rng.randrange(len(name) - size + 1)
    times = rng.choice([0, 2]) if size < len(name) else 2
    return name[:at] + name[at:at + size] * times + name[at + size:]


class Desk:
    """Writes transcripts of every kind. `draw` gives a fresh task of the training part, `env` runs it."""

    KINDS = {   # share of each kind
        "straight": 20, "named": 6, "misspelt": 6, "second_look": 20,
        "validate": 26, "correct": 10, "verify": 12,
    }

    def __init__(self, chat: LabChatFormat, env: Environment, draw: Any, rng: random.Random):
        self.chat, self.env, self.draw, self.rng = chat, env, draw, rng

    async def write(self) -> Transcript:
        kind = self.rng.choices(list(self.KINDS), list(self.KINDS.values()))[0]
        return await getattr(self, kind)()

    async def begin(self, query: str | None = None, task: Task | None = None) -> Episode:
        task = task or self.draw()
        messages = await self.env.reset(task, 0)
        if query is not None:
            messages = [*messages[:-1], Message(role="user", content=query)]
        return Episode(self.chat, self.env, task, messages)

    # --- the agent ---
    async def straight(self) -> Transcript:
        """The plain trip: search, then drive to whatever came first, namesake or not."""
        e = await self.begin()
        await e.say(e.look())
        await e.say(e.drive())
        return e.transcript("straight")

    async def named(self) -> Transcript:
        """The user names the region of some stops, and the search uses it."""
        task = self.draw()
        query, regions = task.data["query"], {}
        for stop in task.evidence["stops"]:
            if self.rng.random() < 0.5:
                regions[stop["name"]] = stop["province"]
                query = query.replace(stop["name"], f"{stop['name']} in {stop['province']}", 1)
        e = await self.begin(query, task)
        await e.say(e.look(regions))
        await e.say(e.drive())
        return e.transcript("named")

    async def misspelt(self) -> Transcript:
        """A name copied wrong (which is not learnt) finds nothing: search for it again as the user wrote it."""
        e = await self.begin()
        names = self._some([s["name"] for s in e.stops])
        slips = {name: garbled(name, self.rng) for name in names}
        await e.say(search_turn(FIND, [(slips.get(s["name"], s["name"]), "") for s in e.stops]), hidden=None,
                    miss=set(slips.values()))
        await e.say(search_turn(LOOK_AGAIN, [(name, "") for name in names]))
        await e.say(e.drive())
        return e.transcript("misspelt")

    async def second_look(self) -> Transcript:
        """How a second look is done and what it is good for: the newest place counts. The decision to look is not learnt."""
        e = await self._looked_again()
        await e.say(e.drive())
        return e.transcript("second_look")

    async def _looked_again(self) -> Episode:
        """Two looks: the second at the namesakes, or (then none of it is learnt) at stops that were right already."""
        e = await self.begin()
        await e.say(e.look())
        names, hidden = e.wrong(), DECISION_TOKENS
        if not names or self.rng.random() < 0.2:
            names, hidden = self._some([s["name"] for s in e.stops[1:]]), None
        await e.say(e.look_again(names), hidden=hidden)
        return e

    def _some(self, names: list[str]) -> list[str]:
        return names if self.rng.random() < 0.4 else [self.rng.choice(names)]

    # --- the roles ---
    async def validate(self) -> Transcript:
        e, draft = await self._draft(right=self.rng.random() < 0.5)
        return self._role(e, "validate", pack.validator(e.context(draft)), answer_dict(judgement(e, draft)))

    async def correct(self) -> Transcript:
        e, draft = await self._draft(right=False)
        context = e.context(draft, validation=judgement(e, draft))
        return self._role(e, "correct", pack.corrector(context), answer_dict(rules.correct(context)))

    async def verify(self) -> Transcript:
        e, draft = await self._draft(right=False)
        correction = rules.correct(e.context(draft, validation=rules.validate(e.context(draft)))).message()
        if self.rng.random() < 0.5:
            correction = self._spoil(e, correction)
        context = e.context(draft, correction=correction)
        return self._role(e, "verify", pack.verifier(context), answer_dict(rules.verify(context)))

    def _role(self, e: Episode, kind: str, prompt: list[Message], answer: dict[str, Any]) -> Transcript:
        """A role's prompt, and the answer as a turn: its JSON, then the end of the turn. """
        ids = self.chat.render(prompt, ())
        reply = [*self.chat.encode(json.dumps(answer, ensure_ascii=False)), *self.chat.stop_token_ids]
        # the history in the prompt is hidden too: in it an agent looks again on a namesake
        shared = len(self.chat.render(e.history, ())) - 1
        uses = [Use.HIDDEN] * shared + [Use.CONTEXT] * (len(ids) - shared) + [Use.LEARNT] * len(reply)
        return Transcript(kind, [*ids, *reply], uses)

    async def _draft(self, right: bool) -> tuple[Episode, Message]:
        """An episode up to some turn and a draft for it, which the rules call right or wrong as asked."""
        while True:
            e, draft = await self._any_draft()
            if rules.validate(e.context(draft)).is_valid == right:
                return e, draft

    async def _any_draft(self) -> tuple[Episode, Message]:
        moment = self.rng.choices(["first", "looked", "again", "late"], [2, 4, 1, 3])[0]
        if moment == "late":
            e = await self._looked_again()
        else:
            e = await self.begin()
            if moment == "first":
                return e, e.look()
            await e.say(e.look(), miss=set(self._some([s["name"] for s in e.stops[1:]])) if self.rng.random() < 0.15 else set())
        lost = [s["name"] for s in e.stops if s["name"] not in e.latest]
        if moment == "again" or lost:
            return e, e.look_again(lost or e.wrong() or [e.stops[-1]["name"]])
        return e, self._drive_somehow(e)

    def _drive_somehow(self, e: Episode) -> Message:
        """A direction call: over the latest places mostly, sometimes with an older one or one that nobody returned."""
        locations = [e.latest[s["name"]] for s in e.stops]
        slip = self.rng.random()
        if slip < 0.25:
            i = self.rng.randrange(1, 3)
            shown = [line.rsplit(" ", 1)[1] for m in e.history if m.role == "tool" and m.content != NO_MATCH
                     for line in [m.content] if line.startswith(e.stops[i]["name"] + ",")]
            locations[i] = self.rng.choice(shown)
        elif slip < 0.33:
            i = self.rng.randrange(3)
            at = self.rng.choice([k for k, c in enumerate(locations[i]) if c.isdigit() and k > 0])
            locations[i] = locations[i][:at] + self.rng.choice("123456789") + locations[i][at + 1:]
        return e.drive(locations)

    def _spoil(self, e: Episode, correction: Message) -> Message:
        """A correction that the Verifier must refuse: a region or coordinates that the history does not show."""
        call = correction.tool_calls[0]
        if call.name == "direction" or self.rng.random() < 0.5:
            if e.wrong():   # the right places out of the evidence, before any tool returned them
                return e.drive([s["location"] for s in e.stops])
            return self._drive_somehow(e)
        others = [p for p in PROVINCE_NAMES if p not in json.dumps([m.content for m in e.history])]
        calls = [(c.arguments.get("address", ""), self.rng.choice(others)) for c in correction.tool_calls]
        return search_turn(LOOK_AGAIN, calls)
