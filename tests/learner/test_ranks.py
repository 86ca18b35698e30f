"""Two real gloo processes against one: the same loss, gradient, metrics, update and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rti.learner.learner import Learner
from tests.learner.fixtures.groups import make_step, score
from tests.learner.fixtures.launch import run_ranks
from tests.learner.fixtures.models import learner_config
from tests.learner.fixtures.worker import read_groups, write_groups

TUNED = {"pack_tokens": 64, "max_grad_norm": 0.05}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, model_dir: Path):
    """One run of two ranks does everything that these tests look at (starting processes is what costs)."""
    directory = tmp_path_factory.mktemp("ranks")
    groups = write_groups(score(make_step(), model_dir), directory / "groups.rti")
    saved, of_one = directory / "checkpoints" / "step-000001", directory / "of-one" / "step-000001"
    alone = Learner(learner_config(model_dir, **TUNED))
    alone.setup()
    alone.step(read_groups(groups), 1)
    alone.save(of_one, {"from": "one"})
    alone.close()
    actions = {
        "gradient": ["gradient"], "few": ["gradient_of_few"], "different": ["gradient_of_different"], "step1": ["step", 1],
        "weights1": ["weights"], "save": ["save", str(saved)], "step2": ["step", 2], "weights2": ["weights"],
        "load": ["load", str(saved)], "interrupted": ["interrupted_step", 2],
        "step2again": ["step", 2], "weights2again": ["weights"],
        "load_one": ["load", str(of_one)], "weights_of_one": ["weights"], "step2_of_one": ["step", 2],
    }
    ranks = run_ranks(directory, model_dir, groups, list(actions.values()), config=TUNED)
    return [dict(zip(actions, results)) for results in ranks], groups, (saved, of_one)


@pytest.fixture
def one_rank(make_learner, model_dir):
    return make_learner(learner_config(model_dir, **TUNED))


def measured(metrics: dict) -> dict:
    """What must not depend on the number of ranks."""
    packing = ("learner/micro_batches", "learner/padding_share")
    return {k: v for k, v in metrics.items() if not k.startswith("perf/") and k not in packing}


@pytest.mark.parametrize("which, count", [("gradient", None), ("few", 1)])
def test_loss_gradient_and_metrics_do_not_depend_on_the_number_of_ranks(two_ranks, one_rank, which, count):
    ranks, groups, _ = two_ranks
    metrics, gradient = one_rank.gradient(read_groups(groups)[:count])
    for rank in ranks:
        theirs, their_gradient = rank[which]
        assert measured(theirs) == pytest.approx(measured(metrics), abs=1e-5, rel=1e-5)
        for name, g in gradient.items():
            torch.testing.assert_close(their_gradient[name], g, rtol=1e-4, atol=1e-5, msg=name)


def test_all_ranks_report_the_same(two_ranks):
    (first, second), _, _ = two_ranks
    for which in ("step1", "step2"):
        assert {k: v for k, v in first[which].items() if not k.startswith("perf/")} == {
            k: v for k, v in second[which].items() if not k.startswith("perf/")}


def test_updates_equal_those_of_one_rank_and_only_rank_0_gives_weights(two_ranks, one_rank):
    (first, second), groups, _ = two_ranks
    assert second["weights1"] == {}
    metrics = one_rank.step(read_groups(groups), 1)
    assert measured(first["step1"]) == pytest.approx(measured(metrics), abs=1e-5, rel=1e-5)
    assert metrics["learner/grad_norm"] > TUNED["max_grad_norm"]
    for name, weight in one_rank.state_dict_for_engine().items():
        # Adam's first update is lr * sign(gradient): where a gradient is about 0 the sign is noise, hence a bound and a share.
        difference = (first["weights1"][name] - weight).abs()
        assert difference.max() <= 2.1e-3 and (difference > 1e-5).float().mean() < 0.02, name


def test_ranks_that_were_given_different_groups_stop_with_a_message(two_ranks):
    for rank in two_ranks[0]:
        assert "do not hold the same step" in rank["different"]


def test_two_ranks_resume_to_the_same_bits(two_ranks):
    (first, _), _, _ = two_ranks
    assert first["load"] == {"rank_of_writer": 0, "order": [3, 1, 2]}
    assert measured(first["step2again"]) == measured(first["step2"])
    assert all(torch.equal(first["weights2"][k], first["weights2again"][k]) for k in first["weights2"])


def test_an_interrupt_that_rank_0_hears_ends_the_step_of_both_at_the_same_micro_batch(two_ranks):
    """And the step that they run again equals the one of before (test_two_ranks_resume_to_the_same_bits)."""
    (first, second), _, _ = two_ranks
    assert first["interrupted"] == second["interrupted"] == ("step 2 was interrupted; nothing of it was done", 1)
    assert first["step1"]["learner/micro_batches"] > 1


def test_a_checkpoint_of_two_ranks_loads_into_one(two_ranks, one_rank):
    (first, _), groups, (saved, _) = two_ranks
    assert one_rank.load(saved) == {"rank_of_writer": 0, "order": [3, 1, 2]}
    assert one_rank.version == 1
    weights = one_rank.state_dict_for_engine()
    assert all(torch.equal(first["weights1"][k], weights[k]) for k in weights)
    assert measured(one_rank.step(read_groups(groups), 2)) == pytest.approx(measured(first["step2"]), abs=1e-5, rel=1e-4)


def test_a_checkpoint_of_one_rank_loads_into_two(two_ranks, one_rank):
    (first, second), groups, (_, of_one) = two_ranks
    assert first["load_one"] == second["load_one"] == one_rank.load(of_one) == {"from": "one"}
    mine = one_rank.state_dict_for_engine()
    assert all(torch.equal(first["weights_of_one"][k], mine[k]) for k in mine)
    theirs, metrics = first["step2_of_one"], one_rank.step(read_groups(groups), 2)
    assert measured(theirs) == pytest.approx(measured(metrics), abs=1e-5, rel=1e-4)
