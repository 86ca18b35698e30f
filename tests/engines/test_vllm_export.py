"""A checkpoint's hf/ directory under `vllm serve`: it comes up, knows the chat template, and gives its probabilities."""

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rti.learner.checkpoint import step_directory
from rti.learner.learner import Learner
from tests.engines import tiny
from tests.engines.conftest import serving
from tests.learner.fixtures.exported import CHAT, trained_checkpoint

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def make_learner(config):
    learner = Learner(config)
    learner.setup()
    return learner


def test_vllm_serves_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    learner = trained_checkpoint(make_learner, tiny.write_chat_model(tmp_path / "policy"), tmp_path)
    exported = step_directory(tmp_path, 1) / "hf"
    learner.close()
    ids = AutoTokenizer.from_pretrained(exported).apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)(torch.tensor([ids])).logits[0, -1]
    with serving(exported) as server:
        asked = {"model": server.model, "messages": CHAT, "temperature": 0, "max_tokens": 1, "logprobs": True,
                 "top_logprobs": 1}
        reply = httpx.post(f"{server.base_url}/chat/completions", json=asked, timeout=60).raise_for_status().json()
    assert reply["usage"]["prompt_tokens"] == len(ids)
    (said,) = reply["choices"][0]["logprobs"]["content"]
    assert said["logprob"] == pytest.approx(torch.log_softmax(logits, -1).max().item(), abs=1e-3)
