"""Where RTI meets Ray: starting or joining a cluster, making actors, calling them, and what Ray's errors mean.

Keeps field bugs 27, 31 and 33: every wait has a limit and a message, an infeasible placement says what is asked and what the
cluster has, and actors' names carry the run's id. Ray's errors are translated here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

import ray
from ray import exceptions as ray_errors

from rti.actors.launching import cluster_address
from rti.config.schema import RayConfig
from rti.control.concurrency import all_of
from rti.control.faults import ActorFailed, ActorGone, ActorHung, ActorLost
from rti.control.placement import Machines

log = logging.getLogger(__name__)

NAMESPACE = "rti"
DEAD_FOR_GOOD_S = 5.0
"""Ray calls an actor that is about to be restarted dead for a moment; one that is dead for longer will not come back."""
MAX_HANGS = 3
"""How often an actor that says nothing is killed and started again before it is given up."""

_LOST = (ray_errors.RayActorError, ray_errors.ObjectLostError, ray_errors.NodeDiedError, ray_errors.WorkerCrashedError,
         ray_errors.OutOfMemoryError, ray_errors.TaskCancelledError, ray_errors.LocalRayletDiedError, ray_errors.RpcError)


# --- calls -------------------------------------------------------------------------------------------------------
def translate(error: Exception, what: str) -> Exception:
    """What a Ray error means to the control plane. `what` names the call."""
    if isinstance(error, ray_errors.RayTaskError):
        cause = error.cause
        if isinstance(cause, _LOST):        # an argument of the call was lost, or an actor that it called in turn
            return ActorLost(f"{what}: {_first_line(cause)}")
        if isinstance(cause, Exception) and type(cause).__module__.partition(".")[0] == "rti":
            return cause                    # our own errors say what, why and the mend; their remote traceback adds nothing
        return ActorFailed(f"{what} failed: {type(cause).__name__}: {cause}", where=str(error))
    if isinstance(error, _LOST):
        return ActorLost(f"{what}: {_first_line(error)}")
    return ActorFailed(f"{what} failed: {type(error).__name__}: {error}")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


async def answer(ref: ray.ObjectRef, what: str, limit_s: float) -> Any:
    """The value of a call, or ActorLost, ActorHung, ActorFailed, or the actor's own error. Cancelling it cancels the call."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await ref
    except TimeoutError as error:
        if not limit.expired():
            raise translate(error, what) from None
        _cancel(ref)
        raise ActorHung(f"{what}: no answer within {limit_s:g} s") from None
    except asyncio.CancelledError:
        _cancel(ref)
        raise
    except ray_errors.RayError as error:        # a remote error is raised as an instance of its own class and of this
        raise translate(error, what) from None


def _cancel(ref: ray.ObjectRef) -> None:
    try:
        ray.cancel(ref)
    except (ValueError, TypeError, ray_errors.RayError) as error:      # it has ended meanwhile, or its actor has
        log.debug("cancelling a call: %s", error)


class ActorClient:
    """An actor of ours: calls with limits, coming, coming back after a loss, and its end. Ray restarts the process; `ready`
    sets it up. `ended` is called once it was ended."""

    def __init__(self, name: str, handle: Any, config: RayConfig, ended: Callable[[], None] = lambda: None):
        self.name, self.handle, self._config, self._ended = name, handle, config, ended

    async def call(self, method: str, *args: Any, limit_s: float | None = None) -> Any:
        return await self.wait_for(getattr(self.handle, method).remote(*args), method, limit_s)

    async def wait_for(self, ref: ray.ObjectRef, method: str, limit_s: float | None = None) -> Any:
        """The value of a call of `method` that was made already."""
        return await answer(ref, f"{self.name}.{method}", limit_s or self._config.call_timeout_s)

    async def arrive(self) -> None:
        """Return when an actor that was asked for answers for the first time, however long Ray needs to find a place for it.
        Raises ActorGone where it died and does not come back."""
        while True:
            try:
                await self.call("ready", limit_s=self._config.start_timeout_s)
                return
            except ActorHung:
                log.warning("%s has waited for a place for %g s, and goes on waiting", self.name, self._config.start_timeout_s)
            except ActorLost as loss:
                await self.revive(loss)

    async def revive(self, loss: ActorLost) -> None:
        """Return when the actor answers again. One that hangs is killed first, and again where it hangs as it comes back.
        Raises ActorGone where it never will."""
        hung = loss if isinstance(loss, ActorHung) else None
        for _ in range(MAX_HANGS):
            if hung is not None:
                self.kill(restart=True)
            hung = await self._comes_back(loss)
            if hung is None:
                return
        raise ActorGone(f"{self.name} was lost ({loss}) and does not come back: {hung}") from None

    async def _comes_back(self, loss: ActorLost) -> ActorHung | None:
        """None once it answers; the hang where it says nothing for as long as a start may take."""
        clock = asyncio.get_running_loop().time        # of production and of the simulation alike
        deadline = clock() + self._config.start_timeout_s
        dead_since: float | None = None
        while True:
            try:
                await self.call("ready", limit_s=max(1.0, deadline - clock()))
                return None
            except ActorHung as again:
                if clock() >= deadline:     # else it is another actor that hangs, on which this one waits
                    return again
            except ActorLost as again:
                now = clock()
                dead_since = (dead_since or now) if "ActorDiedError" in str(again) else None
                if now > deadline or dead_since is not None and now - dead_since > DEAD_FOR_GOOD_S:
                    raise ActorGone(f"{self.name} was lost ({loss}) and does not come back: {again}. It may be restarted "
                                    f"{self._config.restarts} times (ray.restarts)") from None
            await asyncio.sleep(0.2)

    def kill(self, restart: bool) -> None:
        ray.kill(self.handle, no_restart=not restart)

    def end(self) -> None:
        """End the actor for good, also one that has no place yet: what it holds or asks for is free."""
        self.kill(restart=False)
        self._ended()


def named_actor(full_name: str, config: RayConfig) -> ActorClient:
    """A client of an actor of this run, found by name from within another actor. Raises ActorLost where it was ended."""
    try:
        handle = ray.get_actor(full_name, namespace=NAMESPACE)
    except ValueError:
        raise ActorLost(f"{full_name} is not there any more") from None
    return ActorClient(full_name.partition("/")[2], handle, config)


# --- the cluster -------------------------------------------------------------------------------------------------
STABLE_SHARE = 0.001
"""Of ray.stable_resource, for each actor that asks for it: a node with one of it takes a thousand of them."""


class Need(NamedTuple):
    """What one actor asks Ray for. `stable`: a custom resource that its node must have; empty: none."""

    cpus: float
    gpus: float = 0.0
    stable: str = ""

    @property
    def resources(self) -> dict[str, float]:
        return {self.stable: STABLE_SHARE} if self.stable else {}


class Cluster:
    """A Ray cluster that this run has joined, or a local one that it has started and ends with it."""

    def __init__(self, config: RayConfig, local: bool):
        self.config, self.local = config, local
        self.run_id = secrets.token_hex(4)
        self._needs: dict[str, Need] = {}

    @classmethod
    def connect(cls, config: RayConfig, cpus: float) -> Cluster:
        """Join the cluster that the configuration or the job's environment names, else start a local one big enough."""
        address = cluster_address(config)
        shared = dict(logging_level=logging.ERROR, namespace=NAMESPACE, log_to_driver="RTI_DEBUG" in os.environ)
        try:
            if address:
                paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
                ray.init(address=address, runtime_env={"env_vars": paths}, **shared)
            else:
                _start_local(config, cpus, shared)
        except Exception as error:      # Ray raises Exception itself where its processes do not start in time
            raise ActorGone(_not_connected(address, error)) from error
        return cls(config, not address)

    def actor(self, cls: type, name: str, need: Need, *args: Any, restart: bool = True, groups: dict[str, int] | None = None,
              **options: Any) -> Any:
        """Make an actor of a plain class; returns its handle at once. `wait` says when it is there. `groups`: names of threads
        beside the actor's own, and how many of each."""
        self._needs[name] = need
        remote = (ray.remote(concurrency_groups=dict(groups))(cls) if groups else ray.remote(cls)).options(
            name=self.full_name(name), num_cpus=need.cpus, num_gpus=need.gpus, resources=need.resources,
            max_restarts=self.config.restarts if restart else 0, max_task_retries=0, **options)
        return remote.remote(*args)

    def forget(self, name: str) -> None:
        """An actor was ended: what it needed is not asked for any more."""
        self._needs.pop(name, None)

    def full_name(self, name: str) -> str:
        """What an actor is called in the cluster: an actor of an earlier run is never picked up by mistake."""
        return f"{self.run_id}/{name}"

    async def wait(self, clients: Mapping[str, ActorClient]) -> dict[str, Any]:
        """What `ready` of each says; all are asked at once. Where one is not placed in time, says what is asked and there."""
        async def one(name: str, client: ActorClient) -> Any:
            try:
                return await client.call("ready", limit_s=self.config.start_timeout_s)
            except ActorHung:
                raise ActorGone(self._not_placed(name)) from None
            except ActorLost as loss:
                await client.revive(loss)
                return await client.call("ready", limit_s=self.config.start_timeout_s)

        return dict(zip(clients, await all_of(one(name, client) for name, client in clients.items())))

    def _not_placed(self, name: str) -> str:
        has = {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
        free = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
        need = self._needs[name]
        total = Need(sum(n.cpus for n in self._needs.values()), sum(n.gpus for n in self._needs.values()))
        return (f"{name} did not start within {self.config.start_timeout_s:g} s (ray.start_timeout_s). It asks for "
                f"{_words(need)}, all actors of the run together for {_words(total)}; the cluster has "
                f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, "
                f"of which {free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free. "
                "Add nodes, lower the counts (generators.replicas, learner.world_size, env_workers.count, interveners) or "
                f"their cpus, or raise the limit; what the actors wrote is in {log_directory()}")

    @property
    def machines(self) -> Machines:
        """The GPUs of the nodes that are there now."""
        gpus = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
        return Machines(tuple(count for count in gpus if count))

    def close(self) -> None:
        """Leave the cluster: its actors are this job's and end with it."""
        ray.shutdown()


def log_directory() -> str:
    """Where Ray keeps what the actors write."""
    try:
        return str(Path(ray._private.worker._global_node.get_session_dir_path()) / "logs")
    except AttributeError:
        return "the Ray session's logs"


def _words(need: Need) -> str:
    words = f"{need.cpus:g} CPUs" + (f" and {need.gpus:g} GPUs" if need.gpus else "")
    return words + (f" on a node with {need.stable} (ray.stable_resource)" if need.stable else "")


def _not_connected(address: str, error: Exception) -> str:
    if address:
        return (f"could not join the Ray cluster at {address}: {error}. See ray.address in the configuration, and RAY_ADDRESS; "
                "head and client need the same RAY_AUTH_MODE and token")
    return (f"could not start a local Ray cluster: {error}. Ray gives its own processes 30 s; where the machine was busy, run "
            f"it again when less runs beside it. Else what they wrote in {log_directory()} says why")


def _start_local(config: RayConfig, cpus: float, shared: dict[str, Any]) -> None:
    """A cluster of this process and for it, on loopback. Its CPUs are only a way of counting actors: on a small machine more
    actors than cores take turns."""
    count = config.num_cpus or max(os.cpu_count() or 1, int(-(-cpus // 1)))
    ray.init(address="local", num_cpus=count, include_dashboard=False, _node_ip_address="127.0.0.1", **shared)
