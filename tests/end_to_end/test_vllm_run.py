"""A whole run through Ray with vLLM replicas: real updates while it serves, and records that hold together."""

from __future__ import annotations

import importlib.util

import pytest

from tests.end_to_end.runs import Run, assert_clean, lines, write_config

pytestmark = [
    pytest.mark.vllm, pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="vLLM is not installed; `make smoke-vllm` runs this")]


@pytest.mark.parametrize("staleness", (0, 1))
def test_vllm_replicas_serve_every_new_version_and_agree_with_the_learner(policy, tmp_path, staleness):
    run = Run(write_config(tmp_path, policy, steps=3, generators__engine="vllm", generators__replicas=2 - staleness,
                           async__max_staleness=staleness))
    run.finish()
    steps = lines(run.directory)
    trained = [step for step in steps if step["groups/trained"]]
    assert [step["step"] for step in steps] == [1, 2, 3] and trained
    assert steps[-1]["learner/version"] == len(trained)
    assert all(step["staleness/max"] <= staleness for step in steps)
    if staleness == 0:      # sampled under the very weights that the step begins with: all that is left is rounding
        assert all(step["policy/logp_gap"] < 1e-3 for step in trained)
    assert_clean(run.directory)
