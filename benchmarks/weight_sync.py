"""Seconds from a learner step to the last generator that serves its weights, over a memory copy of the same bytes.

    python benchmarks/weight_sync.py [--config lab.yaml] [--rounds 8] [--in-flight 0] [key=value ...]
    python benchmarks/weight_sync.py generators.engine=vllm generators.replicas=2 learner.world_size=2

Prints one JSON object. The actors are a run's own: learner ranks gather the weights into Ray's object store, and every replica
loads them from there; `sync_s` is the median of that whole way, and `gather_s` and `load_s` are its two parts. `copy_s` is the
median of copying as many bytes from one array to another, in turn with the syncs; `ratio` is sync_s / copy_s. `--in-flight N`
keeps N requests of each replica decoding meanwhile; after each sync a token is asked of every replica, which must have the new
version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rti.actors.launching import prepare
from rti.config.load import load
from rti.config.schema import Config
from rti.engines.base import SamplingParams

WARM_UP = 2
PROMPT = np.arange(16, dtype=np.int32)


async def measure(config: Config, rounds: int, in_flight: int, place: Path) -> dict[str, Any]:
    from rti.actors.build import cpus_of
    from rti.actors.cluster import Cluster, Need
    from rti.actors.fleet import Fleet
    from rti.actors.generator import Generator, GeneratorActor
    from rti.actors.learner import LearnerGroup

    cluster = Cluster.connect(config.ray, cpus_of(config, training=True))
    try:
        replicas = [GeneratorActor(f"generator-{i}", cluster.actor(Generator, f"generator-{i}", Need(config.generators.cpus),
                                                                   config), config.ray)
                    for i in range(config.generators.replicas)]
        learner = LearnerGroup(cluster, config, Need(config.learner.cpus), place)
        await cluster.wait({c.name: c for c in replicas} | learner.place())
        await learner.start(None)
        fleet, store = Fleet(replicas), Store(learner)
        await fleet.publish(await store.weights(), 0)
        n_bytes = await store.n_bytes()
        flying = [asyncio.create_task(keep_busy(r, k)) for r in replicas for k in range(in_flight)]
        gather, loading, copy = [], [], []
        for version in range(1, WARM_UP + rounds + 1):
            copy.append(copy_s(n_bytes))
            began = time.perf_counter()
            weights = await store.weights()
            gathered = time.perf_counter()
            await fleet.publish(weights, version)
            loading.append(time.perf_counter() - gathered)
            gather.append(gathered - began)
            await check(replicas, version)
            await asyncio.sleep(0.5 if flying else 0.0)     # the generators decode for a while under each version
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
        return report(gather[WARM_UP:], loading[WARM_UP:], copy[WARM_UP:]) | {"mb": round(n_bytes / 1e6, 1)}
    finally:
        cluster.close()


class Store:
    """The learner's weights in the object store, the last ones let go with the next."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self._weights: Any = None

    async def weights(self) -> Any:
        self._weights = await self._learner.weights()
        return self._weights

    async def n_bytes(self) -> int:
        return sum(array.nbytes for array in (await self._weights).values())


async def keep_busy(replica: Any, seed: int) -> None:
    while True:
        await replica.call("generate", PROMPT, SamplingParams(max_tokens=200, temperature=0.8, seed=seed))
        seed += 1000


async def check(replicas: list[Any], version: int) -> None:
    for replica in replicas:
        reply = await replica.call("generate", PROMPT, SamplingParams(max_tokens=1, seed=version))
        assert reply.versions.tolist() == [version], f"{replica.name} samples with weights {reply.versions}, not {version}"


def copy_s(n_bytes: int) -> float:
    source, target = np.ones(n_bytes, np.uint8), np.zeros(n_bytes, np.uint8)     # both written, so that their pages are there
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


def report(gather: list[float], loading: list[float], copy: list[float]) -> dict[str, float]:
    sync = [a + b for a, b in zip(gather, loading)]
    figures = {"sync_s": statistics.median(sync), "gather_s": statistics.median(gather), "load_s": statistics.median(loading),
               "copy_s": statistics.median(copy)}
    return {k: round(v, 4) for k, v in figures.items()} | {"ratio": round(figures["sync_s"] / figures["copy_s"], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="lab.yaml")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=0)
    parser.add_argument("words", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args()
    config = load(args.config, args.words)
    prepare(config.ray)     # before Ray is imported
    with tempfile.TemporaryDirectory() as place:
        figures = asyncio.run(measure(config, args.rounds, args.in_flight, Path(place)))
    print(json.dumps({"model": config.model.path, "engine": config.generators.engine, "replicas": config.generators.replicas,
                      "ranks": config.learner.world_size, "in_flight": args.in_flight} | figures))


if __name__ == "__main__":
    main()
