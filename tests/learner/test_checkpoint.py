"""Checkpoints: whole or absent, whatever happens while one is written, and which ones are kept."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from rti.learner import checkpoint
from rti.learner.checkpoint import CheckpointError, newest_whole, problem_of, prune, step_directory, temporary
from tests.learner.fixtures.groups import make_step, score
from tests.learner.fixtures.launch import run_ranks
from tests.learner.fixtures.models import learner_config, write_model
from tests.learner.fixtures.worker import write_groups


def make(directory: Path, step: int) -> Path:
    """A whole checkpoint of two small files."""
    path = step_directory(directory, step)
    work = temporary(path)
    (work / "dcp").mkdir(parents=True)
    (work / "dcp" / "shard").write_bytes(bytes(range(256)) * step)
    (work / "extra.msgpack").write_bytes(b"\x80")
    checkpoint.complete(path)
    return path


def test_a_completed_checkpoint_is_whole_and_the_newest_is_found(tmp_path):
    paths = [make(tmp_path, step) for step in (1, 2, 10, 9)]
    assert [problem_of(p) for p in paths] == [None] * 4
    assert newest_whole(tmp_path) == tmp_path / "step-000010"
    assert newest_whole(tmp_path / "nowhere") is None


def truncate(path: Path) -> None:
    (path / "dcp" / "shard").write_bytes(b"short")


def flip(path: Path) -> None:
    data = bytearray((path / "dcp" / "shard").read_bytes())
    data[100] ^= 1
    (path / "dcp" / "shard").write_bytes(data)


@pytest.mark.parametrize("damage, words", [
    (truncate, "dcp/shard has 5 bytes instead of 512"),
    (flip, "dcp/shard is damaged"),
    (lambda p: (p / "extra.msgpack").unlink(), "extra.msgpack is missing"),
    (lambda p: (p / "COMPLETE").unlink(), "no COMPLETE marker"),
    (lambda p: (p / "COMPLETE").write_text("{"), "marker cannot be read"),
    (lambda p: (p / "COMPLETE").write_text("[]"), "marker cannot be read"),
    (lambda p: (p / "COMPLETE").write_text(json.dumps({"format": 99, "files": {}})), "format is 99"),
])
def test_a_broken_checkpoint_is_passed_over_by_name(tmp_path, damage, words):
    older, broken = make(tmp_path, 1), make(tmp_path, 2)
    damage(broken)
    said: list[str] = []
    assert newest_whole(tmp_path, said.append) == older
    assert len(said) == 1 and str(broken) in said[0] and words in said[0]


@pytest.mark.parametrize("stage", ["_sync", "rename"])
def test_a_save_cut_short_anywhere_leaves_the_previous_one_the_newest(tmp_path, monkeypatch, stage):
    older = make(tmp_path, 1)

    def fail(*_: object) -> None:
        raise OSError("power gone")

    with monkeypatch.context() as patch:
        patch.setattr(*((checkpoint, "_sync", fail) if stage == "_sync" else (Path, "rename", fail)))
        with pytest.raises(OSError, match="power gone"):
            make(tmp_path, 2)
    said: list[str] = []
    assert newest_whole(tmp_path, said.append) == older and said == []
    prune(tmp_path, keep=1)
    assert temporary(step_directory(tmp_path, 2)).exists()     # newer than the newest whole one: may be in the making
    make(tmp_path, 3)
    prune(tmp_path, keep=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003"]


def test_a_checkpoint_takes_the_place_of_an_older_one_of_its_name(tmp_path):
    path = make(tmp_path, 2)
    truncate(path)
    make(tmp_path, 2)
    assert problem_of(path) is None and [p.name for p in tmp_path.iterdir()] == ["step-000002"]


def test_prune_keeps_the_newest_and_the_best(tmp_path):
    paths = [make(tmp_path, step) for step in range(1, 7)]
    (paths[4] / "COMPLETE").unlink()
    (tmp_path / "notes").mkdir()
    removed = prune(tmp_path, keep=2, best=paths[0])
    assert {p.name for p in removed} == {"step-000002", "step-000003", "step-000005"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-000001", "step-000004", "step-000006"]
    assert prune(tmp_path / "nowhere", keep=2) == []


def test_records_refuse_what_cannot_be_stored(tmp_path):
    with pytest.raises(CheckpointError, match="Encode anything else to bytes"):
        checkpoint.write_record(tmp_path / "extra.msgpack", {"x": object()})
    with pytest.raises(CheckpointError, match="64 bits"):
        checkpoint.write_record(tmp_path / "extra.msgpack", {"x": 1 << 80})
    (tmp_path / "bad").write_bytes(b"\xc1")
    with pytest.raises(CheckpointError, match="bad"):
        checkpoint.read_record(tmp_path / "bad")


# --- the learner's own -------------------------------------------------------------------------------------------
def without_timings(metrics: dict) -> dict:
    return {k: v for k, v in metrics.items() if not k.startswith("perf/")}


def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(make_learner, model_dir, tmp_path):
    steps = [score(make_step(seed), model_dir, seed=seed) for seed in range(6)]
    config = learner_config(model_dir, tmp_path, warmup_steps=5, pack_tokens=64)
    through = make_learner(config)
    expected = [without_timings(through.step(g, k)) for k, g in enumerate(steps)]

    first = make_learner(config)
    for k in range(3):
        assert without_timings(first.step(steps[k], k)) == expected[k]
    first.save(step_directory(tmp_path, 3), {"order": [5, 2], "buffer": b"\x00\x01", "position": 3})
    draw = torch.rand(3)
    first.wait_saved()
    second = make_learner(config)
    torch.rand(5)
    assert second.load(newest_whole(tmp_path)) == {"order": [5, 2], "buffer": b"\x00\x01", "position": 3}
    assert torch.equal(torch.rand(3), draw)     # random streams go on where they were
    assert [without_timings(second.step(steps[k], k)) for k in range(3, 6)] == expected[3:]
    a, b = through.state_dict_for_engine(), second.state_dict_for_engine()
    assert second.version == 6 and all(torch.equal(a[k], b[k]) for k in a)
    for p, q in zip(through.policy.parameters(), second.policy.parameters()):
        mine, theirs = through._optimiser.state[p], second._optimiser.state[q]
        assert all(torch.equal(mine[k].full_tensor() if hasattr(mine[k], "full_tensor") else mine[k],
                               theirs[k].full_tensor() if hasattr(theirs[k], "full_tensor") else theirs[k]) for k in mine)


def test_a_checkpoint_holds_the_state_at_the_call_though_training_goes_on(make_learner, model_dir, groups, tmp_path,
                                                                           monkeypatch):
    real = checkpoint.complete
    monkeypatch.setattr(checkpoint, "complete", lambda path: (time.sleep(0.3), real(path)))
    learner = make_learner(learner_config(model_dir, tmp_path))
    learner.step(groups, 1)
    at_save = learner.state_dict_for_engine()
    path = step_directory(tmp_path, 1)
    learner.save(path, {})
    learner.step(groups, 2), learner.step(groups, 3)
    assert not path.exists()        # it was in the making all the while
    learner.wait_saved()
    learner.load(path)
    restored = learner.state_dict_for_engine()
    assert learner.version == 1 and all(torch.equal(at_save[k], restored[k]) for k in at_save)


def test_the_count_of_skipped_steps_survives_a_restart(make_learner, model_dir, groups, tmp_path):
    learner = make_learner(learner_config(model_dir, tmp_path))
    learner.skipped, learner.skipped_in_row = 4, 2
    learner.save(step_directory(tmp_path, 1), {})
    learner.wait_saved()
    again = make_learner(learner_config(model_dir, tmp_path))
    again.load(step_directory(tmp_path, 1))
    assert (again.skipped, again.skipped_in_row) == (4, 2)


def test_the_exported_policy_is_inside(make_learner, model_dir, groups, tmp_path):
    learner = make_learner(learner_config(model_dir, tmp_path))
    learner.step(groups, 1)
    learner.save(step_directory(tmp_path, 1), {})
    learner.wait_saved()
    inside = step_directory(tmp_path, 1) / "hf"
    config = learner_config(inside)
    loaded, mine = make_learner(config).state_dict_for_engine(), learner.state_dict_for_engine()
    assert all(torch.equal(loaded[k], mine[k]) for k in mine)
    assert (inside / "tokenizer.json").read_bytes() == (model_dir / "tokenizer.json").read_bytes()


def test_bad_checkpoints_are_refused_with_their_reason(make_learner, model_dir, tmp_path):
    learner = make_learner(learner_config(model_dir, tmp_path))
    with pytest.raises(CheckpointError, match="no such directory"):
        learner.load(tmp_path / "step-000009")
    path = step_directory(tmp_path, 1)
    learner.save(path, {})
    learner.wait_saved()
    other = make_learner(learner_config(write_model(tmp_path / "untied", tied=False)))
    with pytest.raises(CheckpointError, match="another model.*lm_head.weight is None there"):
        other.load(path)
    with (path / "dcp" / "__0_0.distcp").open("r+b") as shard:
        shard.truncate(100)
    with pytest.raises(CheckpointError, match="has 100 bytes instead"):
        learner.load(path)
    with pytest.raises(CheckpointError, match="cannot store extra"):
        learner.save(path, {"rng": object()})


def test_a_failed_save_is_told_at_the_next_wait(make_learner, model_dir, tmp_path, monkeypatch):
    learner = make_learner(learner_config(model_dir, tmp_path))

    def full_disk(path: Path) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "complete", full_disk)
        learner.save(step_directory(tmp_path, 1), {})
        with pytest.raises(OSError, match="no space left"):
            learner.wait_saved()
    learner.save(step_directory(tmp_path, 2), {})       # and the learner goes on
    learner.wait_saved()
    assert newest_whole(tmp_path) == step_directory(tmp_path, 2)


def test_a_kill_during_a_save_leaves_the_previous_checkpoint_whole(model_dir, tmp_path):
    groups = write_groups(score(make_step(), model_dir), tmp_path / "groups.rti")
    first, second = (str(step_directory(tmp_path / "checkpoints", k)) for k in (1, 2))
    actions = [["step", 1], ["save", first], ["step", 2], ["save_and_die", second]]
    run_ranks(tmp_path / "job", model_dir, groups, actions, world_size=1, expect=-signal.SIGKILL)
    said: list[str] = []
    assert newest_whole(tmp_path / "checkpoints", said.append) == Path(first) and said == []
    assert os.path.isdir(temporary(Path(second)))       # what the killed save left is not taken for a checkpoint
