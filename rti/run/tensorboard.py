"""Scalars for TensorBoard, written with TensorBoard's own event writer: no torch, no TensorFlow."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Mapping


class TensorBoard:
    """Appends scalars to event files in a directory. `purge_step`: what an earlier writer put there from that step on is
    shown no more (it was cut by a resume)."""

    def __init__(self, directory: Path, purge_step: int | None = None):
        # imported here: a run without TensorBoard files does not pay for protobuf
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(directory))
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start))
            self._writer.flush()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """One event with all finite numbers of `values`; flushed."""
        scalars = [self._summary.Summary.Value(tag=k, simple_value=float(v)) for k, v in values.items()
                   if isinstance(v, (int, float)) and math.isfinite(v)]
        self._writer.add_event(self._event.Event(
            wall_time=time.time(), step=step, summary=self._summary.Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """tag -> (step, value) as TensorBoard would show them, purged steps left out. For the report and the tests."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    shown = {}
    for tag in accumulator.Tags()["scalars"]:
        shown[tag] = [(e.step, e.value) for e in accumulator.Scalars(tag)]
    return shown
