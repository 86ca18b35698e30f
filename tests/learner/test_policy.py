"""Chunked log-probabilities against torch's own autograd over whole logits."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti.learner import policy
from rti.learner.policy import PackedPolicy, TokenLogps


@pytest.mark.parametrize("chunk", [1 << 26, 5 * 31])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_equal_those_over_whole_logits(monkeypatch, chunk, with_bias):
    monkeypatch.setattr(policy, "CHUNK_LOGITS", chunk)
    torch.manual_seed(0)
    n, width, vocab = 23, 16, 31
    hidden, weight = torch.randn(n, width, requires_grad=True), torch.randn(vocab, width, requires_grad=True)
    bias = torch.randn(vocab, requires_grad=True) if with_bias else None
    targets, temperatures, cotangent = torch.randint(0, vocab, (n,)), torch.rand(n) + 0.5, torch.randn(n)
    leaves = [hidden, weight, *([bias] if with_bias else [])]

    logps, entropy = TokenLogps.apply(hidden, weight, bias, targets, temperatures)
    got = torch.autograd.grad((logps * cotangent).sum(), leaves)
    logits = torch.nn.functional.linear(hidden, weight, bias).double() / temperatures[:, None].double()
    whole = torch.log_softmax(logits, -1)
    expected_logps = whole.gather(-1, targets[:, None])[:, 0]
    expected = torch.autograd.grad((expected_logps * cotangent).sum(), leaves)

    torch.testing.assert_close(logps.double(), expected_logps, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(whole.exp() * whole).sum(-1), rtol=0, atol=1e-4)     # only measured
    for g, e in zip(got, expected):
        torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-5)
    assert not entropy.requires_grad


def test_no_positions_give_empty_outputs_and_zero_gradients():
    hidden, weight = torch.randn(0, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    logps, entropy = TokenLogps.apply(hidden, weight, None, torch.zeros(0, dtype=torch.long), torch.zeros(0))
    logps.sum().backward()
    assert logps.shape == entropy.shape == (0,) and (weight.grad == 0).all()


def test_tokens_of_no_probability_leave_the_entropy_finite():
    weight = torch.tensor([[1.0], [-1.0]])
    logps, entropy = TokenLogps.apply(torch.tensor([[300.0]]), weight, None, torch.tensor([0]), torch.ones(1))
    assert logps.item() == 0.0 and entropy.item() == 0.0


def test_a_model_that_caps_its_logits_is_refused():
    model = Qwen3ForCausalLM(Qwen3Config(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
                                         num_key_value_heads=1, head_dim=32, vocab_size=11))
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="final_logit_softcapping=30.0"):
        PackedPolicy(model)
