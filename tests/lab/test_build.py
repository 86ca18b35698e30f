"""The lab policy's script: seeded, and the same to the bit where it was stopped and taken up again."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rti.lab import build

TINY = ["--steps", "7", "--batch", "2", "--hidden", "32", "--layers", "1", "--report", "100"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Three steps' worth of transcripts a chunk, gone over once; few held out."""
    monkeypatch.setattr(build, "CHUNK", 3)
    monkeypatch.setattr(build, "PASSES", 1)
    monkeypatch.setattr(build, "HELD", 40)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def weights(directory):
    return load_file(directory / "model.safetensors")


def test_a_build_that_was_stopped_and_taken_up_gives_the_same_policy(tmp_path, monkeypatch, capsys):
    whole, parts, state = tmp_path / "whole", tmp_path / "parts", tmp_path / "state.pt"
    build.main(["--out", str(whole), *TINY])

    step = build.Pretraining.step

    def dies_in_step_five(self, batch, number):
        if number == 5:
            raise KeyboardInterrupt
        return step(self, batch, number)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build.Pretraining, "step", dies_in_step_five)
        build.main(["--out", str(parts), "--state", str(state), *TINY])
    capsys.readouterr()
    build.main(["--out", str(parts), "--state", str(state), *TINY])
    assert "going on from step 3" in capsys.readouterr().out
    a, b = weights(whole), weights(parts)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_state_of_other_settings_is_refused(tmp_path):
    state = tmp_path / "state.pt"
    build.main(["--out", str(tmp_path / "a"), "--state", str(state), *TINY])
    with pytest.raises(SystemExit, match="other settings.*Give the same"):
        build.main(["--out", str(tmp_path / "a"), "--state", str(state), *TINY, "--seed", "1"])


def test_a_progress_line_tells_exactness_of_every_kind_and_the_chance_of_a_second_look(tmp_path, capsys):
    build.main(["--out", str(tmp_path / "a"), *TINY])
    line = json.loads(next(x for x in capsys.readouterr().out.splitlines() if x.startswith("{")))
    assert line["step"] == 7 and 0 <= line["looks_again"] <= 1 and "straight" in line["exact"]
