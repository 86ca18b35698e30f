"""Episodes: the reward, when they end, their isolation, HTTP against in-process, recording and replay through a task set."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from rti.config.schema import EnvConfig, NavigationConfig
from rti.envs import UnknownEnvironment, load_task_set
from rti.envs.base import FatalEnvironmentError, Task
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.reward import order_accepted
from rti.envs.navigation.taskset import NavigationTaskSet, in_process_environment
from rti.envs.task_files import TaskFileError
from rti.envs.navigation.tasks import full_trip, lab_trip, reference_turns
from rti.trajectory import Message, ToolCall


def assistant(*calls):
    return Message(role="assistant", tool_calls=[ToolCall(name=n, arguments=a, id=f"c{i}") for i, (n, a) in enumerate(calls)])


def trip(seed=0, ambiguous=None, level=None):
    rng = random.Random(seed)
    while True:
        task = lab_trip(Gazetteer.load(), rng)
        if (ambiguous is None or (task.cls == "ambiguous") == ambiguous) and level in (None, task.evidence["order_level"]):
            return task


def direction(places, mode="driving"):
    return "direction", {"origin": places[0], "waypoints": list(places[1:-1]), "destination": places[-1], "mode": mode}


def locations(task):
    return [s["location"] for s in task.evidence["stops"]]


def greedy_searches(task):
    return assistant(*(("poi_search", {"address": s["name"]}) for s in task.evidence["stops"]))


async def play(env, task, turns):
    messages = list(await env.reset(task, 0))
    done = False
    for turn in turns:
        assert not done
        result = await env.step(turn)
        messages += result.messages
        done = result.done
    return messages, done, await env.outcome()


async def test_the_reference_solution_succeeds_and_ends_the_episode():
    task = trip(ambiguous=True)
    messages, done, outcome = await play(in_process_environment(), task, reference_turns(task))
    assert done and outcome.success and outcome.reward == 1.0
    assert outcome.info == {"turns": 2, "tool_calls": 4, "tool_errors": 0, "no_match": 0, "direction_calls": 1}
    assert [m.role for m in messages] == ["user"] + ["tool"] * 4
    assert [m.tool_call_id for m in messages[1:]] == ["call_0_0", "call_0_1", "call_0_2", "call_1_0"]


async def test_on_an_ambiguous_trip_the_first_plain_results_fail():
    task = trip(ambiguous=True)
    env = in_process_environment()
    messages = await env.reset(task, 0)
    found = [m.content.rsplit(" ", 1)[1] for m in (await env.step(greedy_searches(task))).messages]
    assert found[0] == locations(task)[0] and found != locations(task)
    result = await env.step(assistant(direction(found)))
    assert result.done and result.messages[0].content.startswith("ok ")
    assert not (await env.outcome()).success and len(messages) == 1


async def test_on_a_plain_trip_the_first_plain_results_succeed():
    task = trip(ambiguous=False)
    turns = [greedy_searches(task), assistant(direction(locations(task)))]
    _, done, outcome = await play(in_process_environment(), task, turns)
    assert done and outcome.success


@pytest.mark.parametrize("level", [0, 1, 3, 4])
async def test_the_order_level_decides(level):
    task = trip(level=level)
    a, b, c = locations(task)
    search = reference_turns(task)[0]
    for order in ([a, b, c], [a, c, b], [b, a, c], [c, b, a]):
        _, _, outcome = await play(in_process_environment(), task, [search, assistant(direction(order))])
        assert outcome.success == order_accepted(level, [a, b, c], order)


async def test_a_direction_call_before_its_coordinates_were_returned_is_no_success():
    task = trip()
    right = assistant(direction(locations(task)))
    _, done, outcome = await play(in_process_environment(), task, [right])
    assert done and not outcome.success
    together = Message(role="assistant", tool_calls=[*reference_turns(task)[0].tool_calls, *right.tool_calls])
    _, done, outcome = await play(in_process_environment(), task, [together])
    assert done and not outcome.success


async def test_an_error_that_repeats_a_coordinate_does_not_count_as_having_returned_it():
    task = trip()
    swapped = [("around_search", {"location": ",".join(reversed(p.split(","))), "radius": 100}) for p in locations(task)]
    turns = [assistant(*swapped), assistant(direction(locations(task)))]
    messages, _, outcome = await play(in_process_environment(), task, turns)
    assert locations(task)[0] in messages[1].content and not outcome.success


async def test_only_the_first_answered_route_of_a_turn_counts():
    """Else the routes could be guessed by the dozen."""
    task = trip(level=4)
    right, wrong = locations(task), locations(task)[::-1]
    refused = ("direction", {"origin": "nowhere", "destination": right[-1], "mode": "driving"})
    for calls, succeeds in (((wrong, right), False), ((right, wrong), True)):
        env = in_process_environment()
        await env.reset(task, 0)
        for turn in reference_turns(task)[:-1]:
            await env.step(turn)
        assert (await env.step(assistant(refused, *(direction(c) for c in calls)))).done
        assert (await env.outcome()).success == succeeds


async def test_a_refused_direction_call_can_be_mended():
    task = trip()
    search, answer = reference_turns(task)
    wrong = assistant(direction(locations(task), mode="walking"))
    messages, done, outcome = await play(in_process_environment(), task, [search, wrong, answer])
    assert done and outcome.success and messages[4].content == "error: only driving takes waypoints"


async def test_a_reply_without_calls_ends_the_episode_as_a_failure():
    task = trip()
    turns = [reference_turns(task)[0], Message(role="assistant", content="Done.")]
    _, done, outcome = await play(in_process_environment(), task, turns)
    assert done and outcome.reward == 0.0


async def test_malformed_unknown_and_too_many_calls_are_answered_one_by_one():
    env = in_process_environment()
    await env.reset(trip(), 0)
    calls = [ToolCall(name="", error="bad JSON", id="a"), ToolCall(name="fly", id="b")]
    calls += [ToolCall(name="poi_search", arguments={"address": "Wuhan"}, id=f"c{i}") for i in range(40)]
    result = await env.step(Message(role="assistant", tool_calls=calls))
    assert [m.tool_call_id for m in result.messages] == [c.id for c in calls] and not result.done
    assert result.messages[0].content == "error: bad JSON"
    assert result.messages[-1].content == "error: at most 32 calls a turn are run"


async def test_evidence_is_in_no_message_of_an_episode():
    task = trip(seed=5, ambiguous=True)
    messages, _, _ = await play(in_process_environment(), task, [greedy_searches(task)])
    wrong = [i for i, s in enumerate(task.evidence["stops"]) if s["location"] not in messages[i + 1].content]
    shown = " ".join(m.content for m in messages)
    assert wrong and not any(locations(task)[i] in shown for i in wrong)
    assert "order_level" not in shown and "reference" not in shown


async def test_the_full_prompt_has_instructions_and_the_lab_prompt_none():
    env = in_process_environment()
    full = await env.reset(full_trip(Gazetteer.load(), random.Random(0)), 0)
    assert [m.role for m in full] == ["system", "user"] and "6 turns" in full[0].content
    assert [m.role for m in await env.reset(trip(), 0)] == ["user"]


async def test_http_and_in_process_observations_are_byte_identical():
    rng = random.Random(3)
    tasks = NavigationTaskSet(NavigationConfig(results=4))
    try:
        for i in range(20):
            task = full_trip(Gazetteer.load(), rng) if i % 4 == 0 else lab_trip(Gazetteer.load(), rng)
            place = locations(task)[0]
            around = [("around_search", {"location": place, "radius": r}) for r in (9, 30_000)]
            others = [("poi_search", {"address": "zzz"}), ("direction", {"origin": "x"}), direction([place, place], "transit")]
            turns = [greedy_searches(task), assistant(*around, *others)]
            over_http = await play(tasks.make(), task, turns)
            assert msgspec.json.encode(over_http) == msgspec.json.encode(
                await play(in_process_environment(NavigationConfig(results=4)), task, turns))
    finally:
        await tasks.close()


async def test_fifty_interleaved_episodes_do_not_touch_each_other():
    rng = random.Random(4)
    tasks = NavigationTaskSet(NavigationConfig())
    try:
        drawn = [lab_trip(Gazetteer.load(), rng) for _ in range(50)]
        envs = [tasks.make() for _ in drawn]
        # Every second episode skips its searches: it would succeed only on another's returned coordinates.
        plans = [reference_turns(t)[i % 2:] for i, t in enumerate(drawn)]
        drawn = [drawn[i - i % 2] for i in range(50)]
        plans = [reference_turns(t)[i % 2:] for i, t in enumerate(drawn)]
        await asyncio.gather(*(e.reset(t, 0) for e, t in zip(envs, drawn)))
        moves = [i for i, plan in enumerate(plans) for _ in plan]
        rng.shuffle(moves)
        for start in range(0, len(moves), 10):      # ten at a time, in random order over episodes
            batch = list(dict.fromkeys(moves[start:start + 10]))
            late = [i for i in moves[start:start + 10]]
            for i in batch:
                late.remove(i)
            await asyncio.gather(*(envs[i].step(plans[i].pop(0)) for i in batch))
            for i in late:
                await envs[i].step(plans[i].pop(0))
        outcomes = [await e.outcome() for e in envs]
        assert [o.success for o in outcomes] == [i % 2 == 0 for i in range(50)]
        assert all(o.info["tool_calls"] == (4, 1)[i % 2] for i, o in enumerate(outcomes))
    finally:
        await tasks.close()


async def test_an_instance_forgets_the_episode_before():
    task, env = trip(), in_process_environment()
    assert (await play(env, task, reference_turns(task)))[2].success
    assert not (await play(env, task, reference_turns(task)[1:]))[2].success


async def test_training_on_a_recording_needs_no_service(tmp_path):
    task = trip(ambiguous=True)
    recorded = NavigationTaskSet(NavigationConfig(record=str(tmp_path / "r.jsonl")))
    live = await play(recorded.make(), task, reference_turns(task))
    await recorded.close()
    replayed = NavigationTaskSet(NavigationConfig(service="replay", record=str(tmp_path / "r.jsonl")))
    assert await play(replayed.make(), task, reference_turns(task)) == live
    with pytest.raises(FatalEnvironmentError, match="has no reply to /v5/place/text"):
        await play(replayed.make(), task, [greedy_searches(task)])
    await replayed.close()


async def test_the_real_service_is_spoken_to_with_the_key_of_the_environment_variable(monkeypatch):
    """The offline server stands in for it: the client cannot tell which it talks to."""
    from rti.envs.navigation.offline import OfflineService
    from rti.envs.navigation.server import OfflineServer
    keys = []

    class Noting(OfflineService):
        def answer(self, path, params):
            keys.append(params["key"])
            return super().answer(path, params)

    server = OfflineServer(Noting(Gazetteer.load()))
    await server.start()
    monkeypatch.setenv("MY_MAP_KEY", "the key")
    tasks = NavigationTaskSet(NavigationConfig(
        service="amap", base_url=server.base_url, key_env="MY_MAP_KEY", requests_per_second=500))
    task = trip()
    assert (await play(tasks.make(), task, reference_turns(task)))[2].success and set(keys) == {"the key"}
    await tasks.close()
    await server.stop()


@pytest.mark.parametrize("config, says", [
    (NavigationConfig(service="amap", key_env="NO_SUCH_KEY_HERE"), "environment variable NO_SUCH_KEY_HERE"),
    (NavigationConfig(service="google"), "service is 'google'"), (NavigationConfig(service="replay"), "needs a recording"),
    (NavigationConfig(service="replay", record="/no/such/file"), "cannot read the recording"),
    (NavigationConfig(base_url="nonsense"), "base_url is not an address"),
])
async def test_a_configuration_that_cannot_work_stops_with_a_clear_message(config, says):
    with pytest.raises(FatalEnvironmentError, match=says):
        await NavigationTaskSet(config).make().reset(trip(), 0)


def test_a_task_set_outlives_an_event_loop():
    tasks, task = NavigationTaskSet(NavigationConfig()), trip()

    async def once():
        outcome = (await play(tasks.make(), task, reference_turns(task)))[2]
        await tasks.close()
        return outcome.success

    assert asyncio.run(once()) and asyncio.run(once())


class OwnTaskSet:
    """A user's environment, as docs/navigation.md describes."""

    def __init__(self, size, seed=0):
        self.train = [Task(id=str(i), data={"seed": seed}) for i in range(size)]
        self.test = []

    def make(self):
        return in_process_environment()

    async def close(self):
        return None


def test_load_task_set_gives_the_configured_environment_or_the_users_own():
    lab = load_task_set(EnvConfig(), seed=1)
    assert (len(lab.train), len(lab.test)) == (600, 150) and lab.train == load_task_set(EnvConfig(), seed=2).train
    own = load_task_set(EnvConfig(class_=f"{__name__}.OwnTaskSet", options={"size": 2}), seed=7)
    assert [t.data["seed"] for t in own.train] == [7, 7]


@pytest.mark.parametrize("config, error, says", [
    (EnvConfig(name="chess"), UnknownEnvironment, "env.name is 'chess'"),
    (EnvConfig(class_="no_such_package.Thing"), UnknownEnvironment, "cannot be imported"),
    (EnvConfig(class_="NoDots"), UnknownEnvironment, "cannot be imported"),
    (EnvConfig(class_="pathlib.Path"), UnknownEnvironment, "lacks train, test, make"),
    (EnvConfig(class_=f"{__name__}.OwnTaskSet", options={"width": 2}), UnknownEnvironment, "does not take env.options"),
    (EnvConfig(navigation=NavigationConfig(tasks="no/such/dir")), TaskFileError, "neither lab nor full nor a directory"),
])
def test_an_environment_that_cannot_be_loaded_says_why(config, error, says):
    with pytest.raises(error, match=says):
        load_task_set(config, 0)
