"""Which services are asked before a run starts anything, over a real HTTP server on loopback (for tau2's user and judge see
tests/envs/test_tau2_simulator.py)."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from rti.actors.services import check_services
from rti.config.schema import Config, EndpointConfig
from rti.engines.endpoint import EndpointRefused
from tests.loopback import completions


async def test_a_training_asks_who_plays_a_role_and_an_evaluation_does_not(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("RTI_TEST_KEY", "sk-a-secret")
    asked = []

    async def refusing(request):
        asked.append(request.headers["Authorization"])
        return web.json_response({"error": {"message": "no such key"}}, status=401)

    config = Config()
    config.intervention.corrector.player = "endpoint"
    async with completions(refusing) as url:
        config.intervention.corrector.endpoint = EndpointConfig(base_url=url, model="large", key_env="RTI_TEST_KEY")
        with pytest.raises(EndpointRefused, match="the key in environment variable RTI_TEST_KEY"):
            await asyncio.to_thread(check_services, config)
        await asyncio.to_thread(check_services, config, training=False)
        config.algo.name = "grpo"       # never intervenes
        await asyncio.to_thread(check_services, config)
    assert asked == ["Bearer sk-a-secret"]
