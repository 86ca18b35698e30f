"""Waiting for many coroutines as one."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, Iterable, TypeVar

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
