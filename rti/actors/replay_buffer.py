"""The replay buffer actor: a shell around rti.control.store, which journals every change before it is answered.

A restarted actor rebuilds itself from the journal. Its client asks every call again after a loss: all of them are idempotent.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Sequence

from rti.actors.cluster import ActorClient
from rti.control.faults import ActorLost
from rti.control.store import Facts, GroupStore

log = logging.getLogger(__name__)

MAX_ASKED = 20
"""How often one call is asked: a buffer that dies of the call itself must not be restarted for ever."""


class ReplayBuffer:
    """The actor. One call at a time, in the order they were made."""

    def __init__(self, journal: str, memory_mb: int):
        self._store = GroupStore(Path(journal), memory_mb << 20)
        if self._store.cut:
            log.warning("the journal %s had %d damaged bytes at its end, which are cut off: the group that was being written "
                        "runs again", journal, self._store.cut)

    def ready(self) -> int:
        return os.getpid()

    def put(self, facts: Facts, data: bytes) -> bool:
        return self._store.put(facts, data)

    def lease(self, step: int, group_ids: Sequence[str]) -> list[bytes]:
        return self._store.lease(step, group_ids)

    def commit(self, step: int, group_ids: Sequence[str]) -> None:
        self._store.commit(step, group_ids)

    def void(self, group_ids: Sequence[str]) -> None:
        self._store.void(group_ids)

    def resume(self, step: int, version: int) -> list[Facts]:
        return self._store.resume(step, version)

    def stats(self) -> dict[str, int]:
        return self._store.stats()


class BufferActor(ActorClient):
    """The controller's client of the buffer; see controller.BufferClient. `restarts` counts its deaths."""

    restarts = 0

    async def put(self, facts: Facts, data: bytes) -> bool:
        return await self._ask("put", facts, data)

    async def lease(self, step: int, group_ids: Sequence[str]) -> list[bytes]:
        return await self._ask("lease", step, list(group_ids))

    async def commit(self, step: int, group_ids: Sequence[str]) -> None:
        await self._ask("commit", step, list(group_ids))

    async def void(self, group_ids: Sequence[str]) -> None:
        if group_ids:
            await self._ask("void", list(group_ids))

    async def resume(self, step: int, version: int) -> list[Facts]:
        return await self._ask("resume", step, version)

    async def stats(self) -> dict[str, int]:
        return await self._ask("stats")

    async def _ask(self, method: str, *args: Any) -> Any:
        for _ in range(MAX_ASKED - 1):
            try:
                return await self.call(method, *args)
            except ActorLost as loss:
                log.warning("the replay buffer is lost: %s", loss)
                await self.revive(loss)
                self.restarts += 1
                log.warning("the replay buffer is back, rebuilt from its journal")
        return await self.call(method, *args)
