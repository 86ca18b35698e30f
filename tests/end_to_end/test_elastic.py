"""A run whose nodes come and go, and whose bounds are changed while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from tests.end_to_end.nodes import Head, Node
from tests.end_to_end.runs import LIMIT_S, ROOT, Run, assert_clean, lines, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FIXED_CPUS = 4      # a generator, a worker, an intervener and the learner fill the head


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """Hears within some seconds that a node is gone."""
    cluster = Head(tmp_path, FIXED_CPUS, RAY_health_check_initial_delay_ms="1000", RAY_health_check_period_ms="1000",
                   RAY_health_check_timeout_ms="2000", RAY_health_check_failure_threshold="3")
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    """What is put in is ended."""
    started: list[Node] = []
    yield started
    for node in started:
        node.end()


def ask(run: Run, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "rti.run.control", str(run.directory), *words], cwd=ROOT, capture_output=True,
                          text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for_sizes(run: Run, workers: int, interveners: int) -> None:
    sizes = {"system/env_workers": workers, "system/interveners": interveners}
    run.wait_until(lambda: any(line.items() >= sizes.items() for line in lines(run.directory)[-1:]), f"step with {sizes}")


def wait_for_actors(run: Run, node: Node) -> None:
    """A worker and an intervener on a node: the head has no room for a second one of either."""
    run.wait_until(lambda: {"EnvWorker", "Intervener"} <= set(node.actors()), "worker and intervener on the node")


def test_a_run_grows_onto_a_node_survives_its_loss_goes_on_on_another_and_shrinks(head, nodes, policy, tmp_path):
    config = write_config(
        tmp_path, policy, steps=10_000, checkpoint__every=1000, ray__address=head.address, generators__cpus=1, learner__cpus=1,
        env_workers={"cpus": 1, "episodes": 4}, interveners={"cpus": 1, "episodes": 1}, env__options__percent=5,
        env__options__delay_s=0.1)
    run = Run(config, ray=head.settings)
    run.wait_for_step(1)
    assert ask(run, "env_workers.max=2", "interveners.max=2") == "taken: env_workers.max=2 interveners.max=2"
    nodes.append(head.node("first", cpus=2))
    wait_for_actors(run, nodes[0])
    wait_for_sizes(run, workers=2, interveners=2)
    nodes[0].kill()
    nodes.append(head.node("second", cpus=2))
    wait_for_actors(run, nodes[1])
    wait_for_sizes(run, workers=2, interveners=2)
    ask(run, "env_workers.max=1", "interveners.max=1")
    wait_for_sizes(run, workers=1, interveners=1)
    run.process.send_signal(signal.SIGTERM)
    run.finish()
    assert_clean(run.directory)
    taken = [json.loads(line)["values"] for line in (run.directory / "control.jsonl").read_text().splitlines()]
    assert taken == [{"env_workers.max": n, "interveners.max": n} for n in (2, 1)]
