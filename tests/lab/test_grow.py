"""The larger policy begins as the shipped one: the same tokens, and the same outputs to the bit."""

import pytest
import torch
from transformers import Qwen3ForCausalLM

from rti.chat.tokens import check_same_tokens
from rti.lab import grow, policy_dir


@torch.no_grad()
def test_a_grown_policy_is_larger_and_computes_the_same(tmp_path):
    grow.main(["--out", str(tmp_path / "large"), "--layers", "8"])
    small, large = (Qwen3ForCausalLM.from_pretrained(p, dtype=torch.float32) for p in (policy_dir(), tmp_path / "large"))
    ids = torch.randint(0, 900, (2, 40), generator=torch.Generator().manual_seed(0))
    assert len(large.model.layers) == 8 and large.num_parameters() > 1.4 * small.num_parameters()
    assert torch.equal(small(ids).logits, large(ids).logits)
    check_same_tokens(str(policy_dir()), str(tmp_path / "large"))


def test_its_new_layers_learn():
    large = grow.grown(Qwen3ForCausalLM.from_pretrained(policy_dir(), dtype=torch.float32), 8)
    ids = torch.randint(0, 900, (2, 40), generator=torch.Generator().manual_seed(0))
    large(ids, labels=ids).loss.backward()
    assert all(layer.mlp.down_proj.weight.grad.abs().sum() > 0 for layer in large.model.layers)


def test_fewer_layers_than_there_are_is_refused(tmp_path):
    with pytest.raises(ValueError, match="fewer than the 5.*give 5 or more"):
        grow.main(["--out", str(tmp_path), "--layers", "4"])
