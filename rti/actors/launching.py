"""What the entry points share: the environment that Ray reads when it is imported, and checks before anything starts.

Imports no Ray: `prepare` must run before anything does.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from rti.chat.tokens import check_same_tokens
from rti.config.keys import ConfigError
from rti.config.schema import Config, ModelConfig, RayConfig
from rti.config.teacher import wanted
from rti.control.model_shape import shape_of
from rti.control.placement import machines_of, plan, table
from rti.control.weights_path import choose
from rti.pretrained import resolve
from rti.run.progress import Progress


def prepare(config: RayConfig) -> None:
    """Set what Ray and the actors' processes take from the environment. A local cluster gets a token of its own, known to this
    process and its children alone; one that is joined keeps what the user has set (RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH)."""
    root = str(Path(__file__).resolve().parents[2])         # actors import RTI from where this process does
    rest = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != root]
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *rest])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not cluster_address(config) and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def check_model(config: ModelConfig, key: str = "model.path") -> None:
    """Refuse a model that is not there before anything starts. A name on a hub is left to those who load it."""
    path = Path(resolve(config.path)).expanduser()
    local = path.is_absolute() or config.path.startswith(".") or path.is_dir()
    if local and not (path / "config.json").is_file():
        raise ConfigError(f"{key} is {config.path!r}: there is no Hugging Face directory at {path} (it would hold a "
                          "config.json). Give `lab`, `smollm2`, a directory that save_pretrained wrote, or a name like "
                          "owner/model")


def check_teacher(config: Config) -> None:
    """Refuse a teacher that is not there, or whose tokens are not the policy's, where a setting asks for one. A model that only
    a hub knows is read from there."""
    if not wanted(config):
        return
    check_model(ModelConfig(path=config.teacher.path), "teacher.path")
    check_same_tokens(config.model.path, config.teacher.path)


def dry_run(config: Config) -> str:
    """Where a run would place what, on the hardware that the configuration expects. Starts nothing; raises where it cannot."""
    shape = shape_of(resolve(config.model.path))
    machines = machines_of(config)
    placed = plan(config, machines, shape, teacher=shape_of(resolve(config.teacher.path)) if wanted(config) else None)
    way = choose(config, placed, shape)
    memory = f" of {config.hardware.gpu_gb:g} GB" if machines.total and machines.gpu_bytes else ""
    unchecked = "" if machines.gpu_bytes or not machines.total else "; their memory is not known (hardware.gpu_gb)"
    return (f"{config.name}: {config.model.path} ({shape.parameters / 1e9:.3g} billion parameters), algo={config.algo.name}, "
            f"{config.steps} steps of {config.rollout.groups_per_step} groups of {config.rollout.group_size}\n"
            f"{config.hardware.nodes if machines.total else 0} nodes with GPUs, {machines.total} GPUs{memory}{unchecked}\n"
            f"Memory at the peak, estimated, in GB:\n\n{table(placed)}\n\n"
            f"New weights reach the generators by way of {way.kind} ({way.why}).\n"
            "The configuration is valid and can be placed. Nothing was started.")


def cluster_address(config: RayConfig) -> str:
    """The cluster to join: the configured one, or that of the job this process was submitted as; empty: start a local one."""
    return config.address or os.environ.get("RAY_ADDRESS", "")


class ToProgress(logging.Handler):
    """What is logged goes where the progress display wants lines, so that it does not run through the display."""

    def __init__(self, progress: Progress):
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.note(self.format(record))

    @contextmanager
    def instead_of_stderr(self) -> Iterator[None]:
        """For the loggers of this package, while the display is open."""
        ours = logging.getLogger("rti")
        ours.addHandler(self)
        ours.propagate = False
        try:
            yield
        finally:
            ours.propagate = True
            ours.removeHandler(self)
