"""Loading of models, and the packed forward pass: equal to a forward of each sequence alone."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from rti import modeling
from tests.engines import tiny

MAKERS = {"qwen3": tiny.qwen3, "qwen3-untied": lambda: tiny.qwen3(tied=False, kv_heads=4), "llama": tiny.llama}


def _packed(lengths: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    ids = torch.randint(0, tiny.VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(n) for n in lengths])
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    return ids, positions, bounds


@pytest.mark.parametrize("name", MAKERS)
def test_packed_logits_equal_those_of_each_sequence_alone(name):
    model = MAKERS[name]()
    ids, positions, bounds = _packed([5, 1, 17, 9])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        alone = torch.cat([model(ids[None, a:b]).logits[0] for a, b in zip(bounds, bounds[1:])])
    model.set_attn_implementation(modeling.VARLEN)
    with torch.no_grad():
        packed = modeling.packed_forward(model, ids, positions, torch.tensor(bounds))
        from_positions = model(ids[None], position_ids=positions[None], use_cache=False).logits[0]
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(from_positions, packed, atol=0, rtol=0)


def qwen35():
    config = Qwen3_5TextConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        vocab_size=tiny.VOCAB, linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=16,
        linear_value_head_dim=16)
    torch.manual_seed(0)
    return Qwen3_5ForCausalLM(config).eval()


def test_the_state_of_a_recurrent_layer_does_not_go_from_one_sample_into_the_next(tmp_path):
    plain = qwen35()
    plain.save_pretrained(tmp_path)
    model = modeling.load_model(str(tmp_path), "float32", "cpu")
    ids, positions, bounds = _packed([5, 1, 17, 9])
    with torch.no_grad():
        alone = torch.cat([plain(ids[None, a:b]).logits[0] for a, b in zip(bounds, bounds[1:])])
        packed = modeling.packed_forward(model, ids, positions, bounds)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


def test_gradients_do_not_cross_samples():
    model = tiny.qwen3()
    model.set_attn_implementation(modeling.VARLEN)
    ids, positions, bounds = _packed([6, 7])
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embedded[None], position_ids=positions[None], use_cache=False,
                   segment_bounds=tuple(bounds)).logits[0]
    logits[6:].square().sum().backward()
    assert embedded.grad[:6].abs().max() == 0
    assert embedded.grad[6:].abs().max() > 0


def test_attention_with_a_sliding_window_equals_eager():
    model = tiny.qwen3()
    model.config.layer_types = ["sliding_attention"] * 2
    model.model.has_sliding_layers = True
    model.config.sliding_window = 4
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 4
    ids, positions, bounds = _packed([11])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        reference = model(ids[None]).logits[0]
        model.set_attn_implementation(modeling.VARLEN)
        torch.testing.assert_close(modeling.packed_forward(model, ids, positions, bounds), reference, atol=2e-5, rtol=1e-5)


def test_a_padded_batch_is_refused_rather_than_attended_to():
    model = tiny.qwen3()
    model.set_attn_implementation(modeling.VARLEN)
    with pytest.raises(ValueError, match="packed rows without padding"):
        model(torch.ones(2, 4, dtype=torch.long), attention_mask=torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]]))


@pytest.mark.parametrize("bounds", [[0, 3], [1, 8], [0, 4, 4, 8]])
def test_bounds_that_do_not_cover_the_tokens_are_refused(bounds):
    with pytest.raises(ValueError, match="cu_seqlens"):
        modeling.packed_forward(tiny.qwen3(), torch.arange(8), torch.arange(8), bounds)


def test_a_saved_model_is_loaded_with_the_packed_attention(tmp_path):
    model = tiny.qwen3()
    model.save_pretrained(tmp_path)
    loaded = modeling.load_model(str(tmp_path), torch.float32, "cpu")
    assert loaded.config._attn_implementation == modeling.VARLEN and not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_an_absent_model_is_named(tmp_path):
    with pytest.raises(modeling.ModelNotFound, match="no model at .*/nowhere"):
        modeling.load_model(str(tmp_path / "nowhere"))
    with pytest.raises(modeling.ModelNotFound, match="without a config.json"):
        modeling.load_model(str(tmp_path))


def test_devices_and_dtypes_are_resolved():
    assert modeling.resolve_dtype("auto", "cpu") == torch.float32
    assert modeling.resolve_dtype("bfloat16", "cpu") == torch.bfloat16
    assert modeling.resolve_attention("auto", "cpu") == modeling.VARLEN
    with pytest.raises(ValueError, match="unknown dtype"):
        modeling.resolve_dtype("float8", "cpu")
