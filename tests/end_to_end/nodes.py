"""A Ray cluster that only its test knows: a head, and nodes that come and go. Ports and token of its own, all on loopback."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

from tests.end_to_end.runs import LIMIT_S, ROOT, descendants

RAY = str(Path(sys.executable).with_name("ray"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Node:
    """`ray start` as a process of its own."""

    def __init__(self, directory: Path, name: str, cpus: int, settings: dict[str, str], *words: str):
        self.text = directory / f"{name}.txt"
        with self.text.open("wb") as out:
            self.process = subprocess.Popen(
                [RAY, "start", "--block", f"--num-cpus={cpus}", "--node-ip-address=127.0.0.1", "--disable-usage-stats",
                 "--dashboard-agent-listen-port=0", *words], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                env={k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | settings, start_new_session=True)

    def actors(self) -> list[str]:
        """Classes of the actors that are there."""
        titles = [title.split(" ")[0] for _, title in descendants(self.process.pid) if title.startswith("ray::")]
        return [title.removeprefix("ray::").partition(".")[0] for title in titles]

    def kill(self) -> None:
        """kill -9 of the raylet: the node is gone, its actors with it."""
        raylets = [pid for pid, title in descendants(self.process.pid) if title.partition(" ")[0].endswith("/raylet")]
        assert len(raylets) == 1, descendants(self.process.pid)
        os.kill(raylets[0], signal.SIGKILL)

    def end(self) -> None:
        """By pid: `ray stop` would end every cluster on the machine."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


class Head(Node):
    """The first node of a cluster. `settings` is what a client needs in its environment."""

    def __init__(self, directory: Path, cpus: int = 2, **settings: str):
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.directory, self._dashboard, port = directory, free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"} | settings
        super().__init__(directory, "head", cpus, self.settings, "--head", f"--port={port}",
                         f"--dashboard-port={self._dashboard}")

    def node(self, name: str, cpus: int) -> Node:
        """One more node. Returns at once."""
        return Node(self.directory, name, cpus, self.settings, f"--address={self.address}")

    def wait(self) -> None:
        """Until it takes drivers."""
        self._wait(lambda: "Ray runtime started" in self.text.read_text())

    def wait_for_jobs(self) -> None:
        """Until it takes jobs."""
        self._wait(lambda: not self.job("list").returncode)

    def _wait(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not there():
            assert self.process.poll() is None, self.text.read_text()
            assert time.monotonic() < deadline, "the head did not come up"
            time.sleep(0.5)

    def store_mb(self) -> float:
        """MB (1e6 bytes) that objects take in the stores of all nodes, as Ray counts them."""
        done = subprocess.run([RAY, "memory", "--stats-only", f"--address={self.address}"], env=self._environment(),
                              capture_output=True, text=True, timeout=LIMIT_S)
        found = re.search(r"Plasma memory usage ([\d.]+) MiB", done.stdout)
        assert found, done.stdout + done.stderr
        return round(float(found[1]) * 2**20 / 1e6, 2)

    def job(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([RAY, "job", verb, "--address", f"http://127.0.0.1:{self._dashboard}", *words],
                              env=self._environment(), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)

    def _environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | self.settings
