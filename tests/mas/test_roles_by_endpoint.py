"""A Corrector behind an endpoint with another tokenizer: text comes back, and the policy scores it under both prompts."""

import json

import numpy as np
from aiohttp import web

from rti.config.schema import EndpointConfig, InterventionConfig, RoleConfig
from rti.engines.base import SamplingParams
from rti.mas.pipeline import InterventionPolicy
from rti.mas.players import EndpointPlayer, PolicyPlayer
from rti.trajectory import Source
from tests.loopback import completions
from tests.mas.test_pipeline import BETTER, CANARY, Pack, context, engine_of


async def test_a_correction_from_an_endpoint_is_scored_by_the_policy_under_the_correction_prompt(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    asked = []

    async def answer(request):
        asked.append(await request.json())
        spaced = json.dumps(json.loads(BETTER), indent=4)      # not as the policy would write it: the text is read
        return web.json_response({"choices": [{"message": {"content": f"<think>hm</think>{spaced}"}}]})

    engine, pack = engine_of(), Pack()
    ctx = context(engine, hidden=CANARY)
    async with completions(answer) as url:
        role = RoleConfig(player="endpoint", endpoint=EndpointConfig(base_url=url, model="large"))
        policy = InterventionPolicy(
            engine, engine.chat, SamplingParams(max_tokens=300, temperature=0.8), InterventionConfig(), pack,
            validator=PolicyPlayer("validator", RoleConfig(), pack.validator, engine, engine.chat),
            corrector=EndpointPlayer("corrector", role, pack.corrector), verifier=None)
        step = await policy.act(ctx)
        await policy.close()

    assert step.intervention.outcome == "accepted" and step.source == Source.CORRECTION
    assert "corrector? " in asked[0]["messages"][-1]["content"]
    assert not any("corrector? " in p for p in engine.prompts)          # the policy wrote no correction ...
    (roll_prompt, roll_ids, _), (cal_prompt, cal_ids, _) = engine.scored
    assert "corrector? " in cal_prompt and "corrector? " not in roll_prompt     # ... but scored it, under both prompts
    assert roll_ids == cal_ids == engine.chat.encode_turn(step.message) == step.token_ids.tolist()
    np.testing.assert_array_equal(step.behaviour_logps, engine.logps(ctx.prompt_ids, roll_ids, 0.8))
    expected = np.clip(np.exp(step.correction_logps.astype(np.float64) - step.behaviour_logps), 0.8, 1.2)
    np.testing.assert_allclose(step.weights, expected, rtol=1e-6)
