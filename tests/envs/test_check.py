"""The conformance test: an environment that keeps to the protocol passes, and each way to break it is named."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from rti.config.schema import EnvConfig
from rti.envs import load_task_set
from rti.envs.base import Outcome, StepResult, Task
from rti.envs.check import RULES, check, main
from rti.trajectory import Message, ToolSchema

ROOT = Path(__file__).resolve().parents[2]


class Sound:
    """One tool; says the word that was asked for. What a test breaks it overrides."""

    tools = [ToolSchema(name="say", description="Say it.", parameters={
        "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]})]
    max_turns = 3

    def __init__(self):
        self.said = None

    async def reset(self, task, seed):
        self.word, self.said = task.evidence["code"], None
        return [Message(role="system", content="Speak."), Message(role="user", content=f"Task {task.id}")]

    async def step(self, message):
        replies = [Message(role="tool", tool_call_id=c.id, name=c.name, content=self.run(c)) for c in message.tool_calls]
        return StepResult(messages=replies or [Message(role="user", content="?")], done=self.said == self.word)

    def run(self, call):
        if call.error or call.name != "say" or not isinstance(call.arguments.get("word"), str):
            return "Error: say a word"
        self.said = call.arguments["word"]
        return "heard"

    async def outcome(self):
        return Outcome(success=self.said == self.word, reward=float(self.said == self.word))

    async def close(self):
        pass


class Tasks:
    def __init__(self, env=Sound, train=3):
        self.env = env
        self.train = [Task(id=f"a{i}", data={"n": i}, evidence={"code": f"code-{4711 + i}"}) for i in range(train)]
        self.test = [Task(id="b0", data={}, evidence={"code": "code-1"})]

    def make(self):
        return self.env()

    async def close(self):
        self.closed = True


async def broken(taskset) -> dict[str, str]:
    """rule -> its first breach."""
    return {rule.name: rule.breaches[0] for rule in await check(taskset) if rule.breaches}


async def test_a_sound_environment_passes_every_rule_and_is_closed() -> None:
    taskset = Tasks()
    assert await broken(taskset) == {} and taskset.closed


async def test_the_environments_that_ship_with_rti_pass() -> None:
    taskset = load_task_set(EnvConfig(class_="tests.end_to_end.luck.LuckTasks", options={"percent": 0}))
    found = await broken(taskset)
    assert set(found) == {"errors"}, "the tests' world of luck answers every call alike; nothing else is wrong with it"
    config = EnvConfig()
    config.navigation.service = "offline"
    assert await broken(load_task_set(config)) == {}


class Raises(Sound):
    def run(self, call):
        self.said = call.arguments["word"]
        return "heard"


class Swallows(Sound):
    async def step(self, message):
        return StepResult(messages=[], done=False)


class Leaks(Sound):
    async def reset(self, task, seed):
        first, *rest = await super().reset(task, seed)
        return [Message(role="system", content=f"The code is {task.evidence['code']}."), *rest]


class Shares(Sound):
    said_by_any: list = []

    def run(self, call):
        text = super().run(call)
        if text == "heard":
            self.said_by_any.append(self.said)
        return f"{text}, as {len(self.said_by_any)} times before" if text == "heard" else text


class Drifts(Sound):
    count = itertools.count()

    async def reset(self, task, seed):
        return [Message(role="user", content=f"Task {next(self.count)}")] if await super().reset(task, seed) else []


class EndsWithTheSystem(Sound):
    async def reset(self, task, seed):
        return [Message(role="system", content="Speak.")] if await super().reset(task, seed) else []


class AlwaysRight(Sound):
    async def outcome(self):
        return Outcome(success=True, reward=1.0)


class NotANumber(Sound):
    async def outcome(self):
        return Outcome(success=False, reward=float("nan"))


class SilentErrors(Sound):
    def run(self, call):
        return super().run(call).replace("Error", "Sorry")


class ClosesOnce(Sound):
    async def close(self):
        del self.said


@pytest.mark.parametrize(("env", "rule", "why"), [
    (Raises, "answers", "an unknown tool: step raised KeyError: 'word'"),
    (Swallows, "answers", "nothing came back"),
    (Leaks, "evidence", "its system message holds"),
    (Shares, "instances", "instances share state"),
    (Drifts, "reset", "began in another way"),
    (EndsWithTheSystem, "reset", "a user message last"),
    (AlwaysRight, "outcome", "only says that it does not know succeeds"),
    (NotANumber, "outcome", "the reward is nan"),
    (SilentErrors, "errors", "does not begin with Error"),
    (ClosesOnce, "close", "raised AttributeError"),
])
async def test_each_breach_is_named(env, rule: str, why: str) -> None:
    assert why in (await broken(Tasks(env))).get(rule, "")


async def test_tasks_that_cannot_serve_are_named() -> None:
    assert "nothing to train on" in (await broken(Tasks(train=0)))["tasks"]
    shared = Tasks()
    shared.test = shared.train[:1]
    assert "share 1 tasks" in (await broken(shared))["tasks"]
    odd = Tasks()
    odd.train[1] = Task(id="odd", data={"pair": (1, 2)}, evidence={"code": "code-1"})
    assert "not the same after being stored" in (await broken(odd))["tasks"]
    twice = Tasks()
    twice.train[1] = twice.train[0]
    assert "ids twice: ['a0']" in (await broken(twice))["tasks"]


# --- docs/your-environment.md ------------------------------------------------------------------------------------
@pytest.fixture
def storehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example of the page as a module of a user's; its task set's name."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "your-environment.md").read_text(), re.S)
    (tmp_path / "storehouse.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "storehouse.Storehouses"


def test_the_example_of_the_page_passes(storehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([storehouse, "--options", '{"n_train": 20}']) == 0
    assert f"all {len(RULES)} rules hold" in capsys.readouterr().out


def test_what_is_no_environment_is_refused(storehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storehouse.Storehouse"]) == 2 and "is no task set" in capsys.readouterr().err
    assert main(["no_such_pkg.Tasks"]) == 2 and main([storehouse, "--options", "{"]) == 2
