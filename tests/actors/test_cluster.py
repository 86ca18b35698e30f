"""What Ray's errors mean, and coming back after a loss. No cluster: errors are made, actors are stand-ins."""

import asyncio
import time

import pytest
from ray import exceptions as ray_errors

from rti.actors import cluster
from rti.actors.cluster import ActorClient, Cluster, Need, translate
from rti.config.schema import RayConfig
from rti.control.faults import ActorFailed, ActorGone, ActorHung, ActorLost
from rti.engines.base import EngineError


def task_error(cause: Exception) -> ray_errors.RayTaskError:
    return ray_errors.RayTaskError("run", "remote traceback", cause)


@pytest.mark.parametrize("error", [
    ray_errors.ActorDiedError(), ray_errors.ActorUnavailableError("gone for now", None),
    ray_errors.ObjectLostError("00", None, "stack"), ray_errors.OwnerDiedError("00", None, "stack"),
    ray_errors.NodeDiedError("the node"), ray_errors.WorkerCrashedError(), ray_errors.OutOfMemoryError("too much"),
    task_error(ray_errors.ObjectLostError("00", None, "stack")), task_error(ray_errors.ActorDiedError()),
])
def test_deaths_and_lost_objects_are_losses_that_are_survived(error):
    assert isinstance(translate(error, "env-worker-0.run"), ActorLost)


def test_our_own_errors_come_back_as_themselves():
    cause = EngineError("the endpoint is down")
    assert translate(task_error(cause), "x") is cause


def test_any_other_remote_error_ends_the_run_and_says_where():
    error = translate(task_error(KeyError("stops")), "intervener-0.run")
    assert isinstance(error, ActorFailed) and "intervener-0.run failed: KeyError: 'stops'" in str(error)
    assert "remote traceback" in error.where


class Handle:
    """Methods whose `remote` gives an awaitable, as an actor's do."""

    def __init__(self, **methods):
        for name, method in methods.items():
            setattr(self, name, type("Method", (), {"remote": staticmethod(method)}))


async def test_a_call_that_is_not_answered_in_time_is_hung_and_says_so(monkeypatch):
    cancelled = []
    monkeypatch.setattr(cluster.ray, "cancel", cancelled.append)
    client = ActorClient("generator-0", Handle(status=lambda: asyncio.get_running_loop().create_future()), RayConfig())
    with pytest.raises(ActorHung, match="generator-0.status: no answer within 0.01 s"):
        await client.call("status", limit_s=0.01)
    assert len(cancelled) == 1


async def test_a_time_out_inside_the_actor_is_not_taken_for_one_of_the_call():
    async def raises():
        raise task_error(TimeoutError("inner")).as_instanceof_cause()

    client = ActorClient("a", Handle(run=raises), RayConfig())
    with pytest.raises(ActorFailed, match="TimeoutError"):
        await client.call("run")


async def test_cancelling_the_caller_cancels_the_call(monkeypatch):
    cancelled = []
    monkeypatch.setattr(cluster.ray, "cancel", cancelled.append)
    future = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(ActorClient("a", Handle(run=lambda: future), RayConfig()).call("run"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cancelled == [future]


async def test_revival_waits_until_the_actor_answers():
    answers = [ray_errors.ActorUnavailableError("restarting", None), ray_errors.ActorDiedError(), None]

    async def ready():
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    await ActorClient("a", Handle(ready=ready), RayConfig()).revive(ActorLost("killed"))
    assert answers == []


async def test_an_actor_that_stays_dead_is_gone_and_the_message_names_the_setting(monkeypatch):
    monkeypatch.setattr(cluster, "DEAD_FOR_GOOD_S", 0.1)

    async def ready():
        raise ray_errors.ActorDiedError()

    with pytest.raises(ActorGone, match=r"env-worker-3 was lost \(killed\) and does not come back.*10 times \(ray.restarts\)"):
        await ActorClient("env-worker-3", Handle(ready=ready), RayConfig()).revive(ActorLost("killed"))


async def test_a_hung_actor_is_killed_before_it_is_waited_for(monkeypatch):
    killed = []
    monkeypatch.setattr(cluster.ray, "kill", lambda handle, no_restart: killed.append(no_restart))

    async def ready():
        return None

    await ActorClient("a", Handle(ready=ready), RayConfig()).revive(ActorHung("silent"))
    assert killed == [False]


async def test_a_placement_that_cannot_be_says_what_is_asked_and_what_there_is(monkeypatch):
    monkeypatch.setattr(cluster.ray, "cancel", lambda ref: None)
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(cluster.ray, "available_resources", lambda: {"CPU": 0.5})
    c = Cluster(RayConfig(start_timeout_s=0.05), local=False)
    c._needs = {"generator-0": Need(4, 1), "learner-0": Need(1)}
    client = ActorClient("generator-0", Handle(ready=lambda: asyncio.get_running_loop().create_future()), c.config)
    began = time.monotonic()
    with pytest.raises(ActorGone) as caught:
        await c.wait({"generator-0": client})
    text = str(caught.value)
    assert "generator-0 did not start within 0.05 s (ray.start_timeout_s)" in text
    assert "asks for 4 CPUs and 1 GPUs" in text and "together for 5 CPUs and 1 GPUs" in text
    assert "the cluster has 2 CPUs and 0 GPUs, of which 0.5 and 0 are free" in text
    assert time.monotonic() - began < 30


def test_actor_names_carry_the_run():
    one, other = Cluster(RayConfig(), local=True), Cluster(RayConfig(), local=True)
    assert one.full_name("generator-0") != other.full_name("generator-0")


@pytest.mark.parametrize("error", [
    Exception("The current node timed out during startup."), RuntimeError("Timed out waiting for node info"),
    ConnectionError("no route"), ValueError("Ray component dashboard is trying to use a port number that is used")])
def test_a_cluster_that_does_not_start_in_time_is_told_with_what_to_do(monkeypatch, error):
    def init(**_):
        raise error

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ActorGone, match=f"could not start a local Ray cluster: {error}.*machine was busy") as caught:
        Cluster.connect(RayConfig(), 2)
    assert caught.value.__cause__ is error
    with pytest.raises(ActorGone, match="could not join the Ray cluster at 127.0.0.1:1: .*ray.address.*RAY_AUTH_MODE"):
        Cluster.connect(RayConfig(address="127.0.0.1:1"), 2)
