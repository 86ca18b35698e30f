"""GSPO's loss and gradient against equation 7 of its paper, written sequence by sequence in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rti.algos import load_algorithm
from rti.algos.base import TokenBatch
from rti.config.load import load
from rti.config.schema import AlgoConfig, InterventionConfig
from tests.algos.test_loss import micro_batches, random_batch

LOW, HIGH = 0.03, 0.04      # wide enough for some sequences to be inside


def gspo(**settings):
    return load_algorithm(AlgoConfig(name="gspo", clip_low=LOW, clip_high=HIGH, **settings), InterventionConfig())


def sequences(seed: int) -> tuple[TokenBatch, torch.Tensor]:
    """Seven sequences with an advantage each, the scale of a trajectory's every token, and log-ratios of some percent."""
    batch, current = random_batch(seed=seed, unmasked=0.8)
    rng = np.random.default_rng(seed + 100)
    per = torch.tensor(rng.normal(0, 1, 7), dtype=torch.float32)
    drift = torch.tensor(rng.normal(0, 0.1, 7), dtype=torch.float32)[batch.sequence]
    noise = torch.tensor(rng.normal(0, 0.1, len(current)), dtype=torch.float32)
    count = torch.bincount(batch.sequence, batch.mask.float(), minlength=7)
    fields = vars(batch) | {"advantages": per[batch.sequence], "scales": 1 / (7 * count[batch.sequence]),
                            "behaviour_logps": current - drift - noise}
    return TokenBatch(**fields), current


def naive(batch: TokenBatch, current: torch.Tensor) -> tuple[float, list[float], int]:
    """(loss, d loss / d current, sequences clipped)."""
    loss, gradient, clipped = 0.0, [0.0] * len(current), 0
    for i in range(7):
        at = [t for t in range(len(current)) if batch.sequence[t] == i and batch.mask[t]]
        s = math.exp(math.fsum(float(current[t]) - float(batch.behaviour_logps[t]) for t in at) / len(at))
        a = float(batch.advantages[at[0]])
        free, bound = s * a, min(max(s, 1 - LOW), 1 + HIGH) * a
        loss -= min(free, bound) / 7
        clipped += free > bound
        for t in at:
            gradient[t] = -s * a / (7 * len(at)) if free <= bound else 0.0
    return loss, gradient, clipped


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_equal_the_formula(seed):
    batch, current = sequences(seed)
    current = current.requires_grad_()
    out = gspo().loss(batch, current)
    out.loss.backward()
    loss, gradient, clipped = naive(batch, current.detach())
    assert 0 < clipped < 7
    assert out.loss.item() == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(current.grad.numpy(), gradient, rtol=1e-4, atol=1e-9)


def test_whole_sequences_may_be_split_over_micro_batches():
    batch, current = sequences(3)
    whole = gspo().loss(batch, current).loss.item()
    parts = [gspo().loss(part, current[at]).loss.item() for at, part in micro_batches(batch, 3)]
    assert sum(parts) == pytest.approx(whole, abs=1e-12)


def test_the_configuration_has_the_clip_of_the_paper():
    config = load("lab.yaml", ["algo=gspo"])
    assert (config.algo.clip_low, config.algo.clip_high) == (3e-4, 4e-4)
    which = load_algorithm(config.algo, config.intervention)
    assert which.name == "gspo" and not which.intervenes


def test_a_token_ratio_is_refused():
    with pytest.raises(ValueError, match="leave algo.ratio at behaviour"):
        gspo(ratio="proximal")
