"""Waiting for many coroutines as one, and a door through which requests pass only while it is open."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Coroutine, Iterable, TypeVar

T = TypeVar("T")


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order. The first error cancels the others, is waited out, and is raised as itself: not in a group, so
    that who catches an error by its class need not know that it came from one of many."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Door:
    """Shut at first. Who comes while it is shut waits until it is opened."""

    def __init__(self) -> None:
        self._open, self._empty, self._count = asyncio.Event(), asyncio.Event(), 0
        self._empty.set()

    def open(self) -> None:
        self._open.set()

    async def shut(self) -> None:
        """Let nobody in any more; returns when the last one is out."""
        self._open.clear()
        await self._empty.wait()

    @asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        await self._open.wait()
        self._count += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._empty.set()
