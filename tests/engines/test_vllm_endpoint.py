"""The endpoint client against a real `vllm serve` on loopback: what it sends is taken, what comes back is read and counted."""

import pytest

from rti.config.schema import EndpointConfig, RoleConfig
from rti.engines.base import PromptTooLong
from rti.engines.endpoint import ChatEndpoint, EndpointRefused
from rti.engines.usage import UsageBook
from rti.mas.players import EndpointPlayer
from rti.mas.roles import RoleContext
from rti.trajectory import Message, ToolCall, ToolSchema

pytestmark = pytest.mark.vllm

ASK = [Message(role="system", content="Be brief."), Message(role="user", content="Find 北京.")]
ECHO = ToolSchema(name="echo", description="Says it again.", parameters={
    "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})


@pytest.fixture
def of(vllm_server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return lambda **changed: EndpointConfig(**{"base_url": vllm_server.base_url, "model": vllm_server.model, "retries": 0,
                                               **changed})


async def test_text_comes_back_is_counted_and_the_same_for_a_seed(of):
    book = UsageBook()
    endpoint = ChatEndpoint(of(), "corrector", book=book)
    first, again, other = [await endpoint.chat(ASK, temperature=1.0, max_tokens=12, seed=seed) for seed in (3, 3, 4)]
    await endpoint.close()
    assert first.message.content == again.message.content != other.message.content
    used = book.take()["corrector"]
    assert used.requests == 3 and used.retries == used.failures == 0
    assert used.prompt_tokens == 3 * first.prompt_tokens > 3 * len("Be brief.Find 北京.".encode())
    assert used.completion_tokens <= 3 * 12 and first.completion_tokens > 0


async def test_json_mode_is_really_json(of):
    endpoint = ChatEndpoint(of())
    text = await endpoint.complete(ASK, temperature=0.0, max_tokens=64, json=True)
    await endpoint.close()
    assert text.lstrip().startswith("{")        # a model of random weights would hardly say so by itself


async def test_a_history_with_calls_and_their_answers_is_taken(of):
    history = [*ASK, Message(role="assistant", tool_calls=[ToolCall(name="echo", arguments={"text": "a"}, id="call_0")]),
               Message(role="tool", content="a", tool_call_id="call_0", name="echo")]
    endpoint = ChatEndpoint(of())
    reply = await endpoint.chat(history, temperature=0.0, max_tokens=4)
    await endpoint.close()
    assert reply.finish_reason in ("stop", "length")


async def test_a_prompt_beyond_the_context_and_an_unknown_model_are_told_apart(of):
    endpoint, wrong = ChatEndpoint(of()), ChatEndpoint(of(model="larger"))
    with pytest.raises(PromptTooLong, match="tiny"):
        await endpoint.chat([Message(role="user", content="x" * 9000)], temperature=0.0, max_tokens=4)
    with pytest.raises(EndpointRefused, match="larger"):
        await wrong.chat(ASK, temperature=0.0, max_tokens=4)
    await endpoint.close()
    await wrong.close()


async def test_a_role_is_played_through_it_and_nonsense_is_malformed(of):
    role = RoleConfig(player="endpoint", endpoint=of(), max_tokens=24)
    player = EndpointPlayer("validator", role, lambda ctx: [*ctx.history, Message(role="user", content="valid?")])
    answer = await player.ask(RoleContext(history=ASK, tools=[ECHO], evidence={}, draft=Message(role="assistant")), seed=1)
    await player.close()
    assert answer is None       # random weights do not judge
