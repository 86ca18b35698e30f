"""Processes on nodes and the calls between them: latency, deaths, hangs, lost answers, restarts. In place of Ray's.

What a call can end in is what rti.actors.cluster makes of Ray's errors: the value, the actor's own error, ActorLost (the
process died before its answer arrived), ActorHung (no answer within the limit). An actor that was `async` reorders its calls;
a serial one keeps them in the order in which they were made, as Ray does.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import numpy as np

from rti.control.faults import ActorHung, ActorLost


class Process:
    """An actor's process. `life` counts its restarts."""

    def __init__(self, name: str, node: int, make: Callable[[], Any], serial: bool):
        self.name, self.node, self.make, self.serial = name, node, make, serial
        self.life, self.up, self.hung, self.lost = 0, True, False, False
        self.actor = make()
        self.placed: asyncio.Future[None] | None = None     # calls of an actor that has no place yet wait for one
        self.tasks: dict[asyncio.Task[Any], None] = {}      # in order: a set's is that of addresses, and does not replay
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turn = asyncio.Lock()


class Network:
    """All processes of one driver: they end with it."""

    def __init__(self, rng: np.random.Generator, latency_s: float):
        self.rng, self.latency_s, self.slow = rng, latency_s, 1.0
        self.processes: dict[str, Process] = {}
        self.on_death: Callable[[Process], None] = lambda process: None
        self.deaths = self.hangs = 0

    def start(self, name: str, node: int, make: Callable[[], Any], serial: bool = False, after_s: float = 0.0) -> None:
        """`after_s`: how long it takes until there is a place for it."""
        process = self.processes[name] = Process(name, node, make, serial)
        if after_s:
            process.placed = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(after_s, process.placed.set_result, None)

    def end(self, name: str) -> None:
        """The process is ended for good, also one that has no place yet."""
        if name in self.processes:
            self.kill(name)
            del self.processes[name]

    async def call(self, name: str, method: str, args: tuple[Any, ...], limit_s: float) -> Any:
        process, what = self.processes.get(name), f"{name}.{method}"
        if process is None:
            await asyncio.sleep(self.latency_s)
            raise ActorLost(f"{what}: ActorDiedError: it was ended")
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._call(process, method, args, what)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ActorHung(f"{what}: no answer within {limit_s:g} s") from None

    async def _call(self, process: Process, method: str, args: tuple[Any, ...], what: str) -> Any:
        await self._travel(process)
        if process.placed is not None:
            await asyncio.wait({process.placed})
        if not process.up:
            raise ActorLost(f"{what}: {'ActorDiedError' if process.lost else 'the process is not there'}")
        life, died = process.life, process.died
        work = asyncio.ensure_future(self._serve(process, method, args))
        process.tasks[work] = None
        work.add_done_callback(process.tasks.pop)
        work.add_done_callback(lambda t: t.cancelled() or t.exception())    # the caller may be gone before there is an answer
        try:
            await asyncio.wait({work, died}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not process.serial and self.rng.random() < 0.7:      # a cancellation may come too late
                work.cancel()
            raise
        if process.life == life:
            await self._travel(process)
        if process.hung and process.life == life:
            await asyncio.wait({died})
        if process.life != life:
            work.cancel()
            raise ActorLost(f"{what}: the process died")
        return work.result()

    async def _serve(self, process: Process, method: str, args: tuple[Any, ...]) -> Any:
        if process.hung:
            await asyncio.wait({process.died})
        if not process.serial:
            return await getattr(process.actor, method)(*args)
        life = process.life
        async with process.turn:
            if process.life != life or process.hung:
                await asyncio.get_running_loop().create_future()    # the death ends it
            return getattr(process.actor, method)(*args)

    async def _travel(self, process: Process) -> None:
        spread = 1.0 if process.serial else self.rng.exponential()
        await asyncio.sleep(self.latency_s * self.slow * spread)

    # --- faults ------------------------------------------------------------------------------------------------------
    def kill(self, name: str, back_s: float | None = None) -> None:
        """The process dies; a new one is there `back_s` later."""
        process = self.processes[name]
        if not process.up:
            return
        process.up, process.hung = False, False
        process.life += 1
        self.deaths += 1
        for task in list(process.tasks):
            task.cancel()
        died, process.died = process.died, asyncio.get_running_loop().create_future()
        died.set_result(None)
        process.turn = asyncio.Lock()
        self.on_death(process)
        back_s = float(self.rng.exponential(2.0)) if back_s is None else back_s
        asyncio.get_running_loop().call_later(back_s, self._back, process)

    def lose(self, name: str) -> None:
        """The process dies and no new one comes in its place: its node left, and there is no other, or it died too often."""
        if name in self.processes:
            self.processes[name].lost = True
            self.kill(name)

    def _back(self, process: Process) -> None:
        if process.lost or self.processes.get(process.name) is not process:
            return
        process.actor, process.up = process.make(), True

    def hang(self, name: str) -> None:
        """The process lives and says nothing more."""
        if self.processes[name].up:
            self.processes[name].hung = True
            self.hangs += 1

    def lose_node(self, node: int) -> None:
        for name, process in list(self.processes.items()):
            if process.node == node:
                self.kill(name)
