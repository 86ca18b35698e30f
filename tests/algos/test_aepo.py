"""AEPO's loss and gradient against the formulas, written token by token in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rti.algos import load_algorithm
from rti.algos.base import TokenBatch, finish
from rti.config.load import load
from rti.config.schema import AlgoConfig, InterventionConfig
from tests.algos.test_loss import HIGH, LOW, algorithm, micro_batches, random_batch, run

ALPHA, BOUND = 0.3, 0.5


def aepo(**settings):
    config = AlgoConfig(name="aepo", clip_low=LOW, clip_high=HIGH, entropy_advantage=ALPHA, high_entropy=BOUND, **settings)
    return load_algorithm(config, InterventionConfig())


def entropies(n: int, seed: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed + 50).gamma(1.0, 0.8, n), dtype=torch.float32)


def scores(batch: TokenBatch, entropy: torch.Tensor) -> list[float]:
    """z of every token; 0 where it is masked."""
    z = [0.0] * len(entropy)
    for i in set(batch.sequence.tolist()):
        at = [t for t in range(len(z)) if batch.sequence[t] == i and batch.mask[t]]
        mean = math.fsum(float(entropy[t]) for t in at) / len(at)
        std = math.sqrt(math.fsum((float(entropy[t]) - mean) ** 2 for t in at) / len(at))
        for t in at:
            z[t] = (float(entropy[t]) - mean) / std
    return z


def naive(batch: TokenBatch, current: torch.Tensor, entropy: torch.Tensor) -> tuple[float, list[float], int]:
    """(loss, d loss / d current, clipped tokens that keep their gradient)."""
    loss, gradient, kept = [], [], 0
    for t, z in enumerate(scores(batch, entropy)):
        if not batch.mask[t]:
            gradient.append(0.0)
            continue
        rho = math.exp(float(current[t]) - float(batch.behaviour_logps[t]))
        a, scale = float(batch.advantages[t]) * (1 + ALPHA * z), float(batch.scales[t])
        free, bound = rho * a, min(max(rho, 1 - LOW), 1 + HIGH) * a
        slope = free if free <= bound else 0.0
        if rho > 1 + HIGH and z > BOUND and free > bound:
            slope, kept = bound, kept + 1
        loss.append(-scale * min(free, bound))
        gradient.append(-scale * slope)
    return math.fsum(loss), gradient, kept


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_equal_the_formulas(seed):
    batch, current = random_batch(seed=seed, unmasked=0.8)
    entropy = entropies(len(current), seed)
    leaf = current.clone().requires_grad_()
    out = aepo().loss(batch, leaf, entropy)
    out.loss.backward()
    loss, gradient, kept = naive(batch, current, entropy)
    assert kept > 0
    assert out.loss.item() == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-4, atol=1e-9)
    assert finish(out.metrics)["policy/clip_kept"] == pytest.approx(kept / int(batch.mask.sum()))


def test_equal_entropies_without_a_kept_token_are_grpo_to_the_bit():
    batch, current = random_batch(unmasked=0.9)
    plain, plain_gradient = run(algorithm("grpo"), batch, current)
    ours, gradient = run(aepo(), batch, current)        # `run` gives every token the same entropy
    assert torch.equal(plain.loss, ours.loss) and torch.equal(plain_gradient, gradient)


def test_whole_sequences_may_be_split_over_micro_batches():
    batch, current = random_batch(seed=3, unmasked=0.8)
    entropy = entropies(len(current), 3)
    whole = aepo().loss(batch, current, entropy).loss.item()
    parts = [aepo().loss(part, current[at], entropy[at]).loss.item() for at, part in micro_batches(batch, 3)]
    assert sum(parts) == pytest.approx(whole, abs=1e-9)


def test_entropy_carries_no_gradient():
    batch, current = random_batch()
    entropy = entropies(len(current), 0).requires_grad_()
    aepo().loss(batch, current.requires_grad_(), entropy).loss.backward()
    assert entropy.grad is None


def test_the_configuration_names_it_and_what_cannot_be_is_refused():
    config = load("lab.yaml", ["algo=aepo"])
    assert load_algorithm(config.algo, config.intervention).name == "aepo"
    with pytest.raises(ValueError, match="leave algo.ratio at behaviour"):
        aepo(ratio="proximal")
    batch, current = random_batch()
    with pytest.raises(ValueError, match="needs the policy's entropy"):
        aepo().loss(batch, current)
