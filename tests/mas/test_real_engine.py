"""The pipeline and the rollout over a real model: every stored log-probability against a plain full forward pass."""

import numpy as np
import pytest
import torch

from rti.chat import load_chat_format
from rti.config.schema import InterventionConfig, RolloutConfig
from rti.engines.base import SamplingParams
from rti.engines.torch_engine import TorchEngine
from rti.mas.pipeline import InterventionPolicy
from rti.mas.roles import Correction, Validation, Verdict
from rti.rollout import PlainPolicy, run_episode
from rti.trajectory import Ending, Message, Source, ToolCall
from tests.chat.conftest import TEMPLATES, _save_tokenizer
from tests.engines.tiny import qwen3
from tests.mas.scripted import EchoEnvironment, byte_chat, echo_task

TEMPERATURE = 0.8
LIMITS = RolloutConfig(max_tokens=110, max_context=512)


class Fixed:
    """A player that gives its answers in turn, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def ask(self, ctx, seed):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def close(self):
        """Nothing is held."""


class Pack:
    @staticmethod
    def corrector(ctx):
        return [*ctx.history, Message(role="user", content=f"Correct with {ctx.evidence['hint']}.")]


INVALID = Validation(diagnosis="No.", is_valid=False)
VALID = Validation(diagnosis="Fine.", is_valid=True)
ECHO = Correction(reasoning="", tool_calls=[ToolCall(name="echo", arguments={"text": "ask"})])


@pytest.fixture(scope="module", params=["lab", "hermes", "generic"])
def chat(request, tmp_path_factory):
    if request.param == "lab":
        return byte_chat()
    return load_chat_format(request.param, _save_tokenizer(tmp_path_factory.mktemp(request.param), TEMPLATES[request.param]))


@pytest.fixture
async def engine(chat):
    engine = TorchEngine(qwen3(3, vocab=chat.vocab_size, std=0.05), max_concurrency=4, threads=1)
    yield engine
    await engine.close()


def reference(vocab, ids, temperature):
    """log p(ids[t] | ids[:t]) for t > 0, by one forward pass of the same model in another instance."""
    model = qwen3(3, vocab=vocab, std=0.05)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double() / temperature
    logps = torch.log_softmax(logits, -1)
    return np.array([float(logps[t - 1, ids[t]]) for t in range(1, len(ids))])


def pipeline(engine, chat, *validations, delta=float("inf")):
    sampling = SamplingParams(max_tokens=LIMITS.max_tokens, temperature=TEMPERATURE)
    return InterventionPolicy(
        engine, chat, sampling, InterventionConfig(delta=delta), Pack(), validator=Fixed(*validations), corrector=Fixed(ECHO),
        verifier=Fixed(Verdict(ok=True)))


async def play(engine, chat, policy, seed=1):
    return await run_episode(echo_task(hint="h1nt"), EchoEnvironment(max_turns=3), policy, chat, id="g/0", group_id="g",
                             seed=seed, limits=LIMITS, temperature=TEMPERATURE, intervened=True)


async def test_every_log_probability_is_that_of_its_prompt(engine, chat):
    limits_hit = 0
    for seed in range(3):
        t = await play(engine, chat, pipeline(engine, chat, INVALID, VALID), seed)
        assert t.ending.is_agents and t.steps[0].intervention.outcome == "accepted"
        limits_hit += t.ending == Ending.TRUNCATED
        for sample in t.samples:
            sample.check()
            expected = reference(chat.vocab_size, sample.token_ids.tolist(), TEMPERATURE)
            at = np.flatnonzero(sample.mask)
            np.testing.assert_allclose(sample.behaviour_logps[at], expected[at - 1], atol=1e-4)
        corrected = t.samples[0].sources == Source.CORRECTION
        turn = t.samples[0].token_ids[corrected].tolist()
        asked = list(chat.render([*t.prompt, Message(role="user", content="Correct with h1nt.")], ()))
        cal = reference(chat.vocab_size, asked + turn, TEMPERATURE)[len(asked) - 1:]
        np.testing.assert_allclose(t.samples[0].correction_logps[corrected], cal, atol=1e-4)
        roll = t.samples[0].behaviour_logps[corrected].astype(np.float64)
        np.testing.assert_allclose(t.samples[0].weights[corrected], np.clip(np.exp(cal - roll), 0.8, 1.2), atol=1e-3)
        assert t.steps[0].observations[0].content == "ask", "the correction ran"
    assert limits_hit, "a random model writes to the limit"


async def test_delta_zero_is_the_plain_rollout_to_the_bit(engine, chat):
    plain = PlainPolicy(engine, chat, SamplingParams(max_tokens=LIMITS.max_tokens, temperature=TEMPERATURE))
    for seed in range(3):
        a = await play(engine, chat, plain, seed)
        b = await play(engine, chat, pipeline(engine, chat, INVALID, delta=0.0), seed)
        assert [s.message for s in a.steps] == [s.message for s in b.steps] and len(a.samples) == len(b.samples)
        for x, y in zip(a.samples, b.samples):
            for field in ("token_ids", "sources", "behaviour_logps", "weights", "versions", "turns"):
                assert getattr(x, field).tobytes() == getattr(y, field).tobytes()


async def test_tokens_sampled_before_and_after_a_weight_load_name_their_versions(engine, chat):
    first = await play(engine, chat, pipeline(engine, chat, INVALID, VALID))
    state = {k: v.clone() for k, v in qwen3(4, vocab=chat.vocab_size, std=0.05).state_dict().items()}
    await engine.load_weights(state, 7)
    second = await play(engine, chat, pipeline(engine, chat, INVALID, VALID))
    assert first.oldest_version == 0 and second.oldest_version == 7
    assert {int(v) for s in second.samples for v in s.versions[s.mask]} == {7}
