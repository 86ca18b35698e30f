"""What the entry points share: the environment that Ray reads when it is imported, and how errors are shown.

Imports no Ray: `prepare` must run before anything does.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator

from rti.config.keys import ConfigError
from rti.config.schema import ModelConfig, RayConfig
from rti.lab import policy_dir
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


def check_model(config: ModelConfig) -> None:
    """Refuse a policy that is not there before anything starts. A name on a hub is left to those who load it."""
    path = Path(policy_dir() if config.path == "lab" else config.path).expanduser()
    local = config.path == "lab" or path.is_absolute() or config.path.startswith(".") or path.is_dir()
    if local and not (path / "config.json").is_file():
        raise ConfigError(f"model.path is {config.path!r}: there is no Hugging Face directory at {path} (it would hold a "
                          "config.json). Give `lab`, a directory that save_pretrained wrote, or a name like owner/model")


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


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work`; 1 after an error. A mendable error is its message alone; RTI_DEBUG=1 shows where it was raised,
    here and in the actor."""
    debug = bool(os.environ.get("RTI_DEBUG"))
    logging.basicConfig(level=logging.INFO if debug else logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        ours = type(error).__module__.partition(".")[0] == "rti"
        if debug or not ours:
            traceback.print_exc()
        if debug and getattr(error, "where", ""):
            print(error.where, file=sys.stderr)
        if ours:
            hint = "" if debug else "\n(RTI_DEBUG=1 shows where it was raised)"
            print(f"error: {error}{hint}", file=sys.stderr)
        return 1
