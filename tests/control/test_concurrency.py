"""A door lets nobody in while it is shut, and shutting it waits for those inside."""

import asyncio

from rti.control.concurrency import Door


async def visit(door, log, name, leave):
    async with door.inside():
        log.append(f"{name} in")
        await leave.wait()
        log.append(f"{name} out")


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_while_it_is_shut_waits_and_shutting_waits_for_who_is_inside():
    door, log, leave = Door(), [], asyncio.Event()
    first = asyncio.create_task(visit(door, log, "first", leave))
    await settle()
    assert log == []
    door.open()
    await settle()
    assert log == ["first in"]
    shutting = asyncio.create_task(door.shut())
    await settle()
    second = asyncio.create_task(visit(door, log, "second", leave))
    await settle()
    assert not shutting.done() and log == ["first in"]
    leave.set()
    await shutting
    assert log == ["first in", "first out"]
    door.open()
    await asyncio.gather(first, second)
    assert log[2:] == ["second in", "second out"]


async def test_who_is_cancelled_inside_or_before_is_not_waited_for():
    door, leave = Door(), asyncio.Event()
    waiting = asyncio.create_task(visit(door, [], "waiting", leave))
    await settle()
    waiting.cancel()
    door.open()
    inside = asyncio.create_task(visit(door, [], "inside", leave))
    await settle()
    inside.cancel()
    await settle()
    await asyncio.wait_for(door.shut(), 5)
    assert waiting.cancelled() and inside.cancelled()
