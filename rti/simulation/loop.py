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
MANY = 256
"""Tasks that are kept in mind, at least, before those that are done are let go."""


class Killed(BaseException):
    """The process of this loop was killed: nothing in it runs any more, no `finally` either."""


class Stuck(RuntimeError):
    """Nothing will ever happen again, or nothing but waiting does."""


class _Handle:
    """A callback that is due, or will be. In place of asyncio's, which takes twice as long to make and to run."""

    __slots__ = ("callback", "args", "context", "at")

    def __init__(self, callback, args, context, at=0.0):
        self.callback, self.args, self.context, self.at = callback, args, context, at

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.at


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module's docstring. `limit_s`: simulated seconds after which the run counts as stuck."""

    def __init__(self, now: float = 0.0, limit_s: float = 1e6, after_event: Callable[[], None] = lambda: None):
        self._now, self._end, self._after_event = now, now + limit_s, after_event
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._age = 0
        self._tasks: list[asyncio.Task[Any]] = []       # all that are not done, and lately done ones
        self._many = MANY
        self._dead = False
        self.complaints: list[str] = []     # errors that nobody waits for
        self.events = 0

    # --- what asyncio asks of a loop ---------------------------------------------------------------------------------
    def time(self) -> float:
        return self._now

    def call_soon(self, callback, *args, context=None):
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._now + delay if delay > 0 else self._now, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        handle = _Handle(callback, args, context, when)
        self._age += 1
        heapq.heappush(self._timers, (when, self._age, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > self._many:
            self._tasks = [t for t in self._tasks if not t.done()]
            self._many = max(MANY, 2 * len(self._tasks))
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

    # --- running -----------------------------------------------------------------------------------------------------
    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises Killed after `kill`, and Stuck."""
        asyncio._set_running_loop(self)
        try:
            main = self.create_task(work)
            self._run_until(main.done)
            return main.result()
        finally:
            asyncio._set_running_loop(None)
            self._abandon()

    def kill(self) -> None:
        """End the process of this loop with the callback that runs now."""
        self._dead = True

    def _run_until(self, done: Callable[[], bool]) -> None:
        """One event after the other. Written flat: a seed has thousands, and little else to do."""
        ready, timers, after_event = self._ready, self._timers, self._after_event
        while not done():
            while timers and (timers[0][0] <= self._now or not ready):
                when, _, handle = heapq.heappop(timers)
                if handle.callback is not None:     # else it was cancelled
                    if when > self._now:
                        self._now = when
                    ready.append(handle)
            if not ready:
                raise Stuck("every task waits, and no timer is set: a deadlock")
            if self._now > self._end:
                raise Stuck(f"not finished after {self._end:g} simulated seconds")
            handle = ready.popleft()
            if handle.callback is None:
                continue
            self.events += 1
            self._call(handle)
            if self._dead:
                raise Killed
            after_event()

    def _call(self, handle: _Handle) -> None:
        try:
            if handle.context is None:
                handle.callback(*handle.args)
            else:
                handle.context.run(handle.callback, *handle.args)
        except Exception as error:
            self.complaints.append(f"{handle.callback!r} raised {error!r}")

    def _abandon(self) -> None:
        """Nobody is left to run the tasks: their coroutines go, and what their `finally` blocks want to wait for is not."""
        self._dead = True
        for task in self._tasks:
            task._log_destroy_pending = False
            try:
                task.get_coro().close()
            except RuntimeError:
                pass        # it waited in a `finally` block
        self._ready.clear()
        self._timers.clear()
