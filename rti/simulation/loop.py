"""An event loop whose clock jumps to the next timer: hours of a run in milliseconds, in one order, the same each time.

Keeps: callbacks run first come first served, timers by time and then by age, threads' work at once; so that a run is a
function of its seed. `after_event` is called after every single callback.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from typing import Any, Callable, Coroutine, TypeVar

T = TypeVar("T")


class Killed(BaseException):
    """The process of this loop was killed: nothing in it runs any more, no `finally` either."""


class Stuck(RuntimeError):
    """Nothing will ever happen again, or nothing but waiting does."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module's docstring. `limit_s`: simulated seconds after which the run counts as stuck."""

    def __init__(self, now: float = 0.0, limit_s: float = 1e6, after_event: Callable[[], None] = lambda: None):
        self._now, self._end, self._after_event = now, now + limit_s, after_event
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._age = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dead = False
        self.complaints: list[str] = []     # errors that nobody waits for
        self.events = 0

    # --- what asyncio asks of a loop ---------------------------------------------------------------------------------
    def time(self) -> float:
        return self._now

    def call_soon(self, callback, *args, context=None):
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._age += 1
        heapq.heappush(self._timers, (when, self._age, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._dead

    def is_closed(self) -> bool:
        return self._dead

    def call_exception_handler(self, context):
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _timer_handle_cancelled(self, handle) -> None:
        """asyncio tells; cancelled timers are passed over when their time comes."""

    # --- running -----------------------------------------------------------------------------------------------------
    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises Killed after `kill`, and Stuck."""
        asyncio._set_running_loop(self)
        try:
            main = self.create_task(work)
            while not main.done():
                self._one_event()
            return main.result()
        finally:
            asyncio._set_running_loop(None)
            self._abandon()

    def kill(self) -> None:
        """End the process of this loop with the callback that runs now."""
        self._dead = True

    def _one_event(self) -> None:
        while self._timers and (self._timers[0][0] <= self._now or not self._ready):
            when, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                self._now = max(self._now, when)
                self._ready.append(handle)
        if not self._ready:
            raise Stuck("every task waits, and no timer is set: a deadlock")
        if self._now > self._end:
            raise Stuck(f"not finished after {self._end:g} simulated seconds")
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        self.events += 1
        handle._run()
        if self._dead:
            raise Killed
        self._after_event()

    def _abandon(self) -> None:
        """Nobody is left to run the tasks: their coroutines go, and what their `finally` blocks want to wait for is not."""
        self._dead = True
        for task in list(self._tasks):
            task._log_destroy_pending = False
            try:
                task.get_coro().close()
            except RuntimeError:
                pass        # it waited in a `finally` block
        self._ready.clear()
        self._timers.clear()
