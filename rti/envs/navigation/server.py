"""The offline service as an HTTP server on the loopback interface: `python -m rti.envs.navigation.server [--port N]`.

Keeps: the port is chosen by the kernel and its socket is held from the bind on, so two servers never race for one. Requests
are not logged (their addresses hold keys).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys

from aiohttp import web

from rti.commands import guarded
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.offline import OfflineService

HOST = "127.0.0.1"


class OfflineServer:
    """`await start()`, use `base_url`, `await stop()`."""

    def __init__(self, service: OfflineService, port: int = 0) -> None:
        self._service = service
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._port}"

    async def start(self) -> None:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((HOST, self._port))
        except OSError as e:
            held.close()
            raise OSError(e.errno, f"cannot bind {HOST}:{self._port}: {e.strerror}; mend: use port 0 (any free port)") from None
        self._port = held.getsockname()[1]
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, held).start()

    async def _handle(self, request: web.Request) -> web.Response:
        reply = self._service.answer(request.path, request.query)
        body = json.dumps(reply, ensure_ascii=False).encode()
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def _serve(port: int) -> None:
    server = OfflineServer(OfflineService(Gazetteer.load()), port)
    await server.start()
    print(f"offline map service at {server.base_url} (any key is accepted); Ctrl-C ends it", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The offline map service on the loopback interface.")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    try:
        asyncio.run(_serve(parser.parse_args(argv).port))
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
