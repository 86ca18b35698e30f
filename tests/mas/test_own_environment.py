"""An environment of a user's own, the example of docs/your-environment.md, under the intervention with the generic prompts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from rti.config.schema import Config, EnvConfig
from rti.envs import load_task_set
from rti.mas.pipeline import build_pipeline
from rti.mas.prompts import ROLES, load_pack
from rti.mas.roles import REFUSAL_REASONS, RoleContext, Validation
from rti.rollout import run_episode
from rti.trajectory import Message
from tests.mas.scripted import ScriptedEngine, byte_chat, say

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "your-environment.md").read_text(), re.S)
    assert len(code.splitlines()) <= 60
    (tmp_path / "storehouse.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield load_task_set(EnvConfig(name="storehouse", class_="storehouse.Storehouses"), seed=3)
    sys.modules.pop("storehouse", None)


def test_an_environment_without_a_pack_gets_the_generic_one() -> None:
    assert load_pack("auto", "storehouse", "lab") is load_pack("auto", "storehouse") is load_pack("generic", "navigation")
    assert load_pack("auto", "navigation", "lab").__name__.endswith("navigation_compact")
    with pytest.raises(ValueError, match="no full prompt pack for environment 'storehouse'"):
        load_pack("full", "storehouse")


@pytest.mark.parametrize("role", ROLES)
def test_the_generic_pack_gives_each_role_what_it_must_know(tasks, role: str) -> None:
    draft, correction = (Message(role="assistant", content=text) for text in ("DRAFT", "CORRECTION"))
    ctx = RoleContext(tools=tasks.make().tools, history=[Message(role="user", content="QUESTION")], draft=draft,
                      evidence={"shelf": "SHELF-9"}, correction=correction,
                      validation=Validation(diagnosis="DIAGNOSIS", is_valid=False))
    said = "\n".join(m.content for m in getattr(load_pack("generic", ""), role)(ctx))
    assert all(word in said for word in ("QUESTION", "DRAFT", "SHELF-9", '"look"'))
    assert ("DIAGNOSIS" in said) == (role == "corrector") and ("CORRECTION" in said) == (role == "verifier")
    assert role != "verifier" or all(reason in said for reason in REFUSAL_REASONS)


async def test_a_failed_task_of_the_example_is_rescued(tasks) -> None:
    """The policy answers at once and wrongly; the Corrector has it look first; it then answers what it saw."""
    task = tasks.train[0]
    shelf, count, thing = task.evidence["shelf"], task.evidence["count"], task.data["thing"]

    def script(text: str, params) -> str:
        if "You review one step" in text:
            seen = f"{count} {thing}" in text.split("## Conversation so far")[1].split("## The step under review")[0]
            return json.dumps({"diagnosis": "it guesses", "is_valid": seen, "error_types": [] if seen else
                               ["FABRICATED_ARGUMENTS"], "suggest_next": "look"})
        if "you write your next step" in text:
            return say("Let me look.", [("look", {"shelf": shelf})])
        if "You check a corrected step" in text:
            return json.dumps({"ok": True, "reasons": [], "diagnosis": "fine"})
        if f"{count} {thing}" in text:
            return say("Found.", [("answer", {"shelf": shelf, "count": count})])
        return say("I guess.", [("answer", {"shelf": shelf, "count": count + 1})])

    config = Config()
    config.rollout.max_tokens, config.rollout.max_context = 400, 20_000
    config.intervention.guards = False      # shelf names are single letters that the question does not hold
    engine = ScriptedEngine(byte_chat(), script)
    policy = build_pipeline(config.intervention, "storehouse", engine, engine.chat, config.rollout)
    rescued = await run_episode(task, tasks.make(), policy, engine.chat, id="0-0/i0", group_id="0-0", seed=1,
                                limits=config.rollout, temperature=0.8, intervened=True)
    assert rescued.success and rescued.n_accepted == 1 and [len(s.message.tool_calls) for s in rescued.steps] == [1, 1]
    rollout_prompts = [p for p in engine.prompts if "review one step" not in p and "hidden" not in p.lower()]
    assert rollout_prompts and not any(json.dumps(task.evidence) in p for p in rollout_prompts)
