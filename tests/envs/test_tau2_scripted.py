"""The scripted user: what it tells, does, agrees to, and how it ends a conversation. Against the official device and tasks."""

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rti.envs.tau2.scripted import STUCK, ScriptedUsers
from rti.trajectory import Message
from tests.envs.tau2_pairs import domain

GREETING = "Hi! How can I help you today?"


class Call:
    """A user and its world; `say` is one text of the agent, and gives the user's text with the calls it made before it."""

    def __init__(self, name, id=None):
        d = domain(name)
        base = d.tasks("base")
        self.task = next(t for t in base if id is None or t.id.startswith(id))
        self.world = d.world(self.task)
        self.user = ScriptedUsers(d)(self.task, d.user_tools, 0)
        self.opening = self.say(GREETING)[0]

    def say(self, text):
        return asyncio.run(self._say(text))

    async def _say(self, text):
        from rti.envs.tau2 import official
        made, heard = [], [Message(role="assistant", content=text)]
        for _ in range(40):
            message = await self.user.reply(heard)
            assert message.role == "user" and bool(message.tool_calls) != bool(message.content)
            if not message.tool_calls:
                return message.content, made
            made += [c.name for c in message.tool_calls]
            results = [self.world.call(official.load().message.ToolCall(id="1", name=c.name, arguments=c.arguments,
                                                                        requestor="user")) for c in message.tool_calls]
            self.world.sync()
            heard = [Message(role="tool", content=r.content, name=c.name) for c, r in zip(message.tool_calls, results)]
        raise AssertionError("it never speaks")


MOBILE = "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off"


def test_it_opens_with_its_reason_and_tells_who_it_is_when_asked():
    call = Call("telecom", MOBILE)
    assert call.opening.startswith("My mobile data is not working properly.") and "555-123-2002" not in call.opening
    said, made = call.say("What is your phone number?")
    assert "I am John Smith with phone number 555-123-2002." in said and not made


@pytest.mark.parametrize("text", [
    "Please use toggle_airplane_mode.", "Could you turn airplane mode off?", "Please switch off Airplane Mode, then tell me."])
def test_it_does_what_is_named_and_reports_what_the_device_says(text):
    said, made = Call("telecom", MOBILE).say(text)
    assert "toggle_airplane_mode" in made and made[-1] == "run_speed_test", "after a change it looks for its trouble"
    assert "Airplane Mode is now OFF.\nStatus Bar:" in said and "###" not in said


def test_a_switch_that_is_right_already_is_left():
    call = Call("telecom", MOBILE)
    said, made = call.say("Please turn mobile data on with toggle_data.")
    assert "toggle_data" not in made and "already on" in said


@pytest.mark.parametrize("text", [
    "Please do not use reboot_device yet.", "I have enabled roaming on your line.", "One moment, please."])
def test_what_is_not_asked_for_is_not_done(text):
    assert Call("telecom", MOBILE).say(text)[1] == []


def test_it_stops_when_the_trouble_is_gone_and_not_before():
    call = Call("telecom", MOBILE)
    assert "###STOP###" not in call.say("Use toggle_airplane_mode.")[0]
    said, _ = call.say("Use toggle_roaming.")
    assert said.endswith("###STOP###") and "(Excellent)" in said


def test_a_transfer_ends_it():
    assert Call("telecom", MOBILE).say("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.")[0] == "###TRANSFER###"


@pytest.mark.parametrize("name", ["telecom", "retail", "airline"])
def test_an_agent_that_gets_nowhere_is_given_up(name):
    call = Call(name)
    said = [call.say("I am looking into it.")[0] for _ in range(STUCK + 2)]
    assert any("###STOP###" in s for s in said)


LIST = ("I will exchange: order #W2378156, items 1151293680 and 4983901480 for 7706410293 and {new}, payment "
        "credit_card_9513926. Shall I proceed (yes/no)?")


def test_yes_to_a_right_list_and_no_to_a_wrong_one():
    call = Call("retail", "0")
    assert call.say(LIST.format(new="1111111111"))[0].startswith("No")
    assert call.say(LIST.replace(" and 4983901480", "").format(new="7747408585"))[0].startswith("No")
    assert "list" in call.say("Shall I proceed?")[0]
    assert call.say(LIST.format(new="7747408585"))[0].startswith("Yes")
    assert call.say("It is done. Anything else?")[0].endswith("###STOP###")


def test_what_the_user_does_not_know_it_does_not_tell():
    said = Call("retail", "0").say("What is your email address?")[0]
    assert "I do not remember my email address." in said and "@" not in said


def test_the_same_task_has_the_same_user():
    texts = ["What is your name?", "Please restart your phone.", "Check the status bar.", "Does it work now?"]
    assert [Call("telecom", MOBILE).say(t) for t in texts] == [Call("telecom", MOBILE).say(t) for t in texts]


def test_neither_torch_nor_ray_is_needed():
    program = ("import sys, rti.envs.tau2.scripted, rti.envs.tau2.evidence; "
               "print([m for m in ('torch', 'ray') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                         cwd=Path(__file__).resolve().parents[2])
    assert ast.literal_eval(out.stdout) == []
