"""The task set of the navigation environment: tasks by name or from a directory, and environments over one shared client.

Keeps: all environments of a process share one client (one rate limit, one cache, one offline server), and no episode's state.
The client is made on first use in the loop that uses it, and made again where a new loop takes over.
"""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path

from rti.config.schema import NavigationConfig
from rti.envs.base import FatalEnvironmentError, Task
from rti.envs.navigation import tasks as construction
from rti.envs.navigation.client import REAL_SERVICE, HttpTransport, InProcessTransport, MapClient
from rti.envs.navigation.environment import NavigationEnvironment
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.offline import OfflineService
from rti.envs.navigation.recording import Recorder, Recording
from rti.envs.navigation.server import OfflineServer
from rti.envs.navigation.tools import NavigationTools
from rti.envs.task_files import TaskFileError, read_splits

OFFLINE_KEY = "offline"
SERVICES = ("offline", "amap", "replay")


class _Backend:
    """A client and, where needed, the offline server it talks to."""

    def __init__(self, client: MapClient, server: OfflineServer | None) -> None:
        self.client, self.server = client, server

    async def close(self) -> None:
        await self.client.close()
        if self.server is not None:
            await self.server.stop()


async def _connect(config: NavigationConfig) -> _Backend:
    if config.service not in SERVICES:
        raise FatalEnvironmentError(f"env.navigation.service is '{config.service}'; mend: one of {', '.join(SERVICES)}")
    if config.service == "replay":
        if not config.record:
            raise FatalEnvironmentError("service=replay needs a recording; mend: set env.navigation.record to its file")
        return _Backend(MapClient(None, "", recording=Recording(config.record)), None)
    recorder = Recorder(config.record) if config.record else None
    if config.service == "amap":
        key = os.environ.get(config.key_env, "")
        if not key:
            raise FatalEnvironmentError(f"service=amap needs a key in the environment variable {config.key_env}, which is not "
                                        f"set; mend: export it, or use service=offline")
        transport = HttpTransport(config.base_url or REAL_SERVICE)
        return _Backend(MapClient(transport, key, requests_per_second=config.requests_per_second, recorder=recorder), None)
    server = None
    if not config.base_url:
        server = OfflineServer(OfflineService(Gazetteer.load()))
        await server.start()
    return _Backend(MapClient(HttpTransport(config.base_url or server.base_url), OFFLINE_KEY, recorder=recorder), server)


@functools.lru_cache(maxsize=None)
def _named(name: str) -> construction.TaskSplit:
    """Made once a process: it takes about a second."""
    return construction.task_set(Gazetteer.load(), name)


class NavigationTaskSet:
    """See rti.envs.base.TaskSet."""

    def __init__(self, config: NavigationConfig) -> None:
        self.config = config
        self.train, self.test = self._load(config.tasks)
        self._backend: _Backend | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: asyncio.Lock | None = None

    @staticmethod
    def _load(name: str) -> tuple[list[Task], list[Task]]:
        if name in construction.DRAW:
            split = _named(name)
            return list(split.train), list(split.test)
        directory = Path(name)
        if not directory.is_dir():
            raise TaskFileError(f"env.navigation.tasks is '{name}', neither {' nor '.join(construction.DRAW)} nor a directory; "
                                f"mend: make one with launch/data.py navigation --out {name}")
        return read_splits(directory, "launch/data.py navigation")

    def make(self) -> NavigationEnvironment:
        return NavigationEnvironment(self._ready, self.config.max_turns)

    async def _ready(self) -> NavigationTools:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:      # first use, or the earlier loop has ended and taken its sockets with it
            self._loop, self._lock, self._backend = loop, asyncio.Lock(), None
        async with self._lock:
            if self._backend is None:
                self._backend = await _connect(self.config)
        return NavigationTools(self._backend.client, self.config.results, self.config.observation_chars)

    async def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None and self._loop is asyncio.get_running_loop():
            await backend.close()


def in_process_environment(config: NavigationConfig | None = None, gazetteer: Gazetteer | None = None) -> NavigationEnvironment:
    """An environment over the offline service without HTTP: the same observations, much faster. For building data and tests."""
    config = config or NavigationConfig()
    client = MapClient(InProcessTransport(OfflineService(gazetteer or Gazetteer.load())), OFFLINE_KEY)
    tools = NavigationTools(client, config.results, config.observation_chars)

    async def ready() -> NavigationTools:
        return tools

    return NavigationEnvironment(ready, config.max_turns)
