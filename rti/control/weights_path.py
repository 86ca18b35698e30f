"""How new weights travel from the learner to the generators: decided from the configuration and the placement. Pure.

NCCL goes from GPU to GPU and needs each end to have a GPU of its own, and room for a snapshot beside the learner: rank 0 keeps
the published weights there, so that a generator that comes late gets what the others got while the learner goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from rti.config.keys import ConfigError
from rti.config.schema import Config
from rti.control.model_shape import ModelShape
from rti.control.placement import GB, Placement, learner_memory

OBJECT_STORE, NCCL, GLOO = "object_store", "nccl", "gloo"


@dataclass(frozen=True)
class WeightsPath:
    """`kind` is one of the three above; `why` is for people."""

    kind: str
    why: str

    @property
    def broadcast(self) -> bool:
        """Whether the learner sends to each generator itself (rti.engines.broadcast)."""
        return self.kind != OBJECT_STORE


def choose(config: Config, placed: Placement, shape: ModelShape | None = None, *, nccl: bool = True) -> WeightsPath:
    """`nccl`: whether torch has it where the learner runs. Room is checked where `shape` is given and hardware.gpu_gb says how
    much there is. Raises ConfigError where generators.weights=nccl cannot be had."""
    asked = config.generators.weights
    if asked in (OBJECT_STORE, GLOO):
        return WeightsPath(asked, f"generators.weights={asked}")
    obstacle = _obstacle(config, placed, shape, nccl)
    if obstacle is None and asked == "auto" and config.generators.engine != "vllm":
        return WeightsPath(OBJECT_STORE, "generators.engine=torch takes them from there unless generators.weights says nccl")
    if obstacle is None:
        return WeightsPath(NCCL, f"learner and generators have GPUs of their own{_room(config, shape)}")
    why, mend = obstacle
    if asked == NCCL:
        raise ConfigError(f"generators.weights=nccl cannot be had: {why}. {mend}, or set generators.weights to auto or "
                          "object_store")
    return WeightsPath(OBJECT_STORE, why)


def snapshot_bytes(config: Config, shape: ModelShape) -> int:
    """Of the weights in the compute dtype of a GPU, whole."""
    return (4 if config.model.dtype == "float32" else 2) * shape.parameters


def _obstacle(config: Config, placed: Placement, shape: ModelShape | None, nccl: bool) -> tuple[str, str] | None:
    """Why NCCL cannot be used, and the mend."""
    for kind, part in (("generators", placed.generator), ("learner", placed.learner)):
        if not part:
            return f"{kind} are not on GPUs" if kind == "generators" else "the learner is not on a GPU", "Give it GPUs"
        if part < 1:
            return ("actors share GPUs, and NCCL takes no two ends on one",
                    "Add GPUs, or lower generators.replicas or learner.world_size")
    if not nccl:
        return "torch has no NCCL where the learner runs", "Install a CUDA build of torch"
    total = int(config.hardware.gpu_gb * GB)
    if shape is not None and total:
        needed = sum(learner_memory(config, shape).values()) + snapshot_bytes(config, shape)
        if needed > total:
            return (f"with a snapshot of {snapshot_bytes(config, shape) / GB:.1f} GB the learner's rank 0 would need "
                    f"{needed / GB:.1f} GB of {total / GB:.1f} (hardware.gpu_gb)",
                    "Raise learner.world_size, or lower learner.pack_tokens")
    return None


def _room(config: Config, shape: ModelShape | None) -> str:
    return f"; a snapshot takes {snapshot_bytes(config, shape) / GB:.1f} GB beside learner-0" if shape is not None else ""
