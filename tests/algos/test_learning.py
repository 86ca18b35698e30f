"""Every algorithm learns a task of two steps: of 16 pairs of actions one is right, and only the pair is rewarded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rti.algos import load_algorithm
from rti.algos.base import TokenBatch
from rti.algos.functional import group_advantages
from rti.config.schema import AlgoConfig, InterventionConfig

RIGHT = (2, 1)
GROUPS, SIZE, STEPS = 8, 8, 150


def logps_of(first: torch.Tensor, second: torch.Tensor, pairs: np.ndarray) -> torch.Tensor:
    """log pi of both actions of every pair, [n, 2]."""
    a, b = torch.from_numpy(pairs[:, 0]), torch.from_numpy(pairs[:, 1])
    return torch.stack([first.log_softmax(-1)[a], second.log_softmax(-1)[a].gather(-1, b[:, None])[:, 0]], -1)


def sample(first: torch.Tensor, second: torch.Tensor, n: int, rng: np.random.Generator) -> np.ndarray:
    p, q = first.softmax(-1).detach().double().numpy(), second.softmax(-1).detach().double().numpy()
    actions = rng.choice(4, n, p=p / p.sum())
    return np.array([(a, rng.choice(4, p=q[a] / q[a].sum())) for a in actions])


def entropies(first: torch.Tensor, second: torch.Tensor, pairs: np.ndarray) -> torch.Tensor:
    """Of the distributions that both actions of every pair were drawn from, [n, 2]."""
    rows = torch.stack([first.expand(len(pairs), 4), second[torch.from_numpy(pairs[:, 0])]], 1).detach()
    return torch.distributions.Categorical(logits=rows).entropy()


def success(first: torch.Tensor, second: torch.Tensor) -> float:
    return (first.softmax(-1)[RIGHT[0]] * second.softmax(-1)[RIGHT[0], RIGHT[1]]).item()


@pytest.mark.parametrize("settings", [
    dict(name="grpo"), dict(name="grpo", advantage_std=False), dict(name="grpo", clip_high=0.4),
    dict(name="grpo", ratio="proximal"), dict(name="gspo", clip_low=3e-4, clip_high=4e-4), dict(name="rti"),
    dict(name="aepo"), dict(name="aepo", entropy_advantage=0.0, high_entropy=0.0),
])
def test_the_pair_that_is_rewarded_is_learnt(settings):
    config = AlgoConfig(**settings)
    which = load_algorithm(config, InterventionConfig())
    rng = np.random.default_rng(0)
    first, second = torch.zeros(4, requires_grad=True), torch.zeros(4, 4, requires_grad=True)
    optimiser = torch.optim.Adam([first, second], lr=0.1)
    assert success(first, second) == pytest.approx(1 / 16)
    for _ in range(STEPS):
        pairs = sample(first, second, GROUPS * SIZE, rng)
        rewards = (pairs == RIGHT).all(-1).astype(float).reshape(GROUPS, SIZE)
        everyone = np.ones(SIZE, dtype=bool)
        advantages = np.concatenate([group_advantages(r, everyone, 1e-6, config.advantage_std) for r in rewards])
        current = logps_of(first, second, pairs).flatten()
        n = len(current)
        batch = TokenBatch(
            mask=torch.ones(n, dtype=torch.bool), behaviour_logps=current.detach(), correction_logps=current.detach(),
            weights=torch.ones(n), intervened=torch.zeros(n, dtype=torch.bool),
            advantages=torch.from_numpy(advantages).float().repeat_interleave(2), scales=torch.full((n,), 1.0 / n),
            sequence=torch.arange(GROUPS * SIZE).repeat_interleave(2))
        optimiser.zero_grad()
        which.loss(batch, current, entropies(first, second, pairs).flatten()).loss.backward()
        optimiser.step()
    assert success(first, second) > 0.9
