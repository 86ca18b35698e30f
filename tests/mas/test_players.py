"""Players over a real HTTP service on loopback, and how their failures are told apart."""

import http.server
import json
import threading

import pytest

from rti.config.schema import EndpointConfig, InterventionConfig, RoleConfig, RolloutConfig
from rti.engines.base import EngineError
from rti.engines.endpoint import EndpointRefused
from rti.mas.pipeline import build_pipeline
from rti.mas.players import EndpointPlayer
from rti.mas.roles import RoleContext, Validation
from rti.rollout import run_episode
from rti.trajectory import Ending, Message
from tests.mas.scripted import EchoEnvironment, ScriptedEngine, byte_chat, echo_task, say

CANARY = "secret-place-77"
CTX = RoleContext(tools=[], history=[Message(role="user", content="Go.")], draft=Message(role="assistant", content="Gone."),
                  evidence={"hidden": CANARY})
ANSWER = '{"diagnosis": "Fine.", "is_valid": true, "error_types": [], "suggest_next": ""}'


@pytest.fixture
def service():
    """A chat completions service. `reply` is (status, text): the content at 200, else the body. Keeps the requests."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.requests.append(json.loads(body))
            status, text = server.reply
            out = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}) if status == 200 else text
            self.send_response(status)
            self.end_headers()
            self.wfile.write(out.encode())

        def log_message(self, *args):
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.reply = [], (200, ANSWER)
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def player(url, retries=0):
    def prompt(ctx):
        return [Message(role="system", content="You validate."), Message(role="user", content=f"{ctx.evidence}")]

    endpoint = EndpointConfig(base_url=url, model="judge", retries=retries)
    config = RoleConfig(player="endpoint", endpoint=endpoint, temperature=0.25, max_tokens=99)
    return EndpointPlayer("validator", config, prompt)


async def ask(url):
    asked = player(url)
    try:
        return await asked.ask(CTX, 1)
    finally:
        await asked.close()


async def test_an_endpoint_answers_as_a_role(service):
    assert await ask(service.url) == Validation(diagnosis="Fine.", is_valid=True)
    (request,) = service.requests
    assert request["model"] == "judge" and request["temperature"] == 0.25 and request["max_tokens"] == 99
    assert request["response_format"] == {"type": "json_object"}
    assert [m["role"] for m in request["messages"]] == ["system", "user"] and CANARY in request["messages"][1]["content"]


@pytest.mark.parametrize("content", ["", "I cannot judge this.", '{"is_valid": "yes"}', ANSWER[:-5]])
async def test_an_answer_that_cannot_be_read_is_malformed(service, content):
    service.reply = (200, content)
    assert await ask(service.url) is None


async def test_a_prompt_too_long_for_the_endpoint_is_malformed(service):
    service.reply = (400, "this model's maximum context length is 10 tokens")
    assert await ask(service.url) is None


async def test_a_dead_endpoint_is_the_infrastructures_fault():
    with pytest.raises(EngineError, match="plays the validator failed"):
        await ask("http://127.0.0.1:9/v1")


@pytest.mark.parametrize("status,kind", [(503, EngineError), (400, EndpointRefused)])
async def test_what_a_service_echoes_of_the_evidence_is_not_passed_on(service, status, kind):
    service.reply = (status, f"cannot serve the prompt '{CANARY}'")
    with pytest.raises(kind) as caught:
        await ask(service.url)
    fault = caught.value
    while fault is not None:
        assert CANARY not in str(fault)
        fault = fault.__cause__ or fault.__context__


async def test_an_episode_whose_endpoint_is_dead_is_run_again():
    chat = byte_chat()
    engine = ScriptedEngine(chat, lambda text, params: say("Done.", [("finish", {})]))
    role = RoleConfig(player="endpoint", endpoint=EndpointConfig(base_url="http://127.0.0.1:9/v1", model="judge", retries=0))
    config = InterventionConfig(prompts="full", validator=role)
    policy = build_pipeline(config, "navigation", engine, chat, RolloutConfig())
    t = await run_episode(echo_task(), EchoEnvironment(), policy, chat, id="g/i0", group_id="g", seed=1,
                          limits=RolloutConfig(max_context=5000), temperature=0.8, intervened=True)
    await policy.close()
    assert t.ending == Ending.INFRASTRUCTURE and t.samples == []
