"""The lab as it is shipped: the policy plays its three roles through real actors, and its corrections are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.runs import ROOT, Run, assert_clean, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_lab_policy_rescues_groups_that_failed(tmp_path: Path):
    config = tmp_path / "lab.yaml"
    config.write_text((ROOT / "configs/lab.yaml").read_text())
    run = Run(config, "name=tiny", "steps=2", "rollout.groups_per_step=4", "evaluation.before=false", "evaluation.after=false")
    run.finish()
    assert_clean(run.directory)
    total = {key: sum(line[key] for line in lines(run.directory)) for key in (
        "groups/failed", "groups/rescued", "intervention/steps", "intervention/malformed/validator", "intervention/flagged",
        "intervention/accepted")}
    assert total["groups/failed"] >= 2 and total["groups/rescued"] >= 1, total
    assert total["intervention/accepted"] >= 1 and total["intervention/flagged"] >= 1, total
    assert total["intervention/malformed/validator"] <= total["intervention/steps"] / 4, total
