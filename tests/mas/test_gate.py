"""The gate and the weights against the formulas, written out token by token."""

import math

import numpy as np
import pytest

from rti.mas import gate


def test_perplexity_is_the_inverse_geometric_mean_of_the_probabilities():
    logps = np.log([0.5, 0.25, 0.125]).astype(np.float32)
    assert gate.perplexity(logps) == pytest.approx((0.5 * 0.25 * 0.125) ** (-1 / 3), rel=1e-6)


def test_weights_are_the_clipped_ratio_per_token():
    rng = np.random.default_rng(3)
    cal, roll = -rng.uniform(0, 3, 50).astype(np.float32), -rng.uniform(0, 3, 50).astype(np.float32)
    for eps in (0.0, 0.2, 1.0):
        expected = [min(max(math.exp(float(c) - float(r)), 1 - eps), 1 + eps) for c, r in zip(cal, roll)]
        got = gate.weights(cal, roll, eps)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_delta_zero_refuses_even_a_certain_rewrite_and_infinity_keeps_an_impossible_one():
    assert not gate.keeps(gate.perplexity(np.zeros(4, np.float32)), 0.0)
    for logps in (np.zeros(4), np.full(4, -1e9), np.full(4, -np.inf), np.array([np.nan]), np.array([])):
        assert gate.keeps(gate.perplexity(logps), math.inf)
        assert not gate.keeps(gate.perplexity(logps), 0.0)


def test_impossible_tokens_give_finite_weights():
    inf = np.float32(-np.inf)
    got = gate.weights(np.array([-1, inf, inf, np.nan], np.float32), np.array([inf, -1, inf, -1], np.float32), 0.2)
    np.testing.assert_allclose(got, [1.2, 0.8, 1.0, 1.0], rtol=1e-6)
