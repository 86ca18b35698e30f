"""A checkpoint's hf/ directory by itself: transformers loads it, and it says what the learner says, chat and all."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rti.learner.checkpoint import step_directory
from tests.engines.tiny import write_chat_model
from tests.learner.fixtures.exported import CHAT, trained_checkpoint
from tests.learner.fixtures.models import VOCAB


def learners_logps(learner, ids: torch.Tensor) -> torch.Tensor:
    """[n - 1]: log-probability of each token after the first, by the learner's own packed forward."""
    n = len(ids)
    with torch.no_grad():
        return learner.policy(ids, torch.arange(n), (0, n), torch.arange(n - 1), ids[1:], torch.ones(n - 1))[0]


def test_transformers_loads_a_checkpoint_and_says_what_the_learner_says(make_learner, tmp_path):
    source = write_chat_model(tmp_path / "policy")
    learner = trained_checkpoint(make_learner, source, tmp_path)
    exported = step_directory(tmp_path, 1) / "hf"
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB, 60))
    mine = learners_logps(learner, ids)

    def theirs(directory):
        model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).eval()
        with torch.no_grad():
            logps = torch.log_softmax(model(ids[None]).logits[0].double(), -1)
        return logps[:-1].gather(-1, ids[1:, None])[:, 0]

    torch.testing.assert_close(mine.double(), theirs(exported), rtol=0, atol=1e-5)
    assert (mine - theirs(source)).abs().max() > 1e-3      # the step moved the policy: it is not the first one's weights


def test_tokenizer_and_chat_template_are_those_that_the_policy_came_with(make_learner, tmp_path):
    source = write_chat_model(tmp_path / "policy")
    trained_checkpoint(make_learner, source, tmp_path)
    exported = step_directory(tmp_path, 1) / "hf"
    before, after = (AutoTokenizer.from_pretrained(d, local_files_only=True) for d in (source, exported))
    said = [t.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False) for t in (before, after)]
    assert said[0] == said[1] and CHAT[0]["content"] in said[0]
    assert after(said[1])["input_ids"] == before(said[0])["input_ids"] and after.eos_token_id == before.eos_token_id
