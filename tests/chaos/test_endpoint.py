"""The service that environments ask dies and comes back, or is far away: episodes are run again, or are slow, and no more."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests.end_to_end.nodes import free_port
from tests.end_to_end.runs import ROOT, Run, assert_clean, lines, record, write_config

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
DEAD_S = 2.0
FAR_S = 0.5


class Service:
    """tests.chaos.asked as a process of its own, always at the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "tests.chaos.asked", str(self.port)], cwd=ROOT)
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as s:
                if not s.connect_ex(("127.0.0.1", self.port)):
                    return
            assert time.monotonic() < deadline, "the service did not come up"
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def service() -> Iterator[Service]:
    process = Service()
    yield process
    process.kill()


def config_asking(directory: Path, policy: Path, port: int) -> Path:
    return write_config(
        directory, policy, evaluation__before=True, evaluation__after=True, rollout__retries=20,
        env={"class": "tests.chaos.asked.AskedTasks",
             "options": {"url": f"http://127.0.0.1:{port}/v1", "n_train": 10, "n_test": 4, "percent": 20, "delay_s": 0.3}})


def test_a_user_endpoint_that_dies_and_comes_back_costs_episodes_that_run_again(undisturbed, policy, tmp_path, service):
    run = Run(config_asking(tmp_path, policy, service.port))
    run.wait_for_step(1)
    service.kill()
    time.sleep(DEAD_S)
    service.start()
    run.finish()
    assert_clean(run.directory)
    assert sum(line["rollouts/lost_environment"] for line in lines(run.directory)) > 0, "nothing was asked while it was dead"
    assert record(run.directory) == record(undisturbed.directory)


def test_a_slow_network_costs_time_and_nothing_else(undisturbed, policy, tmp_path, service):
    with far(service.port) as port:
        run = Run(config_asking(tmp_path, policy, port))
        run.finish()
    assert_clean(run.directory)
    assert record(run.directory) == record(undisturbed.directory)


class far:
    """A proxy on loopback that holds every piece of data back for FAR_S, in either direction; yields its port."""

    def __init__(self, port: int):
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> int:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._connect, "127.0.0.1", 0), self._loop)
        return starting.result(30).sockets[0].getsockname()[1]

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            await asyncio.sleep(FAR_S)
            target.write(data)
        target.close()
