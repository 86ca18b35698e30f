"""The viewer in a real Chromium: it loads, filters, unfolds, colours tokens, and runs nothing that a model wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from rti.report.page import write
from tests.report import browser
from tests.report.conftest import HOSTILE

pytestmark = [pytest.mark.skipif(not browser.executable(), reason="no Chromium is installed here (Debian: chromium)"),
              pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def chrome():
    with browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def url(made: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write([made], tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def page(chrome, url: str):
    """The page at 1280 pixels; errors in its script fail the test."""
    opened = chrome.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(url)
    yield opened
    opened.close()
    assert not errors


def visible(page) -> int:
    return page.locator("#list button:visible").count()


def test_filters_narrow_the_list(page) -> None:
    assert visible(page) == 39 and page.inner_text("#count") == "39 of 39"
    page.check("#labels input[value=rescued]")
    assert visible(page) == 3
    page.uncheck("#labels input[value=rescued]")
    page.check("#labels input[value=refused]")
    page.check("#labels input[value=failed]")
    assert visible(page) == 3 and page.inner_text("#count") == "3 of 39"
    page.uncheck("#labels input[value=refused]")
    page.uncheck("#labels input[value=failed]")
    page.fill("#task", "t7")
    assert visible(page) == 5
    page.fill("#task", "plain")
    assert visible(page) == 12
    page.check("#labels input[value=truncated]")
    assert visible(page) == 0


def test_a_rescue_shows_the_struck_draft_beside_the_correction_and_what_was_said_of_it(page) -> None:
    page.check("#labels input[value=rescued]")
    page.locator("#list button:visible").first.click()
    side = page.locator(".beside").first
    assert "direction(" in side.locator("del .struck").last.inner_text()
    assert "line-through" in side.locator("del .struck").last.evaluate("e => getComputedStyle(e).textDecorationLine")
    assert "poi_search(" in side.locator("ins").inner_text()
    notes = page.locator(".note-of").first.inner_text()
    assert "too early" in notes and "lets it pass" in notes and "perplexity" in notes


def test_evidence_is_folded_until_it_is_asked_for(page) -> None:
    secret = page.locator("details.evidence pre")
    assert page.locator("details.evidence summary").is_visible() and not secret.is_visible()
    page.locator("details.evidence summary").click()
    assert secret.is_visible() and "Qingshan" in secret.inner_text()


@pytest.mark.parametrize("by", ["weight", "advantage", "ratio", "logp"])
def test_tokens_are_coloured_by_value(page, by: str) -> None:
    assert page.locator(".tokens").count() == 0
    page.check("#labels input[value=rescued]")
    page.locator("#list button:visible").first.click()
    page.select_option("#colour", by)
    colours = page.locator(".tokens").first.locator("span").evaluate_all(
        "spans => spans.map(s => getComputedStyle(s).backgroundColor)")
    assert len(set(colours)) > 1 or by == "advantage" and len(set(colours)) == 1
    assert page.locator("#legend").is_visible()
    assert by.replace("ratio", "log-ratio").replace("logp", "log-probability") in page.inner_text("#legend")
    page.select_option("#colour", "")
    assert page.locator(".tokens").count() == 0 and not page.locator("#legend").is_visible()


def test_a_script_in_a_reply_is_shown_and_never_run(page) -> None:
    page.fill("#task", "t6")
    page.locator("#list button:visible").filter(has_text="0-6/0").click()
    assert HOSTILE in page.locator(".message.assistant .text").last.text_content()
    assert page.evaluate("window.hacked") is None and page.locator("#shown img, #shown b, #shown script").count() == 0
    page.evaluate("document.getElementById('shown').innerHTML = '<img src=x onerror=\"window.hacked = 1\">'")   # the policy
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None


def test_a_link_opens_its_rollout(page, url: str) -> None:
    page.goto("about:blank")
    page.goto(url + "#0:0-4/i1")
    assert page.locator("#shown h3").inner_text().startswith("0-4/i1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only_and_text_stands_out(chrome, url: str, scheme: str) -> None:
    page = chrome.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light = "e => { const [r, g, b] = getComputedStyle(e).%s.match(/[0-9]+/g).map(Number); return (r + g + b) / 765 }"
    text, ground = (page.locator("body").evaluate(light % of) for of in ("color", "backgroundColor"))
    assert (text < 0.3 and ground > 0.8) if scheme == "light" else (text > 0.7 and ground < 0.2)
    page.close()
