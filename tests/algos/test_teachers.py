"""OPD's and LUFFY's loss and gradient against the formulas, token by token in float64, and what they learn from a teacher."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rti.algos import load_algorithm
from rti.algos.base import TokenBatch, finish
from rti.algos.functional import group_advantages
from rti.config.load import load
from rti.config.schema import AlgoConfig, InterventionConfig
from tests.algos.test_learning import GROUPS, RIGHT, SIZE, STEPS, logps_of, sample, success
from tests.algos.test_loss import HIGH, LOW, random_batch, run
from tests.factories import make_group


def algorithm(name: str, **settings):
    return load_algorithm(AlgoConfig(name=name, clip_low=LOW, clip_high=HIGH, **settings), InterventionConfig())


def mixed(seed: int) -> tuple[TokenBatch, torch.Tensor]:
    """A batch in which the teacher wrote some of the tokens."""
    batch, current = random_batch(seed=seed, unmasked=0.8)
    return replace(batch, from_teacher=torch.tensor(np.random.default_rng(seed).random(len(current)) < 0.4)), current


def clipped(rho: float, a: float) -> tuple[float, float]:
    """(value, d value / d log rho) of min(rho a, clip(rho) a)."""
    bound = min(max(rho, 1 - LOW), 1 + HIGH) * a
    return (rho * a, rho * a) if rho * a <= bound else (bound, 0.0)


def naive(name: str, batch: TokenBatch, current: torch.Tensor, coef: float = 0.0, with_reward: bool = False,
          gamma: float = 0.0) -> tuple[float, list[float]]:
    """(loss, d loss / d current) with Python floats."""
    values, slopes = [], []
    for t in range(len(current)):
        now, old, scale = float(current[t]), float(batch.behaviour_logps[t]), float(batch.scales[t])
        a = float(batch.advantages[t])
        if not batch.mask[t]:
            value, slope = 0.0, 0.0
        elif name == "luffy" and batch.from_teacher[t]:
            p = math.exp(now)
            value, slope = p / (p + gamma) * a, gamma * p / (p + gamma) ** 2 * a
        else:
            if name == "opd":
                a = coef * (float(batch.teacher_logps[t]) - old) + (a if with_reward else 0.0)
            value, slope = clipped(math.exp(now - old), a)
        values.append(-scale * value)
        slopes.append(-scale * slope)
    return math.fsum(values), slopes


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("coef, with_reward", [(1.0, False), (0.3, False), (0.3, True)])
def test_the_loss_and_gradient_of_opd_equal_the_formula(seed, coef, with_reward):
    batch, current = random_batch(seed=seed, unmasked=0.8)
    if not with_reward:
        batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
    out, gradient = run(algorithm("opd", distill_coef=coef, distill_reward=with_reward), batch, current)
    loss, slopes = naive("opd", batch, current, coef=coef, with_reward=with_reward)
    assert out.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-8)
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-9)
    gap = (batch.behaviour_logps - batch.teacher_logps)[batch.mask].double().mean().item()
    assert finish(out.metrics)["policy/teacher_kl"] == pytest.approx(gap, rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_the_loss_and_gradient_of_luffy_equal_the_formula(seed, gamma):
    batch, current = mixed(seed)
    out, gradient = run(algorithm("luffy", shaping=gamma), batch, current)
    loss, slopes = naive("luffy", batch, current, gamma=gamma)
    assert out.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-8)
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-9)
    measured = finish(out.metrics)
    shown = batch.mask & batch.from_teacher
    assert measured["policy/teacher_tokens"] == shown.sum()
    assert measured["policy/trained_tokens"] == batch.mask.sum(), "the teacher's tokens are trained on as well"
    assert measured["policy/teacher_probability"] == pytest.approx(current[shown].exp().mean().item(), rel=1e-6)


def test_the_teachers_tokens_are_not_clipped():
    """A token far above its denominator gets no gradient from a clipped ratio; from the teacher it keeps f's."""
    batch, current = mixed(0)
    batch = replace(batch, behaviour_logps=current - 3, advantages=torch.ones_like(current))
    _, gradient = run(algorithm("luffy"), batch, current)
    assert (gradient[batch.mask & batch.from_teacher] < 0).all() and (gradient[batch.mask & ~batch.from_teacher] == 0).all()


def test_without_a_teachers_token_luffy_is_grpo_to_the_bit():
    batch, current = random_batch(intervened=0.0, unmasked=0.9)
    luffy, luffy_gradient = run(algorithm("luffy"), batch, current)
    grpo, grpo_gradient = run(algorithm("grpo"), batch, current)
    assert torch.equal(luffy.loss, grpo.loss) and torch.equal(luffy_gradient, grpo_gradient)


def test_the_configurations_are_those_of_the_sources():
    config = load("lab.yaml", ["algo=luffy", "teacher.path=lab"])
    assert config.algo.shaping == 0.1 and config.algo.aggregation == "token" and not config.algo.advantage_std
    which = load_algorithm(config.algo, config.intervention)
    assert which.intervenes and not which.distils
    which = load_algorithm(load("lab.yaml", ["algo=opd", "teacher.path=lab"]).algo, config.intervention)
    assert which.distils and not which.intervenes and which.coef == 1.0


def test_opd_leaves_the_rewards_out_unless_asked():
    group = make_group(0, rewards=(1, 0, 0, 1))
    assert not algorithm("opd").advantages(group).any()
    assert (algorithm("opd", distill_reward=True).advantages(group) == algorithm("grpo").advantages(group)).all()


# --- learning: of 16 pairs of actions the teacher nearly always takes the right one --------------------------------
def teacher() -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.zeros(4), torch.zeros(4, 4)
    first[RIGHT[0]], second[:, RIGHT[1]] = 5.0, 5.0
    return first, second


def flat_batch(pairs: np.ndarray, behaviour: torch.Tensor, advantages: np.ndarray, **more) -> TokenBatch:
    n = 2 * len(pairs)
    return TokenBatch(
        mask=torch.ones(n, dtype=torch.bool), behaviour_logps=behaviour, correction_logps=behaviour, weights=torch.ones(n),
        intervened=torch.zeros(n, dtype=torch.bool), advantages=torch.from_numpy(advantages).float().repeat_interleave(2),
        scales=torch.full((n,), 1.0 / n), sequence=torch.arange(len(pairs)).repeat_interleave(2), **more)


def test_opd_takes_over_the_teachers_actions_without_any_reward():
    which, rng = algorithm("opd"), np.random.default_rng(0)
    first, second = torch.zeros(4, requires_grad=True), torch.zeros(4, 4, requires_grad=True)
    optimiser = torch.optim.Adam([first, second], lr=0.1)
    for _ in range(STEPS):
        pairs = sample(first, second, GROUPS * SIZE, rng)
        current = logps_of(first, second, pairs).flatten()
        batch = flat_batch(pairs, current.detach(), np.zeros(len(pairs)), teacher_logps=logps_of(*teacher(), pairs).flatten())
        optimiser.zero_grad()
        which.loss(batch, current).loss.backward()
        optimiser.step()
    assert success(first, second) == pytest.approx(success(*teacher()), abs=0.02)
    kl = sum((first.softmax(-1) * (first.log_softmax(-1) - teacher()[0].log_softmax(-1))).tolist())
    assert 0 <= kl < 0.02, "at the end the policy is the teacher, its hesitations included"


@pytest.mark.parametrize("name, learns", [("grpo", False), ("luffy", True)])
def test_luffy_learns_what_the_policy_itself_never_finds(name, learns):
    """The right pair begins at a chance of 3e-6: every group fails, and only the teacher's episode shows it."""
    which, rng = algorithm(name), np.random.default_rng(0)
    first, second = torch.zeros(4), torch.zeros(4, 4)
    first[RIGHT[0]], second[:, RIGHT[1]] = -5.0, -5.0
    first.requires_grad_(), second.requires_grad_()
    optimiser = torch.optim.Adam([first, second], lr=0.1)
    for _ in range(STEPS):
        pairs = sample(first, second, GROUPS * SIZE, rng).reshape(GROUPS, SIZE, 2)
        rewards = (pairs == RIGHT).all(-1).astype(float)
        shown = np.zeros((GROUPS, SIZE), dtype=bool)
        if name == "luffy":
            shown[:, 0] = ~rewards.any(-1)
            pairs[shown], rewards[shown] = RIGHT, 1.0
        everyone = np.ones(SIZE, dtype=bool)
        advantages = np.concatenate([group_advantages(r, everyone, 1e-6) for r in rewards])
        pairs = pairs.reshape(-1, 2)
        current = logps_of(first, second, pairs).flatten()
        batch = flat_batch(pairs, current.detach(), advantages,
                           from_teacher=torch.from_numpy(shown.reshape(-1)).repeat_interleave(2))
        optimiser.zero_grad()
        which.loss(batch, current).loss.backward()
        optimiser.step()
    assert (success(first, second) > 0.9) == learns
