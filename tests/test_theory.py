"""docs/theory.md: the rate and the surcharge that the bound speaks of, and that no measurement lies above it.

The reference is exact: on a quadratic problem the first two moments of every coordinate follow a linear recursion, which is
written here from the problem's statement and shares nothing with the sampled runs of `benchmarks/convergence.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).resolve().parents[1] / "benchmarks" / "convergence.py"
SPEC = importlib.util.spec_from_file_location("convergence", SOURCE)
convergence = importlib.util.module_from_spec(SPEC)
sys.modules["convergence"] = convergence        # dataclasses look their module up
SPEC.loader.exec_module(convergence)
Case = convergence.Case

H, V, START, TILT, EPS = [1.0, 0.7, 0.4, 0.2], 0.6, 0.8, 0.8, 0.2
CASES = [Case(0.0), Case(0.5, eps=2.0), Case(0.25), Case(0.5), Case(1.0)]


def outcomes(lam, eps=EPS):
    """(probability, weight, x) of the four things that a sample can be."""
    found = [((1 - lam) / 2, 1.0, x) for x in (-1, 1)]
    for x, q in ((-1, 1 - TILT), (1, TILT)):
        found.append((lam * q, min(max(0.5 / q, 1 - eps), 1 + eps), x))
    return found


def exact_mean(case, steps):
    """E of the mean of |grad J|^2 over the steps, by recursion over E theta_i and E theta_i^2."""
    eta, total = case.rate(steps), 0.0
    drawn = outcomes(case.lam, case.eps)
    for h in H:
        first, second = START, START ** 2
        for _ in range(steps):
            total += h * h * second
            second = sum(p * ((1 - eta * w * h) ** 2 * second + 2 * (1 - eta * w * h) * eta * w * x * V * first
                              + (eta * w * x * V) ** 2) for p, w, x in drawn)
            first = sum(p * ((1 - eta * w * h) * first + eta * w * x * V) for p, w, x in drawn)
    return total / steps


def floor(lam, eps=EPS):
    """|grad J|^2 where the mean update is zero: what no number of steps takes away."""
    drawn = outcomes(lam, eps)
    weight, pull = sum(p * w for p, w, _ in drawn), sum(p * w * x for p, w, x in drawn)
    return len(H) * (pull / weight * V) ** 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_sampled_runs_are_where_the_exact_moments_are_and_below_the_bound(case):
    found, exact = convergence.measure(case, 400), exact_mean(case, 400)
    assert found.mean == pytest.approx(exact, rel=0.05)
    assert found.mean < case.bound(400) and exact < case.bound(400)
    assert found.farthest < convergence.RADIUS, "outside the ball the constants of the bound do not hold"


@pytest.mark.parametrize("case", [Case(0.0), Case(0.5, eps=2.0)], ids=["no intervention", "exact weights"])
def test_without_a_calibration_error_four_times_the_steps_halve_the_gradient(case):
    means = [exact_mean(case, steps) for steps in (400, 1600, 6400)]
    slopes = np.diff(np.log(means)) / np.log(4)
    assert slopes == pytest.approx([-0.5, -0.5], abs=0.06)
    assert floor(case.lam, case.eps) == pytest.approx(0, abs=1e-12)


def test_the_surcharge_grows_with_the_share_of_intervened_samples_and_with_the_calibration_error():
    by_share = [floor(lam) for lam in (0.125, 0.25, 0.5, 1.0)]
    ratios = np.array(by_share[1:]) / by_share[:-1]
    assert ((ratios > 4) & (ratios < 5)).all(), "as lam^2, and a little more: the weights' mean falls below 1"
    by_error = [(Case(1.0, eps=eps).eps_cal, floor(1.0, eps)) for eps in (1.5, 0.5, 0.2, 0.0)]
    assert by_error == sorted(by_error) and by_error[0][0] == pytest.approx(0) and by_error[-1][1] > by_error[1][1] > 0


def test_a_long_run_ends_on_the_surcharge_and_the_bound_allows_for_it():
    case = Case(1.0)
    assert convergence.measure(case, 3000).last == pytest.approx(floor(1.0), rel=0.1)
    assert floor(1.0) < 3 * (case.lam * case.G * case.eps_cal) ** 2


def test_the_bias_is_what_the_four_outcomes_give():
    case, theta = Case(0.5), np.array([0.3, -0.2, 0.5, 0.1])
    mean = sum(p * w * (-np.array(H) * theta + V * x) for p, w, x in outcomes(0.5))
    np.testing.assert_allclose(case.bias(theta), mean + np.array(H) * theta, atol=1e-12)
    assert np.linalg.norm(case.bias(theta)) <= case.lam * case.G * case.eps_cal
