"""The plan's estimate of a learner's memory against what a real learner takes, on a CPU in float32, one rank.

Stated tolerance: the estimate is between 0.9 and 1.25 times the measured growth of the process, without libraries and without
what an allocator keeps of freed memory: both are in the reserve of a plan for a GPU. Two models: once most of it grows with
the parameters, once with the tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti.config.schema import Config
from rti.control.model_shape import shape_of
from rti.control.placement import learner_memory
from tests.learner.fixtures.launch import ROOT

LOW, HIGH = 0.9, 1.25


def write(directory, **sizes):
    config = Qwen3Config(num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=False,
                         max_position_embeddings=8192, **sizes)
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return {"wide": write(place / "wide", hidden_size=768, intermediate_size=2304, num_hidden_layers=6, vocab_size=8192),
            "deep": write(place / "deep", hidden_size=256, intermediate_size=768, num_hidden_layers=12, vocab_size=1024),
            "small": write(place / "small", hidden_size=32, intermediate_size=64, num_hidden_layers=2, vocab_size=64)}


@pytest.mark.slow
@pytest.mark.parametrize("name, tokens, recompute", [("wide", 256, False), ("deep", 2048, False), ("deep", 2048, True)])
def test_the_estimate_is_near_the_peak_of_a_real_learner(models, name, tokens, recompute):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-m", "tests.learner.fixtures.peak", str(models["small"]), str(models[name]),
                           str(tokens), str(int(recompute))], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])["bytes"]
    config = Config()
    config.learner.pack_tokens, config.learner.activation_checkpointing = tokens, recompute
    parts = learner_memory(config, shape_of(str(models[name])), cpu=True)
    said = {kind: f"{size / 1e6:.0f}" for kind, size in parts.items()}
    print(f"{name}, recompute {recompute}: estimate over measured {sum(parts.values()) / measured:.2f}")
    assert LOW < sum(parts.values()) / measured < HIGH, f"estimated {said}, measured {measured / 1e6:.0f} MB"
