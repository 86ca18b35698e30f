"""Which actor goes on which GPU, and whether it fits: decided before anything starts. Pure: no Ray, no torch.

Keeps field bug 31: what cannot be placed, or cannot fit, is refused with what is asked, what there is, and the mend. `plan` is
the one place that decides how many GPUs an actor asks for; the Ray layer asks for just that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Sequence

from rti.config.keys import ConfigError
from rti.config.schema import Config
from rti.config.teacher import served, wanted
from rti.control.model_shape import ModelShape

GB = 1e9
RESERVE = int(1.5e9)
"""Bytes on a GPU for each process there: the CUDA context, communication buffers, and what the allocator cannot use."""
LOGITS = 1 << 26
"""Logits that the learner computes at once (rti.learner.policy.CHUNK_LOGITS), in float32, with two copies of their kind."""


class DoesNotFit(ConfigError):
    """A configuration that this hardware cannot hold."""


@dataclass(frozen=True)
class Machines:
    """GPUs of each node, and the memory of one in bytes (0: not known, so that no memory is checked)."""

    gpus: tuple[int, ...] = ()
    gpu_bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.gpus)


@dataclass(frozen=True)
class Share:
    """What one actor (or its part in a tensor-parallel group) takes of one GPU; bytes by kind."""

    actor: str
    memory: dict[str, int]
    note: str = ""

    @property
    def total(self) -> int:
        return sum(self.memory.values())


@dataclass(frozen=True)
class Placement:
    """`gpus[i]` are the shares of GPU i. `generator`, `learner`, `teacher`: the GPUs that one actor of the kind asks for."""

    machines: Machines
    generator: float
    learner: float
    teacher: float = 0.0
    gpus: tuple[tuple[Share, ...], ...] = ()
    cpu_actors: dict[str, int] = field(default_factory=dict)
    on_cpu: tuple[Share, ...] = ()      # generators and learner ranks that use no GPU


def machines_of(config: Config) -> Machines:
    """The hardware that the configuration expects."""
    hardware = config.hardware
    return Machines((hardware.gpus_per_node,) * hardware.nodes if hardware.gpus_per_node else (),
                    int(hardware.gpu_gb * GB))


def plan(config: Config, machines: Machines, shape: ModelShape | None = None, *, training: bool = True,
         teacher: ModelShape | None = None) -> Placement:
    """Where every actor goes. Memory is checked where `shape`, and `teacher` where one is used, are given and the machines'
    memory is known. Raises DoesNotFit."""
    kinds = {"generators": config.generators, "learner": config.learner}
    if training and wanted(config):
        kinds["teacher"] = config.teacher.generators
    on_gpu = {kind: _wants_gpu(section.device, machines) for kind, section in kinds.items()}
    asked = {kind: section.world_size * training if kind == "learner" else section.replicas * section.tensor_parallel
             for kind, section in kinds.items() if on_gpu[kind]}
    wide = {kind: section.tensor_parallel for kind, section in kinds.items() if kind != "learner" and on_gpu[kind]}
    share = _share(config, machines, sum(asked.values()), max(wide.values(), default=1), training)
    members = _members(config, shape, teacher, training, on_gpu)
    workers = {"env-worker": config.env_workers.count}
    if training:
        workers |= {"intervener": config.interveners.max, "replay-buffer": 1}
    placed = Placement(
        machines, generator=wide.get("generators", 0) * share, learner=share if asked.get("learner") else 0.0,
        teacher=wide.get("teacher", 0) * share,
        gpus=_assign([m for kind in members if on_gpu[kind] for m in members[kind]], machines, share),
        cpu_actors=workers, on_cpu=tuple(m[0] for kind in members for m in members[kind] if not on_gpu[kind]))
    if shape is not None and machines.gpu_bytes:
        _check_memory(config, placed)
    return placed


def _wants_gpu(device: str, machines: Machines) -> bool:
    return device.startswith("cuda") or device == "auto" and machines.total > 0


def _share(config: Config, machines: Machines, asked: int, wide: int, training: bool) -> float:
    """Of a GPU, for each part that wants one: a whole one where there are enough, else an even share. `wide`: GPUs of the
    widest replica."""
    there = machines.total
    words = f"generators.replicas={config.generators.replicas} x generators.tensor_parallel={config.generators.tensor_parallel}"
    if training:
        words += f", learner.world_size={config.learner.world_size}"
    if training and wanted(config):
        engines = config.teacher.generators
        words += (f", teacher.generators.replicas={engines.replicas} x teacher.generators.tensor_parallel="
                  f"{engines.tensor_parallel}")
    if asked and not there:
        raise DoesNotFit(f"the run asks for {asked} GPUs ({words}), and there is none. Add GPU nodes, or set generators.device "
                         "and learner.device to auto or cpu; for a dry run say what there will be: hardware.gpus_per_node=8")
    if wide > 1 and wide > max(machines.gpus, default=0):
        raise DoesNotFit(f"generators.tensor_parallel={wide}: the GPUs of one replica must be on one node, and the largest has "
                         f"{max(machines.gpus, default=0)}. Lower it")
    if asked <= there:
        return 1.0
    if wide > 1:
        raise DoesNotFit(f"the run asks for {asked} GPUs ({words}) and there are {there}; replicas with tensor parallelism do "
                         "not share GPUs. Lower the counts or add nodes")
    return 1.0 / math.ceil(asked / there)


def _members(config: Config, shape: ModelShape | None, teacher: ModelShape | None, training: bool,
             on_gpu: dict[str, bool]) -> dict[str, list[list[Share]]]:
    """By kind, the actors; each a list of the parts that go on one GPU each."""
    learner = learner_memory(config, shape, cpu=not on_gpu["learner"]) if shape else {}
    members = {"generators": _replicas("generator", config, shape, not on_gpu["generators"]),
               "learner": [[Share(f"learner-{r}", learner)] for r in range(config.learner.world_size if training else 0)]}
    if "teacher" in on_gpu:
        members["teacher"] = _replicas("teacher", served(config), teacher, not on_gpu["teacher"])
    return members


def _replicas(name: str, config: Config, shape: ModelShape | None, cpu: bool) -> list[list[Share]]:
    memory, note = generator_memory(config, shape, cpu=cpu) if shape else ({}, "")
    wide = config.generators.tensor_parallel
    return [[Share(f"{name}-{i}" + (f" ({k + 1}/{wide})" if wide > 1 else ""), memory, note) for k in range(wide)]
            for i in range(config.generators.replicas)]


def _assign(actors: Sequence[list[Share]], machines: Machines, share: float) -> tuple[tuple[Share, ...], ...]:
    """Actors to GPUs, in order; the parts of one actor on one node. Widest first, so that none is left without a node."""
    gpus: list[list[Share]] = [[] for _ in range(machines.total)]
    node_of = [n for n, count in enumerate(machines.gpus) for _ in range(count)]
    room = round(1 / share)
    for parts in sorted(actors, key=lambda p: -len(p)):
        for node in range(len(machines.gpus)):
            free = sorted((i for i, n in enumerate(node_of) if n == node and len(gpus[i]) < room),
                          key=lambda i: (len(gpus[i]), i))
            if len(free) >= len(parts):
                for i, part in zip(free, parts):
                    gpus[i].append(part)
                break
        else:
            name = parts[0].actor.partition(" (")[0]
            raise DoesNotFit(f"{name} needs {len(parts)} free GPUs of one node, and no node has so many left (GPUs of the "
                             f"nodes: {', '.join(map(str, machines.gpus))}). Lower generators.replicas or "
                             "generators.tensor_parallel, or add a node")
    return tuple(tuple(shares) for shares in gpus)


# --- memory ------------------------------------------------------------------------------------------------------
def learner_memory(config: Config, shape: ModelShape, *, cpu: bool = False) -> dict[str, int]:
    """Bytes of one rank at its peak, which is in the backward pass of a later micro-batch: gradients of the earlier ones are
    there already. FSDP2 shards float32 masters, gradients and AdamW's two moments over the ranks; what is gathered is the root
    group and two layers, each with the gradient of its kind."""
    learner, width = config.learner, _width(config, cpu)
    ranks, tokens = learner.world_size, learner.pack_tokens
    sharded = shape.parameters // ranks
    # on one rank in float32 a gathered parameter is still a copy of its shard
    gathered = width * (shape.root + 2 * shape.layer) + (width + 4) * max(shape.root, shape.layer)
    layer = shape.activation_bytes(width)
    kept = shape.layers * shape.hidden * width + layer if learner.activation_checkpointing else shape.layers * layer
    memory = {"parameters": 4 * sharded, "gradients": 4 * sharded, "optimiser": 8 * sharded, "gathered": gathered,
              "activations": tokens * (kept + shape.transient_bytes(width)),
              "logits": 3 * 4 * min(LOGITS, tokens * shape.vocab) + 4 * shape.embedding}
    if config.algo.kl_coef > 0:
        memory["parameters"] += 4 * sharded
    return memory if cpu else memory | {"reserve": RESERVE}


def generator_memory(config: Config, shape: ModelShape, *, cpu: bool = False) -> tuple[dict[str, int], str]:
    """(bytes on one GPU of a replica, how many full episodes its cache holds). vLLM takes generators.gpu_share of the GPU
    whatever it needs; the torch engine grows to what its sequences take."""
    generators, width = config.generators, _width(config, cpu)
    wide, context = generators.tensor_parallel, config.rollout.max_context
    weights = width * shape.parameters // wide
    # a group of key-value heads is not split further than into single heads
    sequence = context * shape.kv_bytes(width) // min(wide, shape.kv_heads) + shape.state_bytes() // wide
    total, reserve = int(config.hardware.gpu_gb * GB), {} if cpu else {"reserve": RESERVE}
    if generators.engine == "vllm" and total and not cpu:
        rest = int(total * generators.gpu_share) - weights - RESERVE
        held = max(0, rest // sequence)
        note = f"holds {held} episodes of {context} tokens"
        return {"parameters": weights, "cache": max(rest, sequence)} | reserve, note
    return ({"parameters": weights, "cache": generators.concurrency * sequence} | reserve,
            f"holds {generators.concurrency} episodes of {context} tokens")


def _width(config: Config, cpu: bool) -> int:
    """Bytes of a number in the compute dtype."""
    return 4 if config.model.dtype == "float32" or config.model.dtype == "auto" and cpu else 2


def _check_memory(config: Config, placed: Placement) -> None:
    total = placed.machines.gpu_bytes
    for i, shares in enumerate(placed.gpus):
        asked = sum(s.total for s in shares)
        if asked > total:
            kinds: dict[str, int] = {}
            for share in shares:
                for kind, size in share.memory.items():
                    kinds[kind] = kinds.get(kind, 0) + size
            parts = ", ".join(f"{kind} {size / GB:.1f}" for kind, size in sorted(kinds.items(), key=lambda k: -k[1]))
            raise DoesNotFit(f"GPU {i} ({' and '.join(s.actor for s in shares)}) would need {asked / GB:.1f} GB and has "
                             f"{total / GB:.1f} (hardware.gpu_gb): {parts}. {_mend(config, shares)}")


def _mend(config: Config, shares: Sequence[Share]) -> str:
    mends = []
    if any(s.actor.startswith("learner") for s in shares):
        if not config.learner.activation_checkpointing:
            mends.append("set learner.activation_checkpointing=true")
        mends += [f"raise learner.world_size above {config.learner.world_size}",
                  f"lower learner.pack_tokens (not below rollout.max_context = {config.rollout.max_context})"]
    if any(s.actor.startswith("teacher") for s in shares):
        mends.append("raise teacher.generators.tensor_parallel (vllm) or lower teacher.generators.concurrency")
    if any(s.actor.startswith("generator") for s in shares):
        mends += ["raise generators.tensor_parallel (vllm)" if config.generators.engine == "vllm" else
                  "lower generators.concurrency", "lower rollout.max_context"]
    if len(shares) > 1:
        mends.append("give each actor a GPU of its own")
    return "To mend: " + "; or ".join(mends)


# --- for people --------------------------------------------------------------------------------------------------
KINDS = ("parameters", "gradients", "optimiser", "gathered", "activations", "logits", "cache", "reserve")


def table(placed: Placement) -> str:
    """The placement as text: a row for each actor on each GPU, memory in GB by kind, then what runs on CPUs."""
    rows = [["GPU", "actor", *KINDS, "total", ""]]
    for i, shares in enumerate(placed.gpus):
        rows += [[str(i), *_cells(s)] for s in shares] or [[str(i), "(free)", *[""] * (len(KINDS) + 2)]]
    rows += [["CPU", *_cells(s)] for s in placed.on_cpu]
    rows += [["CPU", f"{name} x {count}", *[""] * (len(KINDS) + 2)] for name, count in placed.cpu_actors.items()]
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) if c < 2 or c == len(row) - 1 else cell.rjust(w)
                       for c, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows]
    return "\n".join(lines)


def _cells(share: Share) -> list[str]:
    sizes = [f"{share.memory[k] / GB:.1f}" if k in share.memory else "" for k in KINDS]
    return [share.actor, *sizes, f"{share.total / GB:.1f}" if share.memory else "", share.note]
