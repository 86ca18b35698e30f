"""Each rank reads its own shard: the weights that transformers loads, the same loss, in less memory; and what cannot be so."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from rti.learner.learner import Learner
from rti.learner.loading import load_policy
from tests.learner.fixtures.launch import ROOT
from tests.learner.fixtures.models import learner_config, write_model


def rename(directory: Path, change) -> Path:
    """The same weights under other names."""
    file = directory / "model.safetensors"
    save_file({change(k): v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    return directory


def as_bf16_in_parts(directory: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, max_shard_size="60KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 1
    return directory


def loaded(make_learner, directory: Path) -> Learner:
    return make_learner(learner_config(directory))


@pytest.mark.parametrize("tied, change", [
    (True, lambda d: d), (False, lambda d: d), (True, as_bf16_in_parts),
    (False, lambda d: rename(d, lambda k: k.replace("model.", "model.language_model.", 1))),
], ids=["tied", "untied", "bf16_in_parts", "as_in_a_model_that_sees"])
def test_what_is_read_in_shards_is_what_transformers_loads(tmp_path, make_learner, caplog, tied, change):
    directory = write_model(tmp_path / "policy", tied=tied)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    change(directory)
    if change is as_bf16_in_parts:      # rounded
        reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with caplog.at_level(logging.WARNING, logger="rti"):
        learner = loaded(make_learner, directory)
    assert "reads the whole" not in caplog.text
    mine, theirs = learner.state_dict_for_engine(), reference.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert set(theirs) - set(mine) == ({"lm_head.weight"} if tied else set())
    ids = torch.arange(9)
    logps, _ = learner.policy(ids, torch.arange(9), (0, 9), torch.arange(8), ids[1:], torch.ones(8))
    expected = torch.log_softmax(reference(ids[None]).logits[0], -1)[:-1].gather(-1, ids[1:, None])[:, 0]
    torch.testing.assert_close(logps, expected, atol=1e-5, rtol=1e-5)


def test_the_generation_configuration_comes_along(tmp_path, make_learner):
    directory = write_model(tmp_path / "policy")
    GenerationConfig(eos_token_id=[3, 5]).save_pretrained(directory)
    learner = loaded(make_learner, directory)
    learner.export_hf(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [3, 5]


def test_weights_under_names_that_only_transformers_knows_are_read_whole(tmp_path, make_learner, caplog):
    directory = rename(write_model(tmp_path / "policy"), lambda k: k.removeprefix("model."))
    with caplog.at_level(logging.WARNING, logger="rti"):
        learner = loaded(make_learner, directory)
    assert "do not hold model.embed_tokens.weight" in caplog.text
    reference = AutoModelForCausalLM.from_pretrained(write_model(tmp_path / "plain")).state_dict()
    mine = learner.state_dict_for_engine()
    assert mine and all(torch.equal(mine[name], reference[name]) for name in mine)


# --- two ranks ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{way: [what each of two ranks measured]} for a model of 18 million weights, bfloat16 in its file."""
    directory = tmp_path_factory.mktemp("memory")
    config = Qwen3Config(hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=4, head_dim=64, vocab_size=4096, tie_word_embeddings=True, initializer_range=0.05)
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory / "model")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    ranks = [subprocess.Popen([
        sys.executable, "-m", "tests.learner.fixtures.memory", str(directory / "model"), str(directory / "store"), str(rank),
        str(directory / f"{rank}.json")], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=600)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    ranks = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]
    return {way: [rank[way] for rank in ranks] for way in ranks[0]}


@pytest.mark.timeout(900)     # of the fixture, on a machine that is busy
def test_loss_and_gradient_are_those_of_a_model_read_whole(runs):
    for mode in ("shards", "recompute"):
        for one, whole in zip(runs[mode], runs["whole"]):
            assert one["loss"] == pytest.approx(whole["loss"], abs=1e-5)
            assert one["norm"] == pytest.approx(whole["norm"], rel=1e-5)


@pytest.mark.timeout(900)     # of the fixture, on a machine that is busy
def test_reading_shards_takes_less_memory_than_reading_the_whole(runs):
    weights_mb = 17.8 * 4
    for shards, whole in zip(runs["shards"], runs["whole"]):
        assert whole["load_mb"] > weights_mb and shards["load_mb"] < 0.8 * whole["load_mb"]


@pytest.mark.timeout(900)     # of the fixture, on a machine that is busy
def test_activation_checkpointing_takes_less_memory(runs):
    for kept, again in zip(runs["shards"], runs["recompute"]):
        assert again["step_mb"] < 0.8 * kept["step_mb"]
