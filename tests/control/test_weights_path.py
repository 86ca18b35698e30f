"""The way of new weights: what decides it, and what cannot be had."""

import pytest

from rti.config.keys import ConfigError
from rti.config.load import load
from rti.control.model_shape import shape_of
from rti.control.placement import Machines, plan
from rti.control.weights_path import choose, snapshot_bytes

SHAPE = shape_of("Qwen/Qwen3-8B")


def way(*words, gpus=(8,), config="qwen3-8b.yaml", shape=None, **more):
    c = load(config, words)
    return choose(c, plan(c, Machines(gpus)), shape, **more)


def test_vllm_and_a_learner_with_gpus_of_their_own_take_nccl():
    chosen = way(shape=SHAPE)
    assert chosen.kind == "nccl" and chosen.broadcast and "16.4 GB" in chosen.why
    assert snapshot_bytes(load("qwen3-8b.yaml", ()), SHAPE) == 2 * SHAPE.parameters


@pytest.mark.parametrize("words, gpus, why", [
    (("generators.device=cpu", "generators.tensor_parallel=1"), (8,), "generators are not on GPUs"),
    (("learner.device=cpu",), (8,), "the learner is not on a GPU"),
    (("generators.tensor_parallel=1",), (2,), "actors share GPUs"),
    (("hardware.gpu_gb=60",), (8,), "would need"),
])
def test_else_the_object_store_and_nccl_is_refused_with_why_and_mend(words, gpus, why):
    chosen = way(*words, gpus=gpus, shape=SHAPE)
    assert chosen.kind == "object_store" and not chosen.broadcast and why in chosen.why
    with pytest.raises(ConfigError, match=f"generators.weights=nccl cannot be had: .*{why}.*or set generators.weights"):
        way(*words, "generators.weights=nccl", gpus=gpus, shape=SHAPE)


def test_without_nccl_in_torch_it_is_the_object_store():
    assert way(nccl=False).kind == "object_store"


def test_the_torch_engine_takes_nccl_only_where_it_is_asked_for():
    words = ("generators.engine=torch", "generators.tensor_parallel=1")
    assert way(*words).kind == "object_store" and way(*words, "generators.weights=nccl").kind == "nccl"


@pytest.mark.parametrize("asked", ("gloo", "object_store"))
def test_what_needs_no_gpu_is_taken_as_asked(asked):
    assert way(f"generators.weights={asked}", gpus=(), config="lab.yaml").kind == asked
