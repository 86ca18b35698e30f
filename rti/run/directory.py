"""The run directory: everything that a run leaves behind, and how a resumed run goes on in it.

    config.yaml  metrics.jsonl  ledger.jsonl  trajectories/step-000001.rti  evaluations/step-000000.json
    checkpoints/ tensorboard/  summary.json (at the end)  lock

Keeps invariant 5 on the disk: steps are written once and in order, first the ledger, then the metrics; a resumed run first
cuts off what its checkpoint does not know (`rewind_to`) and refuses where a step that the checkpoint counts is missing.
One process at a time. No torch, no Ray.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence

from rti.config.load import check_resumable, dump, load_run_config
from rti.config.schema import Config
from rti.run import control, metrics, trajectories
from rti.run.files import JsonLines, RecordError, read_json, read_lines, remove_partial, write_atomic, write_json
from rti.run.ledger import LedgerEntry, read_ledger, totals
from rti.run.lock import LOCK, DirectoryLock
from rti.run.tensorboard import TensorBoard
from rti.run.transcript import telling, transcript
from rti.trajectory import Group, Trajectory

CONFIG, METRICS, LEDGER, SUMMARY = "config.yaml", "metrics.jsonl", "ledger.jsonl", "summary.json"
TRAJECTORIES, EVALUATIONS, CHECKPOINTS, TENSORBOARD = "trajectories", "evaluations", "checkpoints", "tensorboard"


class RunDirectory:
    """Open with `RunDirectory.open`; use as a context manager, or close it."""

    def __init__(self, path: Path, config: Config, lock: DirectoryLock, resumed: bool, clock: Callable[[], float]):
        self.path, self.config, self.resumed = path, config, resumed
        self.checkpoints = path / CHECKPOINTS
        self.step = 0                       # the last step written
        self._lock, self._clock = lock, clock
        self._ready = not resumed           # a resumed directory may not be written before rewind_to
        self._wall_before, self._began = 0.0, clock()
        self._metrics, self._ledger = JsonLines(path / METRICS), JsonLines(path / LEDGER)
        self._board: TensorBoard | None = None
        self._purge_step: int | None = None

    @classmethod
    def open(cls, path: str | Path, config: Config, *, resume: bool = True,
             clock: Callable[[], float] = time.monotonic) -> RunDirectory:
        """Lock `path` and begin a run in it, or go on with the one that is there (`resumed` says which).

        With `resume` False an earlier run is moved aside, to the first free `path.1`, `path.2`, ... Raises RunLocked where
        another process is running there, and ConfigError where the configuration changed in a key that may not change and
        the earlier run came to anything.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise RecordError(f"{path} is a file; a run needs a directory: give another name or run_dir")
        _make_private(path)
        lock = DirectoryLock(path)
        try:
            if is_run(path) and not resume:
                _move_aside(path)
                _make_private(path)
                lock.release()
                lock = DirectoryLock(path)
            resumed = is_run(path)
            if resumed:
                before = load_run_config(path)
                if _holds_work(path):
                    check_resumable(before, config)
                control.note_resumed(path, before, config)
            else:
                _refuse_foreign(path)
            for part in (path, path / TRAJECTORIES, path / EVALUATIONS):
                remove_partial(part)
            write_atomic(path / CONFIG, dump(config).encode())
            return cls(path, config, lock, resumed, clock)
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. Everything written is on the disk already."""
        if self._board is not None:
            self._board.close()
            self._board = None
        self._metrics.close()
        self._ledger.close()
        self._lock.release()

    @property
    def wall_s(self) -> float:
        """Seconds that the run has run, without the time between a stop and a resume."""
        return self._wall_before + self._clock() - self._began

    # --- resume --------------------------------------------------------------------------------------------------
    def rewind_to(self, step: int, consumed: Collection[str] | None = None) -> list[LedgerEntry]:
        """Cut the records to what the checkpoint of `step` knows (0: none), and return the ledger that is left.

        `consumed`: the group ids that the checkpoint says were consumed, compared with the ledger's. Raises RecordError
        where the records do not reach as far as the checkpoint; nothing is cut then.
        """
        self._check_reach(step, consumed)
        kept = self._metrics.cut(lambda line: line["step"] <= step)
        self._ledger.cut(lambda line: line["step"] <= step)
        for number, path in trajectories.files(self.path / TRAJECTORIES).items():
            if number > step:
                path.unlink()
        for path in (self.path / EVALUATIONS).glob("step-*.json"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        if not self._ready:     # a run that is rewound while it runs has used the time all the same
            self._wall_before = (kept[-1].get("time/wall_s") or 0.0) if kept else 0.0
            self._began = self._clock()
        self.step, self._ready = step, True
        if self._board is not None:
            self._board.close()
            self._board = None
        self._purge_step = step + 1 if (self.path / TENSORBOARD).is_dir() else None
        return self.ledger()

    def _check_reach(self, step: int, consumed: Collection[str] | None) -> None:
        where = self.path / METRICS
        written = [line.value.get("step") for line in read_lines(where).lines]
        if written[:step] != list(range(1, step + 1)):
            last = next((i for i, s in enumerate(written) if s != i + 1), len(written))
            raise RecordError(f"{where}: its steps are whole up to {last} only, and the checkpoint is of step {step}: "
                              "lines were lost or edited; restore the file, or resume from an earlier checkpoint")
        if consumed is None:
            return
        there = {e.group_id for e in self.ledger() if e.consumed and e.step <= step}
        if there != set(consumed):
            odd = sorted(there.symmetric_difference(consumed))
            raise RecordError(f"{self.path / LEDGER}: ledger and checkpoint of step {step} differ in {len(odd)} consumed "
                              f"groups ({', '.join(odd[:5])}): restore the file, or resume from another checkpoint")

    def ledger(self) -> list[LedgerEntry]:
        return [numbered.entry for numbered in read_ledger(self.path / LEDGER)]

    # --- a step: consume, save_trajectories, log; then its checkpoint -----------------------------------------------
    def consume(self, entries: Sequence[LedgerEntry]) -> None:
        """Put what became of groups into the ledger; on the disk when this returns."""
        self._must_be_ready()
        for entry in entries:
            if entry.step != self.step + 1:
                raise ValueError(f"group {entry.group_id} is entered for step {entry.step}; the next step is {self.step + 1}")
        if entries:
            self._ledger.append(*entries)

    def save_trajectories(self, step: int, groups: Sequence[Group]) -> None:
        """Keep as many of the step's groups as the configuration says."""
        self._must_be_ready()
        kept = trajectories.select(groups, self.config.records.trajectories)
        if kept:
            trajectories.write(trajectories.path_of(self.path / TRAJECTORIES, step), kept)
            self._tell_board(step, telling(kept))

    def log(self, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write a step's metrics, the last act of a step; the line as written, time/wall_s included. Keys are of metrics.py."""
        self._must_be_ready()
        if step != self.step + 1:
            raise ValueError(f"metrics of step {step}; the next step is {self.step + 1}: every step is logged once, in order")
        metrics.check(values)
        line = {"step": step, **metrics.finite({**values, "time/wall_s": self.wall_s})}
        (self.path / SUMMARY).unlink(missing_ok=True)      # of an earlier end, which this step makes untrue
        self._metrics.append(line)
        self.step = step
        self._to_board(step, {k: v for k, v in line.items() if k != "step" and not k.startswith("eval/")})
        return line

    def amend(self, values: Mapping[str, Any]) -> None:
        """Add to the newest line of metrics what a stop kept out of it."""
        self._must_be_ready()
        metrics.check(values)
        self._metrics.amend(metrics.finite(values))

    # --- evaluations and the end -----------------------------------------------------------------------------------
    def save_evaluation(self, step: int, evaluation: Mapping[str, Any]) -> None:
        """Keep an evaluation of the weights after `step` (0: before training)."""
        self._must_be_ready()
        write_json(self.path / EVALUATIONS / f"step-{step:06d}.json", evaluation)
        self._to_board(step, evaluation_metrics(evaluation))

    def evaluation(self, step: int) -> dict[str, Any] | None:
        """The evaluation of the weights after `step`, or None."""
        path = self.path / EVALUATIONS / f"step-{step:06d}.json"
        return read_json(path) if path.is_file() else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._must_be_ready()
        write_json(self.path / SUMMARY, summary)

    def _tell_board(self, step: int, rollout: Trajectory) -> None:
        """One rollout of the step as text: the one that shows most."""
        if (board := self._open_board()) is not None:
            board.text(step, f"rollout/{'rescued' if rollout.intervened else 'plain'}", transcript(rollout))

    def _to_board(self, step: int, values: Mapping[str, Any]) -> None:
        if (board := self._open_board()) is not None:
            board.log(step, values)

    def _open_board(self) -> TensorBoard | None:
        """Opened at its first use; None where the configuration wants none."""
        if self._board is None and self.config.records.tensorboard:
            self._board = TensorBoard(self.path / TENSORBOARD, self._purge_step)
        return self._board

    def _must_be_ready(self) -> None:
        if not self._ready:
            raise RuntimeError(f"{self.path} holds an earlier run: call rewind_to(step of the checkpoint) before writing")


def is_run(path: Path) -> bool:
    """Whether a directory holds a run."""
    return (path / CONFIG).is_file()


def _holds_work(path: Path) -> bool:
    """Whether a run there left more than its configuration. One that a wrong key ended at its start binds nobody to it."""
    return any(p.is_file() and p.stat().st_size and p.name not in (CONFIG, LOCK) for p in path.rglob("*"))


def evaluation_metrics(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The metrics keys of an evaluation summary."""
    out = {f"eval/{k}": evaluation[k] for k in ("p@1", "avg_p@k", "avg_p^k") if evaluation.get(k) is not None}
    by = {f"eval/class/{name}": part["p@1"] for name, part in evaluation.get("by", {}).items() if part.get("p@1") is not None}
    return out | by


def summary(run: RunDirectory, *, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None,
            peak_gb: float, restarts: int) -> dict[str, Any]:
    """summary.json: both evaluations, and what ledger and metrics of the whole run add up to. `peak_gb` and `restarts` are of
    the process that ends now: a step that is taken back leaves no line in the metrics, but its losses were survived."""
    t = totals(run.ledger())
    return {
        "before": before, "after": after, "steps": run.step, "groups_consumed": t.consumed, "groups_trained": t.trained,
        "groups_voided": t.voided, "groups_failed": t.failed, "groups_rescued": t.rescued, "intervened_rollouts": t.intervened,
        "wall_s": round(run.wall_s, 3), "peak_gb": round(peak_gb, 3), "restarts": restarts,
        "endpoints": _endpoints(run.path / METRICS),
    }


def _endpoints(path: Path) -> dict[str, dict[str, int]]:
    """What the whole run asked of endpoints, by role, from the metrics of its steps."""
    total: dict[str, dict[str, int]] = {}
    for line in read_lines(path).lines:
        for key, value in line.value.items():
            if key.startswith("endpoint/"):
                _, field, role = key.split("/", 2)
                of_role = total.setdefault(role, {})
                of_role[field] = of_role.get(field, 0) + value
    return total


def _refuse_foreign(path: Path) -> None:
    """A new run writes only into a directory that is empty or was left by a run that never began."""
    foreign = sorted(p.name for p in path.iterdir() if p.name not in (LOCK, METRICS, LEDGER) and p.suffix != ".partial")
    if foreign:
        raise RecordError(f"{path} holds {', '.join(foreign[:3])} but no {CONFIG}: it is not a run's directory. Give another "
                          "name or run_dir, or empty it")


def _make_private(path: Path) -> None:
    """A run's records are its owner's alone; a directory that is there keeps the rights that it was given."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _move_aside(path: Path) -> Path:
    """Rename an earlier run to the first free name beside it."""
    number = 1
    while (beside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return Path(shutil.move(path, beside))
