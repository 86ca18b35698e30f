"""What can differ on a GPU: the engine, FSDP2, attention, bfloat16, a run. Skipped with the reason where there is none.

RTI_GPU_DEVICE=cpu runs what a CPU can run of it (float32, no flash-attention), so that the checks themselves are checked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rti.engines.base import SamplingParams
from rti.engines.torch_engine import TorchEngine
from rti.learner.learner import Learner
from rti.modeling import load_model, packed_forward
from tests.learner.fixtures.groups import make_step, score
from tests.learner.fixtures.models import learner_config, write_model

ROOT = Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("RTI_GPU_DEVICE", "cuda")
FLASH = importlib.util.find_spec("flash_attn") is not None and DEVICE == "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(),
                       reason="torch sees no CUDA device; RTI_GPU_DEVICE=cpu runs what a CPU can"),
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def row(lengths=(7, 40, 17)):
    """A packed row on the device: token ids, position ids, boundaries."""
    ids = torch.randint(97, (sum(lengths),), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    positions = torch.cat([torch.arange(n) for n in lengths]).to(DEVICE)
    return ids, positions, [0, *np.cumsum(lengths).tolist()]


async def test_the_engine_scores_what_it_sampled_as_it_sampled_it(model_dir):
    engine = TorchEngine(load_model(str(model_dir), "float32", DEVICE), max_concurrency=8)
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=3)
    reply = await engine.generate([5, 6, 7, 8], params)
    scores = await engine.score([5, 6, 7, 8], reply.token_ids.tolist(), 0.8)
    await engine.close()
    assert len(reply.token_ids) == 24
    assert float(np.abs(reply.logps - scores.logps).mean()) < 1e-3


def test_a_packed_row_equals_its_sequences_one_by_one(model_dir):
    model = load_model(str(model_dir), "float32", DEVICE)
    ids, positions, bounds = row()
    with torch.no_grad():
        whole = packed_forward(model, ids, positions, bounds)
        for a, b in zip(bounds, bounds[1:]):
            alone = packed_forward(model, ids[a:b], positions[a:b], [0, b - a])
            torch.testing.assert_close(whole[a:b], alone, atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(not FLASH, reason="flash-attn is not installed, or the device is not cuda")
def test_flash_attention_gives_what_sdpa_gives(model_dir):
    ids, positions, bounds = row()
    with torch.no_grad():
        logps = [packed_forward(load_model(str(model_dir), "bfloat16", DEVICE, attention), ids, positions, bounds)
                 .float().log_softmax(-1) for attention in ("flash_attention_2", "sdpa")]
    assert float((logps[0] - logps[1]).abs().mean()) < 0.05


@pytest.mark.skipif(DEVICE == "cpu", reason="bfloat16 is what a GPU computes in")
def test_bfloat16_log_probabilities_stay_near_those_of_float32(model_dir, capsys):
    ids, positions, bounds = row()
    with torch.no_grad():
        exact, low = (packed_forward(load_model(str(model_dir), dtype, DEVICE), ids, positions, bounds).float().log_softmax(-1)
                      for dtype in ("float32", "bfloat16"))
    gap = (exact - low).abs()
    with capsys.disabled():
        print(f"\nbfloat16 against float32: mean {float(gap.mean()):.4f}, largest {float(gap.max()):.4f} nats")
    assert float(gap.mean()) < 0.1


def test_a_learner_step_on_the_device_equals_the_one_on_a_cpu(model_dir):
    """One FSDP2 rank there and one on the CPU, both in float32: the same gradient norm and loss."""
    groups, results = score(make_step(), model_dir), []
    for device in dict.fromkeys((DEVICE, "cpu")):
        config = learner_config(model_dir, device=device)
        config.model.dtype = "float32"
        learner = Learner(config)
        learner.setup()
        results.append(learner.step(groups, 1))
        assert learner.device.type == device
        learner.close()
    for other in results[1:]:
        for key in ("policy/loss", "learner/grad_norm", "policy/entropy"):
            assert results[0][key] == pytest.approx(other[key], rel=1e-3, abs=1e-4)


def test_a_lab_run_learns_on_the_device(tmp_path):
    words = [f"generators.device={DEVICE}", f"learner.device={DEVICE}", "steps=2", f"run_dir={tmp_path / 'run'}",
             "rollout.groups_per_step=4", "evaluation.before=false", "evaluation.after=false", "model.dtype=float32"]
    done = subprocess.run([sys.executable, "launch/rti.py", "--config", "lab.yaml", *words], cwd=ROOT, capture_output=True,
                          text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        if line.get("policy/trained_tokens") and line["staleness/max"] == 0:
            assert line["policy/logp_gap"] < 1e-2
    audit = subprocess.run([sys.executable, "-m", "rti.run.audit", str(tmp_path / "run")], cwd=ROOT, capture_output=True,
                           text=True)
    assert audit.returncode == 0, audit.stdout
