"""An engine of this process as a Sender of rti.engines.vllm_nccl reaches it, from its own threads."""

from __future__ import annotations

import asyncio
from typing import Any


class Bridge:
    """rti.engines.vllm_nccl.Receiver over a VLLMEngine that lives on `loop`."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop

    def check(self, shapes: dict[str, list[int]]) -> None:
        self._engine.check(shapes)

    def join(self, init_info: dict[str, Any]) -> None:
        asyncio.run_coroutine_threadsafe(self._engine.join(init_info), self._loop).result(120)

    def receive(self, update_info: dict[str, Any], version: int) -> None:
        asyncio.run_coroutine_threadsafe(self._engine.receive(update_info, version), self._loop).result(120)
