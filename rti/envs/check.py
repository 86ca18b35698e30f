"""`python -m rti.envs.check my_pkg.MyTaskSet`: whether an environment keeps to the protocol of rti.envs.base, before it trains.

Plays real episodes in it with turns that agents do write: right calls and wrong ones, no call at all, two episodes at once.
Prints a line a rule; exit code 0: all hold; 1: a rule is broken; 2: there is no such environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rti.commands import guarded
from rti.config.schema import EnvConfig
from rti.envs import UnknownEnvironment, load_task_set
from rti.envs.base import Environment, EnvironmentFault, Outcome, StepResult, Task, TaskSet
from rti.run.leaks import leaks
from rti.trajectory import Group, Message, ToolCall, ToolSchema, Trajectory

SEED = 7
_SAMPLES: dict[Any, Any] = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


@dataclass
class Rule:
    """A rule of the protocol, and where an environment breaks it."""

    name: str
    text: str
    run: Callable[[TaskSet, list[Task], Rule], Awaitable[None]]
    breaches: list[str] = field(default_factory=list)

    def breach(self, what: str) -> None:
        if what not in self.breaches:
            self.breaches.append(what)


# --- the rules ---------------------------------------------------------------------------------------------------
async def tasks_are_whole(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    for side in ("train", "test"):
        listed = list(getattr(taskset, side))
        if side == "train" and not listed:
            rule.breach("train is empty: there is nothing to train on")
        if wrong := next((t for t in listed if not isinstance(t, Task)), None):
            rule.breach(f"{side} holds a {type(wrong).__name__}; a task is an rti.envs.base.Task")
            continue
        if twice := [i for i, n in Counter(t.id for t in listed).items() if n > 1]:
            rule.breach(f"{side} has ids twice: {twice[:5]}")
        for task in listed[:200]:
            _storable(task.data, f"data of task {task.id}", rule)
            _storable(task.evidence, f"evidence of task {task.id}", rule)
    if both := {t.id for t in taskset.train} & {t.id for t in taskset.test}:
        rule.breach(f"train and test share {len(both)} tasks, e.g. {min(both)}: what is trained on must not be measured")


async def tools_are_described(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    env = taskset.make()
    await env.reset(tasks[0], SEED)
    names = [getattr(t, "name", "") for t in env.tools]
    if len(set(names)) < len(names):
        rule.breach(f"two tools have one name: {names}")
    for tool in env.tools:
        if not isinstance(tool, ToolSchema):
            rule.breach(f"tools holds a {type(tool).__name__}; a tool is an rti.trajectory.ToolSchema")
        elif tool.parameters.get("type") != "object" or not isinstance(tool.parameters.get("properties"), dict):
            rule.breach(f"{tool.name}: parameters must be a JSON schema of type object with properties")
    if not isinstance(env.max_turns, int) or env.max_turns < 1:
        rule.breach(f"max_turns is {env.max_turns!r}; it must be a number of turns, at least 1")
    await env.close()


async def resets_repeat(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    for task in tasks:
        env = taskset.make()
        first = await env.reset(task, SEED)
        await env.step(_calls(env.tools))
        again = await env.reset(task, SEED)
        other = taskset.make()
        if not first or any(not isinstance(m, Message) for m in first):
            rule.breach(f"task {task.id}: reset must give a list of rti.trajectory.Message, and gave {type(first).__name__}")
        elif first[-1].role != "user" or any(m.role not in ("system", "user") for m in first):
            rule.breach(f"task {task.id}: reset gives system and user messages, a user message last, and gave "
                        f"{[m.role for m in first]}")
        elif first != again or first != await other.reset(task, SEED):
            rule.breach(f"task {task.id}: the same task and seed began in another way the second time")
        await env.close()
        await other.close()


async def evidence_stays_hidden(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    prompts: dict[str, list[Message]] = {}
    for task in tasks:
        env = taskset.make()
        prompts[task.id] = list(await env.reset(task, SEED))
        await env.close()
    told = Counter(m.content for prompt in prompts.values() for m in prompt if m.role == "system")
    for task in tasks:
        begun = Trajectory(id=f"{task.id}/0", group_id=task.id, task_id=task.id, prompt=prompts[task.id],
                           evidence=task.evidence)
        for _, what in leaks(Group(id=task.id, task_id=task.id, members=[begun]), lambda text: told[text] > 1):
            rule.breach(f"task {task.id}: {what}")


async def calls_are_answered(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    for task in tasks:
        for name, turn in _turns(taskset.make().tools).items():
            env = taskset.make()
            await env.reset(task, SEED)
            try:
                came = await env.step(turn)
            except EnvironmentFault:
                raise
            except Exception as e:      # what an agent can write must never break an environment: that is the rule
                where = traceback.extract_tb(e.__traceback__)[-1]
                rule.breach(f"{name}: step raised {type(e).__name__}: {e} (line {where.lineno} of {where.name})")
                continue
            _answers(name, turn, came, rule)
            await env.close()


async def errors_say_so(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    env = taskset.make()
    await env.reset(tasks[0], SEED)
    for call in (_UNKNOWN, _UNREADABLE):
        came = await env.step(Message(role="assistant", tool_calls=[call]))
        text = next((m.content for m in came.messages if m.role == "tool"), "")
        if text[:5].lower() != "error":
            rule.breach(f"the reply to {'a call that cannot be read' if call.error else 'an unknown tool'} does not begin with "
                        f"Error: {text[:60]!r}")
    await env.close()


async def outcomes_are_rewards(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    for task in tasks:
        env = taskset.make()
        await env.reset(task, SEED)
        for _ in range(env.max_turns):
            if (await env.step(Message(role="assistant", content="I do not know."))).done:
                break
        outcome = await env.outcome()
        await env.close()
        if not isinstance(outcome, Outcome) or not isinstance(outcome.success, bool):
            rule.breach(f"task {task.id}: outcome must give an rti.envs.base.Outcome with success True or False")
        elif not math.isfinite(outcome.reward):
            rule.breach(f"task {task.id}: the reward is {outcome.reward}; it must be a finite number")
        elif outcome.success:
            rule.breach(f"task {task.id}: an agent that only says that it does not know succeeds")
        else:
            _storable(outcome.info, f"info of task {task.id}'s outcome", rule)


async def episodes_do_not_mix(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    one, other = tasks[0], tasks[-1]
    alone = await _play(taskset.make(), one)
    env, beside = taskset.make(), taskset.make()
    together = await env.reset(one, SEED)
    await beside.reset(other, SEED + 1)
    turn = _calls(env.tools)
    await beside.step(turn)
    came = await env.step(turn)
    await beside.close()
    outcome = await env.outcome()
    await env.close()
    if (together, came, outcome) != alone:
        rule.breach(f"an episode of task {one.id} goes otherwise while one of {other.id} runs beside it: instances share state")


async def closing_twice_is_harmless(taskset: TaskSet, tasks: list[Task], rule: Rule) -> None:
    env = taskset.make()
    await env.close()
    await env.reset(tasks[0], SEED)
    await env.close()
    await env.close()


RULES: tuple[tuple[str, str, Any], ...] = (
    ("tasks", "tasks have ids of their own, can be stored, and train and test are apart", tasks_are_whole),
    ("tools", "tools are described by JSON schemas, and the number of turns is bounded", tools_are_described),
    ("reset", "the same task and seed begin in the same way, ending with the user", resets_repeat),
    ("evidence", "the system message holds nothing of the evidence", evidence_stays_hidden),
    ("answers", "whatever the agent calls, each call gets one reply, in order, and nothing is raised", calls_are_answered),
    ("errors", "the reply to a wrong call begins with Error", errors_say_so),
    ("outcome", "rewards are finite, and doing nothing does not succeed", outcomes_are_rewards),
    ("instances", "two episodes at once do not touch each other", episodes_do_not_mix),
    ("close", "an instance may be closed before, after and twice", closing_twice_is_harmless),
)


# --- turns that agents write -------------------------------------------------------------------------------------
_UNKNOWN = ToolCall(name="no_such_tool", arguments={"a": 1}, id="call_0")
_UNREADABLE = ToolCall(name="", id="call_0", error="the call is not valid JSON")


def _turns(tools: Sequence[ToolSchema]) -> dict[str, Message]:
    """What it is -> an assistant turn: right by its schema, and wrong in the ways that models are."""
    turns = {"a turn of plain words": Message(role="assistant", content="Hello?"),
             "an empty turn": Message(role="assistant"),
             "an unknown tool": Message(role="assistant", tool_calls=[_UNKNOWN]),
             "a call that cannot be read": Message(role="assistant", tool_calls=[_UNREADABLE]),
             "every tool at once": _calls(tools)}
    for tool in tools:
        given = _arguments(tool)
        variants = {"without arguments": {}, "with an argument too many": given | {"no_such_argument": 1},
                    "with null": dict.fromkeys(given), "with a list for every argument": {k: [None] for k in given},
                    "with an object for every argument": {k: {"a": {}} for k in given}}
        turns |= {f"{tool.name} {how}": _call(tool.name, a) for how, a in variants.items()}
    return turns


def _call(name: str, arguments: dict[str, Any]) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(name=name, arguments=arguments, id="call_0")])


def _calls(tools: Sequence[ToolSchema]) -> Message:
    """One call of every tool, with arguments of the right types."""
    return Message(role="assistant", reasoning="Try.", tool_calls=[
        ToolCall(name=t.name, arguments=_arguments(t), id=f"call_{i}") for i, t in enumerate(tools)])


def _arguments(tool: ToolSchema) -> dict[str, Any]:
    found = {}
    for name, schema in tool.parameters.get("properties", {}).items():
        kind = schema.get("type", "string")
        found[name] = schema["enum"][0] if schema.get("enum") else _SAMPLES.get(kind if isinstance(kind, str) else kind[0], "x")
    return found


async def _play(env: Environment, task: Task) -> tuple[list[Message], StepResult, Outcome]:
    begun = await env.reset(task, SEED)
    came = await env.step(_calls(env.tools))
    outcome = await env.outcome()
    await env.close()
    return begun, came, outcome


def _answers(name: str, turn: Message, came: Any, rule: Rule) -> None:
    if not isinstance(came, StepResult) or not isinstance(came.done, bool):
        rule.breach(f"{name}: step must give an rti.envs.base.StepResult, and gave {type(came).__name__}")
        return
    replies = [m for m in came.messages if m.role == "tool"]
    if any(m.role not in ("tool", "user") for m in came.messages):
        rule.breach(f"{name}: step gives tool and user messages, and gave {[m.role for m in came.messages]}")
    elif [m.tool_call_id for m in replies] != [c.id for c in turn.tool_calls] and not came.done:
        rule.breach(f"{name}: {len(turn.tool_calls)} calls got {len(replies)} replies, or not in their order (tool_call_id)")
    elif not came.messages and not came.done:
        rule.breach(f"{name}: nothing came back and the episode goes on: the agent has nothing to go on from")


def _storable(value: Any, what: str, rule: Rule) -> None:
    """Records are msgpack and are read again as plain values."""
    try:
        same = msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    except (TypeError, ValueError, OverflowError) as e:
        rule.breach(f"{what} cannot be stored: {e}; use texts, numbers, lists and dicts")
        return
    if not same:
        rule.breach(f"{what} is not the same after being stored (tuples become lists, keys texts): use lists and text keys")


# --- the command -------------------------------------------------------------------------------------------------
async def check(taskset: TaskSet, n_tasks: int = 3) -> list[Rule]:
    """Every rule, with what breaks it; episodes are of the first `n_tasks` training tasks. Closes the task set."""
    tasks = list(taskset.train)[:n_tasks]
    found = []
    for name, text, run in RULES:
        rule = Rule(name, text, run)
        if tasks or run is tasks_are_whole:
            try:
                await run(taskset, tasks, rule)
            except Exception as e:      # an environment may break in any way: that is what is being found out
                where = traceback.extract_tb(e.__traceback__)[-1]
                rule.breach(f"raised {type(e).__name__}: {e} ({where.name}, line {where.lineno})")
        found.append(rule)
    await taskset.close()
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rti.envs.check",
                                     description="Check an environment of your own against what training relies on.")
    parser.add_argument("path", metavar="my_pkg.MyTaskSet", help="what env.class would name")
    parser.add_argument("--options", default="{}", metavar="JSON", help="env.options as JSON, e.g. '{\"level\": 2}'")
    parser.add_argument("--tasks", type=int, default=3, metavar="N", help="training tasks to play episodes of (default 3)")
    args = parser.parse_args(words)
    try:
        taskset = load_task_set(EnvConfig(name="own", class_=args.path, options=json.loads(args.options)), seed=SEED)
    except (UnknownEnvironment, json.JSONDecodeError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    rules = asyncio.run(check(taskset, args.tasks))
    for rule in rules:
        print(f"{'BREACH' if rule.breaches else 'ok':<8}{rule.name:<11}{rule.text}")
        for breach in rule.breaches:
            print(f"          {breach}")
    broken = sum(bool(rule.breaches) for rule in rules)
    print(f"\n{broken} of {len(rules)} rules are broken" if broken else f"\nall {len(rules)} rules hold: it can be trained on")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
