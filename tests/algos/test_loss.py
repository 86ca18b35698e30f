"""Loss, gradient and metrics of GRPO and RTI against the formulas, written token by token in float64."""

from __future__ import annotations

import math
from typing import Iterator

import numpy as np
import pytest
import torch

from rti.algos import load_algorithm
from rti.algos.base import LossOutput, Metrics, TokenBatch, finish
from rti.config.schema import AlgoConfig, InterventionConfig

LOW, HIGH, EPS_W = 0.2, 0.28, 0.2


def algorithm(name: str = "rti", kl_coef: float = 0.0, ratio: str = "behaviour", importance_cap: float = 2.0, **intervention):
    config = AlgoConfig(name=name, clip_low=LOW, clip_high=HIGH, kl_coef=kl_coef, ratio=ratio, importance_cap=importance_cap)
    return load_algorithm(config, InterventionConfig(weight_eps=EPS_W, **intervention))


def micro_batches(batch: TokenBatch, sequences: int) -> Iterator[tuple[slice, TokenBatch]]:
    """The first so many sequences, and the rest: where each stands, and it as a batch of its own."""
    cut = int((batch.sequence < sequences).sum())
    for at in (slice(0, cut), slice(cut, None)):
        fields = {k: v[at] for k, v in vars(batch).items()}
        fields["sequence"] = fields["sequence"] - fields["sequence"].min()
        yield at, TokenBatch(**fields)


def random_batch(n: int = 200, seed: int = 0, intervened: float = 0.3,
                 unmasked: float = 1.0) -> tuple[TokenBatch, torch.Tensor]:
    rng = np.random.default_rng(seed)
    current = -rng.uniform(0.05, 3, n)
    behaviour = current + rng.normal(0, 0.3, n)
    correction = behaviour + rng.normal(0, 0.3, n)
    fixed = rng.random(n) < intervened
    weights = np.where(fixed, np.clip(np.exp(correction - behaviour), 1 - EPS_W, 1 + EPS_W), 1)

    def tensor(values) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    batch = TokenBatch(
        mask=torch.tensor(rng.random(n) < unmasked), behaviour_logps=tensor(behaviour), correction_logps=tensor(correction),
        weights=tensor(weights), intervened=torch.tensor(fixed), advantages=tensor(rng.normal(0, 1, n)),
        scales=tensor(rng.uniform(1e-4, 1e-2, n)), reference_logps=tensor(current + rng.normal(0, 0.3, n)),
        sequence=torch.tensor(np.sort(rng.integers(0, 7, n)), dtype=torch.int64),
        from_teacher=torch.zeros(n, dtype=torch.bool), teacher_logps=tensor(behaviour + rng.normal(0, 0.5, n)))
    return batch, tensor(current)


def naive(batch: TokenBatch, current: torch.Tensor, *, rti: bool, kl: float = 0.0, denominator: str = "roll",
          reweight: bool = True, cap: float | None = None) -> tuple[float, list[float]]:
    """(loss, d loss / d current): the formulas, one token at a time, with Python floats."""
    loss, gradient = [], []
    for t in range(len(current)):
        if not batch.mask[t]:
            gradient.append(0.0)
            continue
        fixed = rti and bool(batch.intervened[t])
        old = float(batch.behaviour_logps[t])
        if fixed and denominator != "roll":
            old = 0.0 if denominator == "one" else float(batch.correction_logps[t])
        w = float(batch.weights[t]) if fixed and reweight else 1.0
        a, scale, now = float(batch.advantages[t]), float(batch.scales[t]), float(current[t])
        rho = math.exp(now - old)
        if cap is not None:     # decoupled: the ratio to the proximal policy is 1 at the step's one update
            w, rho = w * min(rho, cap), 1.0
        unclipped, clipped = rho * a, min(max(rho, 1 - LOW), 1 + HIGH) * a
        value = -scale * w * min(unclipped, clipped)
        slope = -scale * w * rho * a if unclipped <= clipped else 0.0
        if kl:
            x = float(batch.reference_logps[t]) - now
            value += kl * scale * (math.exp(x) - x - 1)
            slope += kl * scale * (1 - math.exp(x))
        loss.append(value)
        gradient.append(slope)
    return math.fsum(loss), gradient


def run(which, batch: TokenBatch, current: torch.Tensor) -> tuple[LossOutput, torch.Tensor]:
    current = current.clone().requires_grad_()
    out = which.loss(batch, current, entropy=torch.full_like(current, 0.7))
    out.loss.backward()
    return out, current.grad


@pytest.mark.parametrize("settings", [
    dict(name="grpo"), dict(name="grpo", kl_coef=0.1), dict(name="rti"), dict(name="rti", kl_coef=0.1),
    dict(name="rti", reweight=False), dict(name="rti", denominator="correction"), dict(name="rti", denominator="one"),
    dict(name="grpo", ratio="proximal", importance_cap=1.1), dict(name="rti", ratio="proximal", importance_cap=float("inf")),
])
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_equal_the_formulas(settings, seed):
    batch, current = random_batch(seed=seed, unmasked=0.8)
    out, gradient = run(algorithm(**settings), batch, current)
    loss, slopes = naive(batch, current, rti=settings["name"] == "rti", kl=settings.get("kl_coef", 0),
                         denominator=settings.get("denominator", "roll"), reweight=settings.get("reweight", True),
                         cap=settings["importance_cap"] if "ratio" in settings else None)
    assert out.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-8)
    np.testing.assert_allclose(gradient.numpy(), slopes, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"denominator": "one"}, {"denominator": "correction"}, {"reweight": False}])
def test_without_intervened_tokens_rti_is_grpo_to_the_bit(settings):
    batch, current = random_batch(intervened=0.0, unmasked=0.9)
    rti, rti_gradient = run(algorithm("rti", **settings), batch, current)
    grpo, grpo_gradient = run(algorithm("grpo"), batch, current)
    assert torch.equal(rti.loss, grpo.loss) and torch.equal(rti_gradient, grpo_gradient)
    shared = finish(grpo.metrics)
    assert {k: v for k, v in finish(rti.metrics).items() if k in shared} == shared


def test_unit_weights_are_grpo_to_the_bit():
    batch, current = random_batch()
    rti, rti_gradient = run(algorithm("rti", reweight=False), batch, current)
    grpo, grpo_gradient = run(algorithm("grpo"), batch, current)
    assert torch.equal(rti.loss, grpo.loss) and torch.equal(rti_gradient, grpo_gradient)


def test_weights_carry_no_gradient_and_are_clipped():
    batch, current = random_batch()
    weights = (batch.weights * 5).requires_grad_()
    wild = TokenBatch(**{**vars(batch), "weights": weights})
    out, _ = run(algorithm("rti"), wild, current)
    assert weights.grad is None
    bounded = TokenBatch(**{**vars(batch), "weights": weights.detach().clamp(1 - EPS_W, 1 + EPS_W)})
    assert torch.equal(out.loss, run(algorithm("rti"), bounded, current)[0].loss)
    assert finish(out.metrics)["policy/weight_max"] == pytest.approx(1 + EPS_W)
    assert finish(out.metrics)["policy/weight_clipped"] == 1.0


@pytest.mark.parametrize("name", ["rti", "grpo", "aepo", "opd", "luffy"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf"), 1e30])
def test_a_masked_slot_poisons_nothing(name, poison):
    batch, current = random_batch(unmasked=0.7)
    which = algorithm(name, kl_coef=0.1)
    clean, clean_gradient = run(which, batch, current)

    def spoilt(values: torch.Tensor) -> torch.Tensor:
        return torch.where(batch.mask, values, torch.full_like(values, poison))

    fields = ("behaviour_logps", "correction_logps", "weights", "advantages", "scales", "reference_logps", "teacher_logps")
    bad = TokenBatch(**{**vars(batch), **{f: spoilt(getattr(batch, f)) for f in fields}})
    out, gradient = run(which, bad, spoilt(current))
    assert torch.equal(out.loss, clean.loss) and torch.equal(gradient, clean_gradient)
    assert finish(out.metrics) == finish(clean.metrics)


@pytest.mark.parametrize("name", ["rti", "grpo"])
@pytest.mark.parametrize("n", [0, 5])
def test_an_all_masked_micro_batch_has_loss_zero_and_a_backward(name, n):
    batch, current = random_batch(n, unmasked=0.0)
    out, gradient = run(algorithm(name, kl_coef=0.1), batch, current)
    assert out.loss.item() == 0.0 and (gradient == 0).all()
    assert finish(out.metrics) == {"policy/trained_tokens": 0.0, "policy/loss": 0.0, "policy/reference_kl_term": 0.0} | (
        {"policy/intervened_tokens": 0.0} if name == "rti" else {})


def part(batch: TokenBatch, at: slice) -> TokenBatch:
    return TokenBatch(**{k: v[at] for k, v in vars(batch).items()})


@pytest.mark.parametrize("cuts", [[0, 200], [0, 77, 77, 200], [0, 1, 3, 50, 199, 200]])
def test_metrics_and_loss_add_up_over_any_split(cuts):
    batch, current = random_batch(unmasked=0.8)
    which, total, loss = algorithm("rti", kl_coef=0.1), Metrics(), 0.0
    for a, b in zip(cuts, cuts[1:]):
        out, _ = run(which, part(batch, slice(a, b)), current[a:b])
        total, loss = total.merge(out.metrics), loss + out.loss.item()
    whole, _ = run(which, batch, current)
    assert loss == pytest.approx(whole.loss.item(), abs=1e-12)
    assert finish(total) == pytest.approx(finish(whole.metrics), abs=1e-12)


def test_metrics_equal_a_count_by_hand():
    batch, current = random_batch(unmasked=0.8)
    got = finish(run(algorithm("rti"), batch, current)[0].metrics)
    mask, fixed = batch.mask.numpy(), batch.intervened.numpy()
    log_ratio = (current - batch.behaviour_logps).numpy().astype(np.float64)
    ratio, advantage = np.exp(log_ratio)[mask], batch.advantages.numpy()[mask]
    plain, at = mask & ~fixed, mask & fixed
    expected = {
        "policy/trained_tokens": mask.sum(), "policy/intervened_tokens": at.sum(),
        "policy/ratio_mean": ratio.mean(), "policy/ratio_min": ratio.min(), "policy/ratio_max": ratio.max(),
        "policy/clip_low": ((ratio < 1 - LOW) & (advantage < 0)).mean(),
        "policy/clip_high": ((ratio > 1 + HIGH) & (advantage > 0)).mean(),
        "policy/approx_kl": (np.exp(log_ratio) - log_ratio - 1)[plain].mean(),
        "policy/logp_gap": np.abs(log_ratio)[plain].mean(), "policy/logp_gap_max": np.abs(log_ratio)[plain].max(),
        "policy/entropy": 0.7, "policy/weight_mean": batch.weights.numpy()[at].mean(),
        "policy/weight_min": batch.weights.numpy()[at].min(), "policy/weight_max": batch.weights.numpy()[at].max(),
        "policy/intervened_ratio_mean": np.exp(log_ratio)[at].mean(),
    }
    assert {k: got[k] for k in expected} == pytest.approx(expected, rel=1e-5)


def test_importance_weights_are_measured():
    batch, current = random_batch(unmasked=0.8)
    got = finish(run(algorithm("grpo", ratio="proximal", importance_cap=1.1), batch, current)[0].metrics)
    raw = torch.exp(current - batch.behaviour_logps)[batch.mask].numpy()
    assert got["policy/importance_mean"] == pytest.approx(np.minimum(raw, 1.1).mean(), rel=1e-5)
    assert got["policy/importance_capped"] == pytest.approx((raw > 1.1).mean())
    assert got["policy/ratio_mean"] == pytest.approx(1.0)
    plain = (batch.mask & ~batch.intervened)
    assert got["policy/logp_gap"] == pytest.approx((current - batch.behaviour_logps).abs()[plain].mean().item(), rel=1e-5)


@pytest.mark.parametrize("wrong", [dict(ratio="both"), dict(aggregation="mean")])
def test_unknown_settings_of_the_objective_are_refused(wrong):
    with pytest.raises(ValueError, match="must be one of"):
        load_algorithm(AlgoConfig(name="grpo", **wrong), InterventionConfig())


def test_a_kl_term_without_reference_is_refused():
    batch, current = random_batch()
    with pytest.raises(ValueError, match="reference"):
        algorithm("grpo", kl_coef=0.1).loss(TokenBatch(**{**vars(batch), "reference_logps": None}), current)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="it must be one of grpo"):
        algorithm("ppo")
    with pytest.raises(ValueError, match="roll, correction, one"):
        algorithm("rti", denominator="sum")
