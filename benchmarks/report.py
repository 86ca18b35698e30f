"""The report with many trajectories: how long writing it takes, and how long a browser takes to show it.

    python benchmarks/report.py [--trajectories 2000] [--rounds 3]

Prints one JSON object. A run of made-up groups of 8 (the tests' factories: five turns of 40 tokens, corrections among them) is
written twice: with its trajectories and without. `write_s` and `write_empty_s` are seconds to write the page; `open_s` and
`open_empty_s` seconds from opening it in a headless Chromium to the viewer's first rollout (without: to the end of loading),
the least of the rounds. `filter_s` is one click on a filter, `select_s` another rollout with its tokens coloured. Without a
Chromium the browser's figures are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))      # the tests' factories

from rti.report.page import write  # noqa: E402
from rti.run.directory import RunDirectory  # noqa: E402
from rti.run.ledger import entry_for  # noqa: E402
from rti.run.statistics import group_metrics  # noqa: E402
from tests.factories import make_group  # noqa: E402
from tests.report import browser  # noqa: E402
from tests.run.made_run import EVIDENCE, make_config  # noqa: E402

PER_STEP, SIZE = 5, 8


def make_run(path: Path, n: int, stored: bool) -> Path:
    config = make_config()
    config.rollout.group_size, config.rollout.groups_per_step = SIZE, PER_STEP
    config.records.trajectories = -1 if stored else 0
    config.steps = -(-n // (PER_STEP * SIZE))
    with RunDirectory.open(path, config) as run:
        for step in range(1, config.steps + 1):
            groups = [make_group(1000 * step + i, rewards=(0,) * SIZE, rescued=i % SIZE, turns=(40,) * 5, evidence=EVIDENCE,
                                 group_id=f"0-{(step - 1) * PER_STEP + i}", task_id=f"t{i}") for i in range(PER_STEP)]
            run.consume([entry_for(g, step=step, learner_version=step) for g in groups])
            run.save_trajectories(step, groups)
            run.log(step, group_metrics(groups, learner_version=step, weight_eps=0.2))
    return path


def timed(work: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def opened(chrome: Any, page: Path, element: str) -> float:
    tab = chrome.new_page()
    took, _ = timed(lambda: (tab.goto(page.as_uri()), element and tab.wait_for_selector(element)))
    tab.close()
    return took


def used(chrome: Any, page: Path) -> dict[str, float]:
    tab = chrome.new_page()
    tab.goto(page.as_uri())
    filter_s, _ = timed(lambda: tab.check("#labels input[value=rescued]"))
    tab.select_option("#colour", "weight")
    select_s, _ = timed(lambda: (tab.locator("#list button:visible").nth(3).click(), tab.wait_for_selector(".tokens span")))
    tab.close()
    return {"filter_s": filter_s, "select_s": select_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs = {"": make_run(Path(place) / "full", args.trajectories, True),
                "empty_": make_run(Path(place) / "empty", args.trajectories, False)}
        write([runs["empty_"]], megabytes=100)     # what is imported and cached once is no part of either
        figures: dict[str, float] = {"trajectories": args.trajectories}
        pages = {}
        for name, run in runs.items():
            figures[f"write_{name}s"], pages[name] = timed(lambda run=run: write([run], megabytes=100))
            figures[f"page_{name}mb"] = pages[name].stat().st_size / 1e6
        if browser.executable():
            with browser.chromium() as chrome:
                for name, element in (("", "#shown h3"), ("empty_", "")):
                    figures[f"open_{name}s"] = min(opened(chrome, pages[name], element) for _ in range(args.rounds))
                figures |= used(chrome, pages[""])
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
