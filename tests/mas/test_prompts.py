"""The prompt packs: each role is given what it must be told, and evidence stands nowhere but there."""

import json

import pytest

from rti.envs.navigation.tools import TOOLS
from rti.mas.prompts import ROLES, load_pack
from rti.mas.roles import RoleContext, Validation, read_correction, read_validation, read_verdict
from rti.trajectory import Message, ToolCall

EVIDENCE = {
    "order_level": 3, "reference": {"origin": "87.1,43.2", "waypoints": ["87.3,43.4"], "destination": "87.5,43.6"},
    "stops": [{"name": n, "province": "Xinjiang", "location": loc}
              for n, loc in (("Xindian", "87.1,43.2"), ("Dongshan", "87.3,43.4"), ("Beishan", "87.5,43.6"))],
}
HISTORY = [
    Message(role="system", content="You plan trips."), Message(role="user", content="From Xindian via Dongshan to Beishan."),
    Message(role="assistant", reasoning="Look.",
            tool_calls=[ToolCall(name="poi_search", arguments={"address": "Xindian"}, id="c0")]),
    Message(role="tool", content="no match", tool_call_id="c0", name="poi_search"),
]
CTX = RoleContext(
    tools=TOOLS, history=HISTORY, draft=Message(role="assistant", content="DRAFT-TEXT"), evidence=EVIDENCE,
    validation=Validation(diagnosis="DIAGNOSIS-TEXT", is_valid=False, error_types=["PREMATURE_TERMINATION"], suggest_next="s"),
    correction=Message(role="assistant", content="CORRECTION-TEXT"),
)


def text(messages):
    return "\n".join(m.content for m in messages)


@pytest.mark.parametrize("name", ["full", "compact"])
@pytest.mark.parametrize("role", ROLES)
def test_each_role_is_given_the_history_the_draft_and_the_evidence(name, role):
    messages = getattr(load_pack(name, "navigation"), role)(CTX)
    said = text(messages)
    assert messages[-1].role == "user"
    for wanted in ("From Xindian via Dongshan to Beishan.", "no match", "DRAFT-TEXT", "87.3,43.4"):
        assert wanted in said
    assert ("DIAGNOSIS-TEXT" in said) == (role == "corrector")
    assert ("CORRECTION-TEXT" in said) == (role == "verifier")


def test_the_full_pack_names_every_rule_of_a_role():
    pack = load_pack("full", "navigation")
    for error in ("FABRICATED_ARGUMENTS", "POINTLESS_REPEAT", "FALSE_CLAIM", "PREMATURE_TERMINATION", "CONTRADICTORY_ACTION",
                  "GOAL_DRIFT", "ARGUMENT_MISMATCH"):
        assert error in pack.validator(CTX)[0].content
    for reason in ("leak", "not_derivable", "fabricated_tool_result", "wrong_tool_arguments", "unreasonable_calibration"):
        assert reason in pack.verifier(CTX)[0].content
    for role in ("corrector", "verifier"):
        assert '"direction"' in text(getattr(pack, role)(CTX)), "the tools are shown"


def test_the_history_stands_in_the_full_pack_as_json():
    said = load_pack("full", "navigation").validator(CTX)[1].content
    block = said.split("## Conversation so far\n")[1].split("\n\n## ")[0]
    history = json.loads(block)
    assert [m["role"] for m in history] == ["system", "user", "assistant", "tool"]
    assert history[2] == {"role": "assistant", "reasoning": "Look.",
                          "tool_calls": [{"name": "poi_search", "arguments": {"address": "Xindian"}, "id": "c0"}]}
    assert history[3] == {"role": "tool", "tool": "poi_search", "tool_call_id": "c0", "content": "no match"}


def test_the_form_of_an_answer_is_not_itself_an_answer():
    """A model that repeats its instructions must count as malformed."""
    pack = load_pack("full", "navigation")
    for role, read in zip(ROLES, (read_validation, read_correction, read_verdict), strict=True):
        system = getattr(pack, role)(CTX)[0].content
        form = system[system.index("Answer with one JSON object"):]
        assert "{" in form
        if role != "corrector":     # the Corrector's form is valid JSON by nature; its made-up tool is refused by the guard
            assert read(form) is None


def test_every_order_level_is_explained():
    seen = set()
    for level in range(5):
        ctx = RoleContext(tools=TOOLS, history=HISTORY, draft=CTX.draft, evidence={**EVIDENCE, "order_level": level})
        seen.add(text(load_pack("full", "navigation").validator(ctx)))
    assert len(seen) == 5
