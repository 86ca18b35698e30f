"""Tables against hand-made numbers; every plot is drawn from a study that has its data, and left out where it has none."""

import numpy as np
import pytest
from matplotlib.image import imread

from rti.study import page, plots, tables
from rti.study.plots import LINE, heatmap, mean_curve
from tests.study.made import outcome, study

CURVES = {"pass@G/before": [0.2, 0.5, 0.9], "pass@G/after": [0.5, 0.75, 0.9], "ppl/accepted_mean": [4.0, None, 2.0],
          "intervention/accepted": [5, 0, 2]}
STATISTICS = {"intervention/rollouts": 5, "intervention/steps": 15, "intervention/flagged": 6, "intervention/accepted": 4,
              "successes": 2, "with_accepted": 3, "ppl/accepted_mean": 3.0, "intervention/refused/gate": 2}


@pytest.fixture
def made():
    outcomes = [outcome("base", s, 4, 0, part="base") for s in range(2)]
    outcomes += [outcome("rti", s, 3, 2, curves=CURVES, turns={2: 5, 3: 5}, statistics=STATISTICS,
                         evaluations={6: {"p@1": 0.4, "pass@k": [0.4, 0.6]}, 12: {"p@1": 0.5, "pass@k": [0.5, 0.7]}})
                 for s in range(2)]
    outcomes += [outcome("grpo", s, 4, 0, curves={"pass@G/before": [0.3, 0.3]}, turns={2: 9}) for s in range(2)]
    outcomes += [outcome("no_gate", 0, 4, 1, part="ablations"), outcome("delta_0", 0, 4, 0, part="sweep")]
    return study(outcomes, missing=["opd-0"])


def row(table, name):
    line = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_methods_in_percent_with_their_classes(made):
    cells = row(tables.methods(made), "RTI")
    assert cells[1] == "2" and cells[2].startswith("58.3 [") and cells[-2:] == ["50.0", "75.0"]
    assert "LUFFY" not in tables.methods(made)


def test_ablations_by_k(made):
    assert row(tables.ablations(made), "without the gate")[1:] == [
        "1", "50.0", "66.7", "83.3", "100.0", "50.0", "33.3", "33.3", "33.3"]
    assert row(tables.sweep(made), "delta 0")[2] == "33.3" and row(tables.sweep(made), "delta inf")[2] == "50.0"


def test_what_was_spent_and_what_interventions_did(made):
    assert row(tables.budget(made), "RTI")[1:] == ["2", "16", "12", "1024", "40", "1064", "40", "20", "100"]
    found = tables.interventions(made)
    assert row(found, "intervened rollouts")[1] == "10" and row(found, "flagged by the Validator")[1] == "12 (40.0 %)"
    assert row(found, "accepted")[1] == "8 (66.7 %)" and row(found, "perplexity of accepted corrections")[1] == "3.00"
    assert row(found, "refused: the perplexity gate")[1] == "4"


def test_every_rate_of_the_search_is_listed(made):
    assert row(tables.search(made), "RTI") == ["RTI", "0.250", "0.500", "0.0002"]


def test_the_page_says_what_holds_what_does_not_and_what_is_missing(made):
    text = page.text(made, ["turns.png"])
    assert "**1 entries of the plan are not complete**" in text and "opd-0" in text
    assert "| GRPO stays within 5 points of the base policy | **holds**" in text
    assert "not told" in text and "](turns.png)" in text and "](sweep.png)" not in text


def test_plots_are_drawn_from_what_there_is(made, tmp_path):
    pieces = [("turn 1:", None), ('{"a"', None), ("turn 2 (corrected):", None), *[(" word", 0.8 + i / 50) for i in range(20)]]
    names = plots.draw_all(made, tmp_path, pieces)
    assert names == ["dynamics.png", "perplexity.png", "turns.png", "sweep.png", "weights.png"]
    for name in names:
        image = imread(tmp_path / name)
        assert min(image.shape[:2]) > 100 and image[..., :3].std() > 0.02, f"{name} shows nothing"
    assert plots.draw_all(study([]), tmp_path / "none") == []


def test_the_mean_of_curves_passes_over_what_was_not_measured():
    assert mean_curve([[1.0, None, None], [3.0, 4.0, None, 9.0]])[:2].tolist() == [2.0, 4.0]
    assert np.isnan(mean_curve([[1.0, None], [3.0, None]])[1])


def test_a_text_that_is_longer_than_a_line_goes_on_in_the_next():
    figure = heatmap([("turn 1:", None), ("x" * (2 * LINE + 5), 1.1)])
    assert [len(t.get_text()) for t in figure.axes[0].texts] == [7, LINE, LINE, 5]
