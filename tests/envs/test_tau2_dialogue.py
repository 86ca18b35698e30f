"""The turn rules: our loop against the official orchestrator on the same scripted sides, and each rule by itself."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from rti.envs.base import EnvironmentFault  # noqa: E402
from rti.envs.tau2 import official  # noqa: E402
from rti.envs.tau2.dialogue import Dialogue, Limits, speaks_as_agent  # noqa: E402
from rti.trajectory import Message, ToolCall  # noqa: E402
from tests.envs.tau2_pairs import construct, domain  # noqa: E402

CALLS = {
    "assistant": [("get_customer_by_phone", {"phone_number": "555-123-2002"}), ("get_details_by_id", {"id": "L1002"}),
                  ("enable_roaming", {"customer_id": "C1001", "line_id": "L1002"}), ("toggle_airplane_mode", {}),
                  ("get_data_usage", {"customer_id": "C1001"}), ("refuel_data", {"wrong": 1})],
    "user": [("toggle_airplane_mode", {}), ("check_status_bar", {}), ("toggle_data", {}), ("run_speed_test", {}),
             ("no_such_tool", {"a": 1}), ("connect_vpn", {})],
}
TEXTS = {"assistant": ["Let me look.", "###STOP###", "Try again, please.", "Your bill is $1,234."],
         "user": ["My data is slow.", "Done.", "Hmm.", "It says ###TRANSFER### here.", "Thanks ###STOP###"]}


def script(rng, side, n, calls):
    """Messages of one side: texts, and messages of one to three calls, some with a text beside them."""
    made = []
    for i in range(n):
        if rng.random() < calls:
            chosen = rng.sample(CALLS[side], rng.randint(1, 3))
            made.append(Message(role=side, content=rng.choice(["", "One moment."]), tool_calls=[
                ToolCall(name=name, arguments=arguments, id=f"{side}{i}.{k}") for k, (name, arguments) in enumerate(chosen)]))
        else:
            made.append(Message(role=side, content=rng.choice(TEXTS[side][:4 if i > 3 else 3])))
    return made


class Scripted:
    """A user that says what it is given, then goes; it keeps what it heard."""

    def __init__(self, said):
        self.said, self.heard = list(said), []

    async def reply(self, heard):
        self.heard += heard
        return self.said.pop(0) if self.said else Message(role="user", content="###STOP###")


def as_official(message, side):
    o = official.load().message
    calls = [o.ToolCall(id=c.id, name=c.name, arguments=c.arguments, requestor=side) for c in message.tool_calls]
    made = o.AssistantMessage if side == "assistant" else o.UserMessage
    return made(role=side, content=message.content or None, tool_calls=calls or None)


def official_run(task, agents, users, limits):
    """The official orchestrator over the same two scripts: its record and how it ended."""
    base_agent, base_user = official.member("agent.base.BaseAgent"), official.member("user.base.BaseUser")

    def side(base, said, role, rest):
        said = list(said)

        class Side(base):
            def __init__(self):
                self.llm = None

            def get_init_state(self, message_history=None):
                return None

            def generate_next_message(self, message, state):
                return as_official(said.pop(0) if said else Message(role=role, content=rest), role), state

            def set_seed(self, seed):
                return None

            def stop(self, message=None, state=None):
                return None

            @classmethod
            def is_stop(cls, message):
                return False
        return Side()

    orchestrator = official.load().orchestrator.Orchestrator(
        domain="telecom", agent=side(base_agent, agents, "assistant", "Anything else?"),
        user=side(base_user, users, "user", "###STOP###"), environment=construct("telecom")(), task=task,
        max_steps=limits.steps or 10 ** 6, max_errors=limits.errors or 10 ** 6)
    run = orchestrator.run()
    return run.messages, run.termination_reason.value


async def our_run(task, agents, users, limits):
    d = domain("telecom")
    dialogue = Dialogue(d.world(task), Scripted(users), limits, [t.name for t in d.user_tools])
    await dialogue.open()
    agents = list(agents)
    while not dialogue.termination:
        await dialogue.agent(agents.pop(0) if agents else Message(role="assistant", content="Anything else?"))
    return dialogue.messages, dialogue.termination


def shown(messages):
    return [(m.role, m.content, [c.model_dump() for c in getattr(m, "tool_calls", None) or ()], getattr(m, "error", None))
            for m in messages]


@pytest.mark.parametrize("seed", range(40))
async def test_the_record_and_the_ending_are_those_of_the_official_loop(seed):
    rng = random.Random(seed)
    task = rng.choice(domain("telecom").tasks("base"))
    agents, users = script(rng, "assistant", 12, 0.5), script(rng, "user", 14, 0.4)
    limits = Limits(turns=1000, steps=rng.choice([200, 7, 12, 15]), errors=rng.choice([10, 3, 1]))
    ours, how = await our_run(task, agents, users, limits)
    theirs, why = official_run(task, agents, users, limits)
    assert (shown(ours), how) == (shown(theirs), why)


def begin(user, limits=Limits(), name="telecom"):
    d = domain(name)
    return Dialogue(d.world(d.tasks("base")[0]), user, limits, [t.name for t in d.user_tools])


def say(text):
    return Message(role="assistant", content=text)


async def test_the_greeting_opens_and_the_user_speaks_first():
    user = Scripted([Message(role="user", content="Help!")])
    dialogue = begin(user)
    greeting, first = await dialogue.open()
    assert (greeting.role, greeting.content) == ("assistant", "Hi! How can I help you today?")
    assert (first.role, first.content) == ("user", "Help!")
    assert [m.content for m in user.heard] == [greeting.content]
    assert dialogue.counts.steps == 1


async def test_neither_side_sees_the_other_s_calls_text_beside_calls_or_thinking():
    user = Scripted([Message(role="user", content="Hello."),
                     Message(role="user", content="I look.", tool_calls=[ToolCall(name="check_status_bar", id="u1")]),
                     Message(role="user", content="All fine.")])
    dialogue = begin(user)
    await dialogue.open()
    seen = await dialogue.agent(Message(role="assistant", content="I check.", tool_calls=[
        ToolCall(name="get_details_by_id", arguments={"id": "L1002"}, id="a1")]))
    assert [(m.role, m.name, m.tool_call_id) for m in seen] == [("tool", "get_details_by_id", "a1")]
    seen = await dialogue.agent(say("<think>He will not hear this.</think>Look at the bar."))
    assert [(m.role, m.content) for m in seen] == [("user", "All fine.")]
    assert [(m.role, m.content) for m in user.heard[1:2]] == [("assistant", "Look at the bar.")]
    assert user.heard[2].role == "tool" and user.heard[2].content.startswith("Status Bar: ")
    assert not any("I check" in m.content or "He will not" in m.content for m in user.heard)


async def test_an_empty_message_of_the_agent_ends_it_without_a_reward():
    dialogue = begin(Scripted([Message(role="user", content="Hello.")]))
    await dialogue.open()
    assert await dialogue.agent(say("<think>Nothing to say.</think>  ")) == []
    assert dialogue.termination == "agent_error"


async def test_a_call_that_cannot_be_read_is_answered_with_the_reason_and_replays_officially():
    dialogue = begin(Scripted([Message(role="user", content="Hello.")]))
    await dialogue.open()
    seen = await dialogue.agent(Message(role="assistant", tool_calls=[
        ToolCall(name="refuel_data", error="its arguments are not JSON", id="x")]))
    assert seen[0].name == "refuel_data" and "its arguments are not JSON" in seen[0].content
    assert seen[0].content.startswith("Error: ")
    assert dialogue.counts.unreadable_calls == dialogue.counts.tool_errors == 1
    environment = construct("telecom")()
    environment.set_state(None, domain("telecom").tasks("base")[0].initial_state.initialization_actions, dialogue.messages)


async def test_a_user_without_a_word_is_a_fault_of_the_environment():
    with pytest.raises(EnvironmentFault, match="empty message"):
        await begin(Scripted([Message(role="user", content=" ")])).open()


async def test_a_user_that_never_stops_calling_tools_meets_the_step_limit():
    calls = [Message(role="user", tool_calls=[ToolCall(name="check_status_bar", id=str(i))]) for i in range(500)]
    dialogue = begin(Scripted(calls))
    await dialogue.open()
    assert dialogue.termination == "max_steps" and 200 <= dialogue.counts.steps <= 201


def test_who_speaks_as_the_agent_is_noticed():
    assert speaks_as_agent("Hi! How can I help you today?", "")
    assert speaks_as_agent("Agent: please restart the phone", "")
    assert speaks_as_agent("Please turn on airplane mode now.", "Please turn on airplane mode now.")
    assert not speaks_as_agent("My phone has no service.", "Please turn on airplane mode now.")
