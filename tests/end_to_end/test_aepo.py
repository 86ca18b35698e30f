"""AEPO as a user runs it: branches inside the groups, dynamic sampling around them."""

from __future__ import annotations

import numpy as np
import pytest

from rti.run import trajectories
from rti.trajectory import Source
from tests.end_to_end.runs import Run, assert_clean, lines, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FIELDS = ("token_ids", "behaviour_logps", "versions", "weights", "sources")


def test_groups_hold_branches_and_steps_pass_over_what_teaches_nothing(policy, tmp_path):
    run = Run(write_config(tmp_path, policy, steps=2, algo__name="aepo", algo__dynamic_sampling=3))
    run.finish()
    assert_clean(run.directory)
    steps = lines(run.directory)
    assert all(line["groups/consumed"] == 3 and line["rollouts/plain"] == 12 for line in steps)
    assert 0 < sum(line["groups/passed"] for line in steps) <= 6
    assert all(line["groups/passed"] == 3 or line["groups/trained"] == 3 for line in steps), "a step takes what it can"
    groups = [g for file in trajectories.files(run.directory / "trajectories").values() for g in trajectories.read(file)]
    assert [len(g.members) for g in groups] == [4] * 6
    branches = [(m, g) for g in groups for m in g.members if m.branch is not None]
    assert branches, "no rollout was a branch: the test shows nothing"
    assert sum(line.get("groups/branches", 0) for line in steps) == len(branches), "Luck answers alike, so that none is dropped"
    for member, group in branches:
        assert_shares(member, next(m for m in group.members if m.id == member.branch.parent))


def assert_shares(member, parent):
    """All up to the root is the parent's, bit for bit; what follows is the policy's own."""
    turn = member.branch.turn
    assert 0 < turn < len(member.steps) and member.branch.dropped == "" and member.prompt == parent.prompt
    assert [s.message for s in member.steps[:turn]] == [s.message for s in parent.steps[:turn]]
    own, other = member.samples[0], parent.samples[0]
    shared = 1 + int(np.flatnonzero((own.turns >= 0) & (own.turns < turn)).max())
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(own, field)[:shared], getattr(other, field)[:shared])
    assert (own.sources[own.turns >= turn] == Source.POLICY).all() and (own.turns >= turn).any()
