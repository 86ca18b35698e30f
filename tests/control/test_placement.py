"""Plans: which actor on which GPU, what is refused and how it is mended, and dimensions against transformers' own models."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config

from rti.config.keys import ConfigError
from rti.config.load import load
from rti.config.schema import Config
from rti.control.model_shape import NAMED, shape_of
from rti.control.placement import LOGITS, DoesNotFit, Machines, learner_memory, plan, table
from rti.learner.policy import CHUNK_LOGITS

EIGHT = Machines((8,), int(80e9))


def sized(replicas=1, wide=1, ranks=1, device="cuda", engine="vllm"):
    config = Config()
    config.generators.replicas, config.generators.tensor_parallel, config.generators.engine = replicas, wide, engine
    config.generators.device = config.learner.device = device
    config.learner.world_size = ranks
    return config


def names(placed):
    return [[share.actor for share in gpu] for gpu in placed.gpus]


# --- who goes where ----------------------------------------------------------------------------------------------
def test_parts_of_a_replica_share_a_node_and_ranks_take_what_is_left():
    placed = plan(sized(replicas=1, wide=4, ranks=4), Machines((8,)))
    assert names(placed) == [[f"generator-0 ({i}/4)"] for i in (1, 2, 3, 4)] + [[f"learner-{r}"] for r in range(4)]
    assert (placed.generator, placed.learner) == (4, 1)


def test_a_wide_replica_goes_where_its_node_has_room():
    placed = plan(sized(replicas=2, wide=3, ranks=2), Machines((4, 4)))
    nodes = [{n for n, gpus in enumerate((names(placed)[:4], names(placed)[4:])) for g in gpus for a in g
              if a.startswith(f"generator-{i}")} for i in range(2)]
    assert nodes == [{0}, {1}]


def test_where_gpus_are_fewer_than_parts_each_gets_an_even_share():
    placed = plan(sized(replicas=2, ranks=2), Machines((2,)))
    assert names(placed) == [["generator-0", "learner-0"], ["generator-1", "learner-1"]]
    assert (placed.generator, placed.learner) == (0.5, 0.5)
    assert plan(sized(replicas=2, ranks=1), Machines((1,))).generator == pytest.approx(1 / 3)


def test_without_gpus_auto_means_cpu():
    placed = plan(sized(device="auto"), Machines())
    assert (placed.generator, placed.learner, placed.gpus) == (0, 0, ())
    assert [share.actor for share in placed.on_cpu] == ["generator-0", "learner-0"]


def test_an_evaluation_places_no_learner():
    placed = plan(sized(), Machines((1,)), training=False)
    assert names(placed) == [["generator-0"]] and placed.generator == 1 and placed.learner == 0
    assert placed.cpu_actors == {"env-worker": 1}


@pytest.mark.parametrize("config, machines, said", [
    (sized(wide=4, ranks=8), Machines((8,)), r"asks for 12 GPUs .*tensor_parallel=4.*there are 8.*do not share"),
    (sized(wide=16), Machines((8, 8, 8)), "tensor_parallel=16.*on one node, and the largest has 8"),
    (sized(wide=3, replicas=2), Machines((4, 2, 2)), r"generator-1 needs 3 free GPUs of one node.*4, 2, 2"),
    (sized(), Machines(), "asks for 2 GPUs.*there is none.*hardware.gpus_per_node=8"),
])
def test_what_cannot_be_placed_is_refused_with_what_is_asked_and_there(config, machines, said):
    with pytest.raises(DoesNotFit, match=said):
        plan(config, machines)


# --- memory ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3.5-9b", "navigation"])
def test_the_shipped_cluster_configurations_fit_eight_gpus_of_80_gb(name):
    config = load(f"{name}.yaml")
    placed = plan(config, EIGHT, shape_of(config.model.path))
    assert all(sum(s.total for s in gpu) <= 80e9 for gpu in placed.gpus) and len(placed.gpus) == 8
    assert (config.generators.tensor_parallel, config.learner.world_size) == (4, 4)
    text = table(placed)
    assert "generator-0 (4/4)" in text and "learner-3" in text and "episodes of 16384 tokens" in text


@pytest.mark.parametrize("word, kind, mend", [
    ("learner.activation_checkpointing=false", "activations", "learner.activation_checkpointing=true"),
    ("learner.world_size=1", "optimiser", "raise learner.world_size above 1"),
    ("learner.pack_tokens=131072", "activations", "lower learner.pack_tokens"),
])
def test_a_learner_that_cannot_fit_is_refused_with_the_largest_part_and_the_mend(word, kind, mend):
    config = load("qwen3-8b.yaml", [word])
    with pytest.raises(DoesNotFit) as refused:
        plan(config, EIGHT, shape_of(config.model.path))
    assert f"hardware.gpu_gb): {kind} " in str(refused.value) and mend in str(refused.value)


def test_a_cache_that_holds_no_episode_is_refused():
    config = load("qwen3-8b.yaml", ["generators.tensor_parallel=1", "generators.gpu_share=0.25"])
    with pytest.raises(DoesNotFit, match="generator-0.*tensor_parallel"):
        plan(config, Machines((8,), int(18e9)), shape_of(config.model.path))


def test_more_ranks_need_less_each_and_checkpointing_keeps_less():
    shape, config = shape_of("Qwen/Qwen3-8B"), load("qwen3-8b.yaml")
    four = learner_memory(config, shape)
    config.learner.world_size = 8
    eight = learner_memory(config, shape)
    assert eight["optimiser"] == four["optimiser"] // 2 and eight["activations"] == four["activations"]
    config.learner.activation_checkpointing = False
    assert learner_memory(config, shape)["activations"] > 10 * eight["activations"]


def test_a_teacher_has_gpus_of_its_own_and_memory_of_its_own_model():
    words = ["algo=opd", "teacher.path=Qwen/Qwen3.5-9B", "teacher.generators.engine=vllm",
             "teacher.generators.tensor_parallel=2"]
    config, shape, other = load("qwen3-8b.yaml", words), shape_of("Qwen/Qwen3-8B"), shape_of("Qwen/Qwen3.5-9B")
    without = plan(load("qwen3-8b.yaml"), EIGHT, shape)
    with pytest.raises(DoesNotFit, match="teacher.generators.replicas=1 x teacher.generators.tensor_parallel=2"):
        plan(config, EIGHT, shape, teacher=other)
    placed = plan(config, Machines((8, 8), EIGHT.gpu_bytes), shape, teacher=other)
    shares = [s for gpu in placed.gpus for s in gpu]
    mine = [s for s in shares if s.actor.startswith("teacher-0")]
    assert placed.teacher == len(mine) == 2 and without.teacher == 0
    assert mine[0].memory["parameters"] == 2 * other.parameters // 2
    assert [s for s in shares if s not in mine] == [s for gpu in without.gpus for s in gpu]
    assert not plan(config, Machines((8, 8)), training=False).teacher, "an evaluation asks no teacher"


def test_the_chunk_of_logits_is_the_learners():
    assert LOGITS == CHUNK_LOGITS


# --- dimensions --------------------------------------------------------------------------------------------------
def parameters_of(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


SMALL = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "vocab_size": 501}


@pytest.mark.parametrize("config", [
    *(AutoConfig.for_model(**dimensions) for dimensions in NAMED.values()), LlamaConfig(**SMALL), Qwen2Config(**SMALL),
    LlamaConfig(**SMALL, tie_word_embeddings=True), AutoConfig.for_model("qwen3", **SMALL, head_dim=32)],
    ids=lambda c: f"{c.model_type}-{c.hidden_size}")
def test_parameters_are_counted_as_transformers_makes_them(config, tmp_path):
    config.save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)).parameters == parameters_of(config)


def test_a_table_entry_and_a_config_file_give_the_same_shape(tmp_path):
    for name, dimensions in NAMED.items():
        (tmp_path / "config.json").write_text(json.dumps({"text_config": dimensions, "model_type": "outer"}))
        assert shape_of(str(tmp_path)) == shape_of(name)
    assert shape_of("smollm2").parameters == pytest.approx(134.5e6, rel=1e-3)


def test_a_model_that_is_not_known_is_refused_with_the_mend(tmp_path):
    with pytest.raises(ConfigError, match="config.json, or one of Qwen/Qwen3-8B"):
        shape_of("nobody/nothing")
    (tmp_path / "config.json").write_text('{"model_type": "t5", "d_model": 3}')
    with pytest.raises(ConfigError, match="num_attention_heads"):
        shape_of(str(tmp_path))
