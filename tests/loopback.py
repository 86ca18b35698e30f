"""Services on loopback for tests: real servers whose one handler the test gives."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import AsyncIterator, Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handle: Handler, method: str = "GET", path: str = "/{path:.*}") -> AsyncIterator[str]:
    """Serve until the block ends; yields the address."""
    app = web.Application()
    app.router.add_route(method, path, handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def completions(handle: Handler) -> AsyncIterator[str]:
    """A chat-completions service; yields its base address, which ends with /v1."""
    async with serving(handle, "POST", "/v1/chat/completions") as address:
        yield f"{address}/v1"
