"""A run submitted to a standing cluster with `ray job submit`, as the documents say."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests.end_to_end.runs import LIMIT_S, ROOT, assert_clean, lines, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RAY = str(Path(sys.executable).with_name("ray"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Head:
    """A cluster of one small node that only this test knows: ports and token of its own."""

    def __init__(self, directory: Path):
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.port, self.directory = free_port(), directory
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        self._out = (directory / "head.txt").open("wb")
        self._process = subprocess.Popen(
            [RAY, "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1", f"--port={free_port()}",
             f"--dashboard-port={self.port}", "--dashboard-agent-listen-port=0", "--disable-usage-stats"],
            cwd=ROOT, env=self.environment, stdout=self._out, stderr=subprocess.STDOUT, start_new_session=True)

    def wait(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while self.job("list").returncode:
            assert self._process.poll() is None, (self.directory / "head.txt").read_text()
            assert time.monotonic() < deadline, "the head did not come up"
            time.sleep(1)

    def job(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([RAY, "job", verb, "--address", f"http://127.0.0.1:{self.port}", *words], env=self.environment,
                              cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)

    def end(self) -> None:
        """By pid: `ray stop` would end every cluster on the machine."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._out.close()


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    cluster = Head(tmp_path)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.end()


def test_a_submitted_job_trains_on_the_cluster_that_it_was_submitted_to(head, policy, tmp_path):
    config = write_config(tmp_path, policy, steps=2)
    run_dir = tmp_path / "submitted"
    done = head.job("submit", "--", sys.executable, "launch/rti.py", "--config", str(config), f"run_dir={run_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout and "step 2/2" in done.stdout
    assert len(lines(run_dir)) == 2
    assert_clean(run_dir)
