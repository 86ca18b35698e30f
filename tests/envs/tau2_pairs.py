"""Trajectories for the tests of τ²-Bench, and the official evaluator's verdict on them.

A trajectory is a list of calls (name, arguments, requestor) and texts of the agent. It is played in our environment's own loop;
the official evaluator then scores the record from scratch, with environments of its own, and replays every call.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import pickle
import random

from rti.envs.tau2 import official
from rti.envs.tau2.dialogue import Dialogue, Limits
from rti.envs.tau2.domain import load_domain
from rti.trajectory import Message, ToolCall

DATA_DIR = os.environ.get("RTI_TAU2_DATA", "")
"""A folder in the official layout to test with; empty: the data of the installed package."""
BOUNDLESS = Limits(turns=10 ** 6, steps=0, errors=0)


def domain(name):
    return load_domain(name, DATA_DIR)


class Mover:
    """A user that makes the calls it is given, one message each, when the agent says so, and stops at the end."""

    def __init__(self):
        self.next = None

    async def reply(self, heard):
        await asyncio.sleep(0)      # other episodes go on
        if self.next is not None:
            name, arguments = self.next
            self.next = None
            return Message(role="user", tool_calls=[ToolCall(name=name, arguments=arguments)])
        return Message(role="user", content="###STOP###" if heard[-1].content == "Bye." else "Go on.")


async def play(d, task, trajectory, stop=True):
    """The dialogue after `trajectory`: (name, arguments, requestor) calls and plain texts of the agent."""
    user = Mover()
    dialogue = Dialogue(d.world(task), user, BOUNDLESS, [t.name for t in d.user_tools])
    await dialogue.open()
    for move in trajectory:
        if isinstance(move, str):
            await dialogue.agent(Message(role="assistant", content=move))
        elif move[2] == "user":
            user.next = move[:2]
            await dialogue.agent(Message(role="assistant", content="Please do that."))
        else:
            await dialogue.agent(Message(role="assistant", tool_calls=[ToolCall(name=move[0], arguments=move[1])]))
    if stop:
        await dialogue.agent(Message(role="assistant", content="Bye."))
    return dialogue


@functools.cache
def _pristine(name):
    """The official databases, as the official constructors load them, in a pickle each."""
    d = domain(name)
    parts = [(official.member(f"domains.{name}.data_model.{cls}"), file) for cls, file in (
        {"airline": ("FlightDB", "db.json"), "retail": ("RetailDB", "db.json"), "telecom": ("TelecomDB", "db.toml")}[name],)]
    if name == "telecom":
        parts.append((official.member("domains.telecom.user_data_model.TelecomUserDB"), "user_db.toml"))
    return [pickle.dumps(cls.load(str(d.data / "domains" / name / file)), -1) for cls, file in parts]


def construct(name):
    """The official constructor over a fresh database, which it need not parse again."""
    module = importlib.import_module(f"tau2.domains.{name}.environment")
    if name == "telecom":
        tools = official.member("domains.telecom.user_tools.TelecomUserTools")
        details = type(tools.default_vpn_details)       # upstream #154: shared by all; here always as it ships
        tools.default_vpn_details = details(server_address="192.168.1.1", protocol="OpenVPN", server_performance="excellent")

    def constructor(solo_mode=False, **_):
        keys = ("db", "user_db")
        return module.get_environment(solo_mode=solo_mode, **dict(zip(keys, map(pickle.loads, _pristine(name)))))

    return constructor


def official_reward(name, task, messages, termination="user_stop"):
    """The official evaluator's RewardInfo, all but natural-language assertions, whose judge the tests of the judge replace."""
    evaluator = official.load().evaluator
    run = official.load().simulation.SimulationRun(
        id="1", task_id=task.id, start_time="", end_time="", duration=0, termination_reason=termination,
        messages=[m.model_copy(deep=True) for m in messages])
    kept, evaluator.registry = evaluator.registry, _Registry(construct(name))
    try:
        kinds = evaluator.EvaluationType
        named = official.load().tasks.RewardType.NL_ASSERTION in task.evaluation_criteria.reward_basis
        return evaluator.evaluate_simulation(run, task, kinds.ALL_WITH_NL_ASSERTIONS if named else kinds.ALL, False, name)
    finally:
        evaluator.registry = kept


class _Registry:
    def __init__(self, constructor):
        self._constructor = constructor

    def get_env_constructor(self, name):
        return self._constructor


# --- trajectories ------------------------------------------------------------------------------------------------
def reference(task):
    """The reference actions, and a text that tells what must be told."""
    criteria = task.evaluation_criteria
    calls = [(a.name, a.arguments, a.requestor) for a in criteria.actions or []]
    return calls + [f"It is {info}." for info in criteria.communicate_info or []]


def variants(task, rng: random.Random, n):
    """`n` trajectories: the reference, cut short, in another order, repeated, with wrong values, tools and owners."""
    moves = reference(task)
    yield moves
    makers = (lambda: [], lambda: moves[:-1], lambda: moves[1:], lambda: moves[::-1], lambda: _shuffled(moves, rng),
              lambda: moves[:rng.randrange(len(moves) + 1)], lambda: _corrupted(moves, rng), lambda: moves + moves[:2],
              lambda: _corrupted(_shuffled(moves, rng), rng), lambda: _misowned(moves, rng), lambda: _unknown(moves, rng))
    order = list(range(len(makers)))
    rng.shuffle(order)
    for i in range(n - 1):
        yield makers[order[i % len(order)]]()


def _shuffled(moves, rng):
    moves = list(moves)
    rng.shuffle(moves)
    return moves


def _corrupted(moves, rng):
    """One argument of one call is another value: of the wrong type, too large, unknown, or missing."""
    calls = [i for i, m in enumerate(moves) if not isinstance(m, str) and m[1]]
    if not calls:
        return moves[:-1]
    i = rng.choice(calls)
    name, arguments, who = moves[i]
    key = rng.choice(sorted(arguments))
    wrong = dict(arguments)
    change = rng.randrange(6)
    if change == 0:
        del wrong[key]
    else:
        wrong[key] = (None, "no such thing", 10 ** 9, [], {"a": 1.5}, -1)[change]
    return [*moves[:i], (name, wrong, who), *moves[i + 1:]]


def _misowned(moves, rng):
    return [(m[0], m[1], "user" if m[2] == "assistant" else "assistant") if not isinstance(m, str) and rng.random() < 0.5 else m
            for m in moves]


def _unknown(moves, rng):
    at = rng.randrange(len(moves) + 1)
    return [*moves[:at], ("no_such_tool", {"tool_name": "x"}, "assistant"), *moves[at:]]
