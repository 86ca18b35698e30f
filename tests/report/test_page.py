"""The page: it loads nothing, what models wrote stays text, and its figures are those of the records."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rti.config.schema import Config
from rti.report import plots, results, viewer
from rti.report.page import render, write
from rti.report.runs import read_runs, settings
from rti.report.tokens import TokenTexts, turns
from rti.run.charts import CHARTS
from rti.run.findings import NotARun
from tests.factories import make_group, make_trajectory
from tests.report.conftest import HOSTILE
from tests.run.made_run import make_config, make_run

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    return Page(render(read_runs([made])))


def test_the_page_refers_to_nothing_outside_itself(page: Page) -> None:
    assert not {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy


def test_what_a_model_wrote_is_data_and_no_markup(page: Page) -> None:
    assert len(page.scripts) == 2
    items = json.loads(page.scripts[0])["items"]
    said = [turn["said"] for item in items for turn in item["turns"] if turn["said"].get("content") == HOSTILE]
    assert [m["reasoning"] for m in said] == [HOSTILE]
    assert not any(tag in ("b", "i") for tag, _ in page.elements)


def test_a_hostile_configuration_is_escaped(tmp_path: Path) -> None:
    config = make_config()
    config.env.options = {"note": "</td><script>alert(1)</script>"}
    text = render(read_runs([make_run(tmp_path / "<u>run", config=config)]))
    assert len(Page(text).scripts) == 2 and not any(tag == "u" for tag, _ in Page(text).elements)


def test_every_stored_rollout_is_there_with_what_the_intervention_did(page: Page) -> None:
    items = json.loads(page.scripts[0])["items"]
    assert len(items) == 3 * (4 + 4 + 1 + 4)       # of a step: two groups of 4, a rescued one with an attempt in vain
    rescue = next(i for i in items if i["kind"] == "rescue")
    note = rescue["turns"][0]["note"]
    assert rescue["labels"] == ["succeeded", "rescued"] and note["outcome"] == "accepted" and note["verdict"] is True
    assert note["draft"]["calls"][0]["name"] == "direction" and note["correction"]["calls"][0]["name"] == "poi_search"
    assert note["diagnosis"] == "too early" and 0 < note["ppl"] <= 5
    assert "Qingshan" in rescue["evidence"] and len(rescue["turns"][0]["tokens"]["ratio"]) > 0
    assert rescue["advantage"] == pytest.approx((1 - 0.25) / (np.std([1, 0, 0, 0]) + 1e-6), abs=1e-4)
    attempt = next(i for i in items if i["kind"] == "attempt")
    assert attempt["labels"] == ["failed", "refused"] and "advantage" not in attempt


def test_what_does_not_fit_is_said_and_the_newest_are_kept(made: Path) -> None:
    (run,) = read_runs([made])
    everything, full = viewer.collect([run], 25)
    half = sum(map(len, everything)) / 2e6
    shown, full_at = viewer.collect([run], half)
    assert full == {} and full_at == {"made": 2} and shown == everything[:len(shown)] and len(shown) >= 13
    assert sum(map(len, shown)) <= half * 1e6
    assert "made: the page is full at step 2" in render([run], megabytes=half)
    assert json.loads(shown[0])["step"] == 3 and json.loads(shown[0])["rewards"].count(1.0) == 1     # the rescued group first


def test_a_damaged_file_is_named_on_the_page_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    file = path / "trajectories" / "step-000002.rti"
    file.write_bytes(file.read_bytes()[:-5])
    text = render(read_runs([path]))
    assert "step-000002.rti: record 3" in text and len(json.loads(Page(text).scripts[0])["items"]) == 2 * 13


# --- figures -----------------------------------------------------------------------------------------------------
def test_totals_are_those_of_ledger_and_metrics(made: Path) -> None:
    (run,) = read_runs([made])
    table = {label: cells[0] for label, cells in results.totals_table([run])}
    assert table["groups consumed"] == "9" and table["... of them trained on"] == "6"
    assert table["... failed as a whole"] == "6 (67 %)" and table["... rescued"] == "3 (50 % of the failed)"
    steps = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert table["tokens trained on"] == str(sum(s["policy/trained_tokens"] for s in steps))
    assert table["generators idle"] == "-"
    assert dict(results.survived([run]))["groups thrown away as too old"] == ["1"]


def test_the_result_shows_before_and_after_with_intervals(made: Path) -> None:
    table = results.result_table(read_runs([made]))
    assert table["heads"] == ["before", "step 3"]
    assert dict(table["rows"])["p@1"] == [{"value": "25.0", "interval": "20.0 to 30.0"}] * 2
    assert dict(table["rows"])["avg pass^k"][0]["value"] == "10.0" and len(table["classes"]) == 2


def test_settings_are_those_off_their_defaults_and_differences_are_marked(tmp_path: Path, made: Path) -> None:
    config = make_config()
    config.algo.name = "grpo"
    rows = {key: rest for key, *rest in settings(read_runs([made, make_run(tmp_path / "other", config=config)]))}
    assert rows["algo.name"] == [Config().algo.name, [Config().algo.name, "grpo"], True]
    assert rows["rollout.groups_per_step"][1:] == [[3, 3], False]
    assert "name" not in rows and "learner.lr" not in rows


def test_curves_have_unit_and_legend_and_unmeasured_plots_are_left_out(made: Path) -> None:
    runs = read_runs([made])
    passes = next(p for p in CHARTS["Training"] if p.title == "Rollout Pass@G")
    svg = plots.draw(passes, runs)
    assert all(word in svg for word in ("% of the groups", "before intervention", "after", "step", "var(--c0)", "currentColor"))
    assert "#111213" not in svg and " id=\"axes" not in svg and svg == plots.draw(passes, runs)
    idle = next(p for p in CHARTS["System"] if p.title == "Idle")
    assert plots.draw(idle, runs) == ""
    assert "gate" in plots.draw_refusals(runs)


def test_every_key_that_is_drawn_is_a_metric() -> None:
    from rti.run.metrics import is_known
    unknown = [key for section in CHARTS.values() for plot in section for key, _ in plot.curves if not is_known(key)]
    assert not unknown


def test_the_trailing_mean_is_over_what_is_known() -> None:
    values = np.array([1.0, np.nan, 3.0, 5.0, np.nan, np.nan, 7.0])
    naive = [np.nan if np.isnan(v) else np.nanmean(values[max(0, i - 2):i + 1]) for i, v in enumerate(values)]
    np.testing.assert_allclose(plots.trailing_mean(values, 3), naive)


# --- tokens ------------------------------------------------------------------------------------------------------
def test_tokens_that_make_one_character_together_are_one_piece() -> None:
    raw = "a 山 é".encode()                                                        # a token a byte
    texts = TokenTexts(lambda ids: bytes(ids).decode("utf-8", errors="replace"))
    assert texts.pieces(list(raw)) == [("a", 1), (" ", 1), ("山", 3), (" ", 1), ("é", 2)]
    assert texts.pieces(list(raw[:3])) == [("a", 1), (" ", 1), ("\ufffd", 1)]      # cut within a character


def test_a_decoder_that_drops_a_leading_space_loses_none() -> None:
    words = ["Go", " to", " B"]
    texts = TokenTexts(lambda ids: "".join(words[i] for i in ids).removeprefix(" "))
    assert "".join(text for text, _ in texts.pieces([0, 1, 2])) == "Go to B"


def test_values_are_those_of_the_sample() -> None:
    t = make_trajectory(np.random.default_rng(3), turns=(3, 4), corrected=(1,))
    sample, by_turn = t.samples[0], turns(t, TokenTexts(None))
    at = sample.turns == 1
    assert by_turn[0].keys() == {"text", "logp"} and by_turn[1]["text"] == [f"[{i}]" for i in sample.token_ids[at]]
    np.testing.assert_allclose(by_turn[1]["weight"], sample.weights[at], atol=1e-4)
    np.testing.assert_allclose(by_turn[1]["ratio"], (sample.correction_logps - sample.behaviour_logps)[at], atol=1e-4)


def test_a_model_without_a_tokenizer_shows_token_numbers(made: Path, tmp_path: Path) -> None:
    (run,) = read_runs([made])
    run.config.model.path = str(tmp_path / "nowhere")
    shown, _ = viewer.collect([run], 25)
    assert json.loads(shown[0])["turns"][0]["tokens"]["text"][0].startswith("[")


def test_groups_of_forked_samples_have_tokens_for_every_turn() -> None:
    group = make_group(1, rewards=(1, 0), forks=True)
    for item in viewer.items(group, 1, 0, TokenTexts(None)):
        assert all("tokens" in turn for turn in item["turns"])


# --- the command -------------------------------------------------------------------------------------------------
def test_the_command_compares_runs_and_refuses_what_is_none(made: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    command = [sys.executable, str(ROOT / "launch" / "report.py"), str(made), str(other), "--out", str(tmp_path / "two.html")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == str(tmp_path / "two.html"), done.stderr
    text = (tmp_path / "two.html").read_text()
    assert "made: before intervention" in text and "other: before intervention" in text
    with pytest.raises(NotARun, match="is not a directory"):
        write([tmp_path / "none"])


def test_a_report_that_fails_does_not_spoil_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rti.actors.training import _next, _write_report
    assert _write_report(tmp_path) == ""
    assert "could not be written (NotARun" in capsys.readouterr().err
    assert "launch/report.py" in _next(tmp_path, "")
