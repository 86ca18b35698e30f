"""What TensorBoard is given besides scalars: a layout of charts, and a rollout of each step as text."""

from __future__ import annotations

import re
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from rti.run.charts import CHARTS
from rti.run.metrics import is_known
from rti.run.tensorboard import TensorBoard, read_scalars, read_texts
from rti.run.transcript import telling, transcript
from tests.factories import make_group


def test_the_layout_holds_the_charts_by_section(whole: Path) -> None:
    events = EventAccumulator(str(whole / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    assert list(events.PluginTagToContent("custom_scalars")) == ["custom_scalars__config__"]
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert [c.title for c in layout.category] == list(CHARTS)
    logged = read_scalars(whole / "tensorboard")
    tags = [tag for c in layout.category for chart in c.chart for tag in chart.multiline.tag]
    shown = {key for key in logged for tag in tags if re.match(tag, key)}
    assert {"pass@G/before", "pass@G/after", "intervention/refused", "weight/mean", "staleness/max"} <= shown


def test_every_chart_is_of_metrics() -> None:
    assert all(is_known(key) for charts in CHARTS.values() for chart in charts for key, _ in chart.curves)


def test_each_step_tells_one_rollout_the_rescued_one_where_there_is_one(whole: Path) -> None:
    texts = read_texts(whole / "tensorboard")
    assert set(texts) == {"rollout/rescued"} and [step for step, _ in texts["rollout/rescued"]] == [1, 2, 3]
    text = texts["rollout/rescued"][0][1]
    places = [text.index(part) for part in ("[turn 1, draft (replaced)]", "direction(", "[turn 1]", "poi_search(")]
    assert places == sorted(places)
    assert "Validator: too early" in text and "Qingshan" not in text


def test_markup_in_a_text_stays_code(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.text(4, "rollout/plain", "one\n# two <script>")
    board.close()
    assert read_texts(tmp_path) == {"rollout/plain": [(4, "    one\n    # two <script>")]}


def test_a_success_is_told_before_a_failure() -> None:
    failed, mixed = make_group(1, rewards=(0, 0), group_id="0-0"), make_group(2, rewards=(0, 1), group_id="0-1")
    assert telling([failed, mixed]).id == "0-1/1" and telling([failed]).id == "0-0/0"
    assert transcript(telling([failed])).startswith("rollout 0-0/0, task task-0: failed, reward 0, completed")
