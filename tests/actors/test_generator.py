"""Requests through several generators: the least loaded first, another one after a loss, whole again under the same seed."""

import asyncio
import itertools

import numpy as np
import pytest

from rti.actors.generator import GeneratorInfo, RemoteEngine
from rti.actors.messages import Roster
from rti.control.faults import ActorLost
from rti.engines.base import EngineError, Generation, PromptTooLong, SamplingParams

NUMBERS = itertools.count()
PARAMS = SamplingParams(max_tokens=5, seed=11)


class Replica:
    """Answers in so many seconds, or raises."""

    def __init__(self, version=0, fault=None, max_context=64):
        self.name = f"generator-{next(NUMBERS)}"
        self.version, self.fault, self.max_context = version, fault, max_context
        self.asked = []
        self.release = asyncio.Event()
        self.release.set()

    async def call(self, method, *args, limit_s=None):
        if method == "ready":
            return GeneratorInfo(max_context=self.max_context, pid=1)
        self.asked.append((args[0].tolist(), args[1]))
        await self.release.wait()
        if self.fault:
            raise self.fault
        return Generation(token_ids=np.arange(2, dtype=np.int32), logps=np.zeros(2, np.float32),
                          versions=np.full(2, self.version, np.int32), finish_reason="stop")


async def engine_over(*replicas, patience_s=60.0, clock=None):
    engine = RemoteEngine(patience_s, **({"clock": clock} if clock else {}))
    await engine.connect(replicas)
    return engine


async def test_a_request_that_is_lost_with_its_replica_is_made_again_whole_by_another():
    dead, alive = Replica(fault=ActorLost("killed")), Replica(version=3)
    engine = await engine_over(dead, alive)
    reply = await engine.generate([1, 2], PARAMS)
    assert dead.asked == alive.asked == [([1, 2], PARAMS)], "the same prompt, seed and token budget: nothing is carried over"
    assert reply.versions.tolist() == [3, 3] and engine.version == 3
    await engine.generate([3], PARAMS)
    assert len(dead.asked) == 1, "one that was lost is not asked again at once"


async def test_requests_spread_over_the_replicas_and_a_cancelled_one_frees_its_place():
    replicas = Replica(), Replica()
    for r in replicas:
        r.release.clear()
    engine = await engine_over(*replicas)
    tasks = [asyncio.create_task(engine.generate([i], PARAMS)) for i in range(4)]
    await asyncio.sleep(0)
    assert [len(r.asked) for r in replicas] == [2, 2]
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    tasks.append(asyncio.create_task(engine.generate([4], PARAMS)))
    await asyncio.sleep(0)
    assert [len(r.asked) for r in replicas] == [3, 2]
    for r in replicas:
        r.release.set()
    await asyncio.gather(*tasks[1:])


async def test_where_no_generator_answers_the_wait_has_an_end_and_a_message():
    now = iter(range(0, 1000, 5))
    engine = await engine_over(Replica(fault=ActorLost("killed")), patience_s=8.0, clock=lambda: next(now))
    with pytest.raises(EngineError, match="no generator answered for 8 s; the last word was: killed"):
        await engine.generate([1], PARAMS)


async def test_what_is_the_agents_fault_is_not_asked_of_another():
    replicas = Replica(fault=PromptTooLong("no room"), max_context=9), Replica(max_context=7)
    engine = await engine_over(*replicas)
    assert engine.max_context == 7
    with pytest.raises(PromptTooLong):
        await engine.generate([1], PARAMS)
    assert not replicas[1].asked


async def test_weights_do_not_come_from_an_episode():
    with pytest.raises(EngineError, match="from the controller"):
        await (await engine_over(Replica())).load_weights({}, 1)


# --- generators that join and leave ----------------------------------------------------------------------------------
async def test_a_newer_roster_moves_requests_to_those_that_serve_and_an_older_one_is_passed_over():
    replicas = {name: Replica(version=i) for i, name in enumerate(("run/a", "run/b", "run/c"))}
    engine = RemoteEngine(60.0)
    engine.follow(Roster(3, ("run/a", "run/b")), replicas.__getitem__)
    await engine.generate([1], PARAMS)
    engine.follow(Roster(5, ("run/c",)), replicas.__getitem__)
    engine.follow(Roster(4, ("run/b", "run/c")), replicas.__getitem__)
    for _ in range(3):
        await engine.generate([1], PARAMS)
    assert [len(r.asked) for r in replicas.values()] == [1, 0, 3]


async def test_a_request_with_a_generator_that_leaves_ends_there_and_one_that_was_ended_is_left_out():
    stays, leaves = Replica(version=1), Replica(version=2)

    def find(name):
        if name == "run/ended":
            raise ActorLost("run/ended is not there any more")
        return {"run/stays": stays, "run/leaves": leaves}[name]

    engine = RemoteEngine(60.0)
    engine.follow(Roster(1, ("run/leaves",)), find)
    leaves.release.clear()
    under_way = asyncio.create_task(engine.generate([1], PARAMS))
    await asyncio.sleep(0)
    engine.follow(Roster(2, ("run/stays", "run/ended")), find)
    assert (await engine.generate([2], PARAMS)).versions.tolist() == [1, 1]
    leaves.release.set()
    assert (await under_way).versions.tolist() == [2, 2]


async def test_without_any_generator_requests_wait_for_one():
    engine = RemoteEngine(60.0)
    waiting = asyncio.create_task(engine.generate([1], PARAMS))
    await asyncio.sleep(0)
    engine.follow(Roster(1, ("a",)), lambda name: Replica(version=4))
    assert (await waiting).versions.tolist() == [4, 4]
    await engine.meet()
    assert engine.max_context == 64, "the prompts of the roles are cut to it"
