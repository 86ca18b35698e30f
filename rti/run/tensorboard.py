"""Scalars, their layout and texts for TensorBoard, by TensorBoard's own event writer: no torch, no TensorFlow."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any, Mapping

from rti.run.charts import CHARTS


class TensorBoard:
    """Appends scalars and texts to event files in a directory; the tab "custom scalars" shows them by rti.run.charts.
    `purge_step`: what an earlier writer put there from that step on is shown no more (it was cut by a resume)."""

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
        self._put(_LAYOUT_TAG, 0, "custom_scalars", _layout())

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """One event with all finite numbers of `values`; flushed."""
        scalars = [self._summary.Summary.Value(tag=k, simple_value=float(v)) for k, v in values.items()
                   if isinstance(v, (int, float)) and math.isfinite(v)]
        self._add(step, *scalars)

    def text(self, step: int, tag: str, text: str) -> None:
        """A text at a step. It is shown as it is: indented, so that nothing in it is taken for Markdown or HTML."""
        self._put(tag, step, "text", "\n".join(f"    {line}" for line in text.splitlines()).encode())

    def _put(self, tag: str, step: int, plugin: str, content: bytes) -> None:
        """One event with bytes for a plugin of TensorBoard; flushed."""
        from tensorboard.compat.proto import tensor_pb2, tensor_shape_pb2

        shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb2.TensorProto(dtype="DT_STRING", string_val=[content], tensor_shape=shape)
        kind = self._summary.SummaryMetadata
        for_plugin = kind(plugin_data=kind.PluginData(plugin_name=plugin))
        self._add(step, self._summary.Summary.Value(tag=tag, tensor=tensor, metadata=for_plugin))

    def _add(self, step: int, *values: Any) -> None:
        """One event; flushed."""
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


_LAYOUT_TAG = "custom_scalars__config__"      # where the plugin looks for it


def _layout() -> bytes:
    """The charts of rti.run.charts, a category a section."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    def chart(title: str, keys: list[str]) -> Any:
        tags = [f"^{re.escape(key)}$" for key in keys]
        return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))

    categories = [layout_pb2.Category(title=section, chart=[
        chart(f"{c.title} ({', '.join(name for _, name in c.curves)})", [key for key, _ in c.curves]) for c in charts])
        for section, charts in CHARTS.items()]
    return layout_pb2.Layout(category=categories).SerializeToString()


def read_scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """tag -> (step, value) as TensorBoard would show them, purged steps left out. For the report and the tests."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    shown = {}
    for tag in accumulator.Tags()["scalars"]:
        shown[tag] = [(e.step, e.value) for e in accumulator.Scalars(tag)]
    return shown


def read_texts(directory: Path) -> dict[str, list[tuple[int, str]]]:
    """tag -> (step, text) of the texts, as `read_scalars` reads the scalars."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    accumulator.Reload()
    tags = accumulator.PluginTagToContent("text")
    return {tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in accumulator.Tensors(tag)] for tag in tags}
