"""The rule-based roles over τ² evidence: they judge single drafts, and carry a policy that does nothing to reward 1."""

import asyncio

import msgspec
import pytest

from rti.envs.tau2.domain import load_domain
from rti.envs.tau2.taskset import rti_task
from rti.mas import guards
from rti.mas.prompts import ROLES, load_pack
from rti.mas.roles import RoleContext
from rti.mas.rules import load_rules
from rti.mas.rules.tau2_case import Case
from rti.trajectory import Message, ToolCall
from tests.envs.tau2_pairs import domain
from tests.mas.scripted import say
from tests.mas.tau2_useless import episode, outcomes

RULES = load_rules("tau2")
CUSTOMER = ('{"customer_id": "C1001", "phone_number": "555-123-2002", "line_ids": ["L1001", "L1002"], "bill_ids": []}')
EXCHANGE = ("exchange_delivered_order_items", {
    "order_id": "#W2378156", "item_ids": ["1151293680", "4983901480"], "new_item_ids": ["7706410293", "7747408585"],
    "payment_method_id": "credit_card_9513926"})
DETAILS = "Order #W2378156: 1151293680; 4983901480 for 7706410293; 7747408585, paid by credit_card_9513926. Proceed (yes/no)?"


def task_of(name, begins=""):
    d = domain(name)
    return d, rti_task(d, next(t for t in d.tasks("base") if t.id.startswith(begins)))


def context(name, begins, history, draft):
    d, task = task_of(name, begins)
    return RoleContext(tools=d.tools, history=[Message(role="system", content=d.policy), *history], draft=draft,
                       evidence=task.evidence)


def call(name, /, **arguments):
    return Message(role="assistant", tool_calls=[ToolCall(name=name, arguments=arguments)])


def text(content, role="assistant"):
    return Message(role=role, content=content)


def user(content):
    return text(content, "user")


IDENTIFIED = [user("My phone 555-123-2002 has no data."), call("get_customer_by_phone", phone_number="555-123-2002"),
              Message(role="tool", name="get_customer_by_phone", content=CUSTOMER)]
MOBILE = "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off"


# --- the whole way -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name,step,known", [("telecom", 3, set()), ("retail", 12, {"108"}), ("airline", 8, {"8", "16", "40"})])
def test_a_policy_that_does_nothing_is_carried_to_reward_1_but_for_the_tasks_known_to_fail(name, step, known):
    d = load_domain(name)       # the package's own data: which tasks fail is known for these (docs/tau2.md)
    tasks = [rti_task(d, t) for t in d.tasks("base")[::step]]
    done = [asyncio.run(episode(d, t, True)) for t in tasks]
    failed = {t.task_id: outcomes(t) for t in done if not t.success}
    assert set(failed) == known, failed
    assert not any("guard" in o or "malformed" in o for t in done for o in outcomes(t)), "nothing legitimate is refused"


def test_without_intervention_it_gets_nothing_done():
    d = domain("telecom")
    assert not any(asyncio.run(episode(d, rti_task(d, t), False)).success for t in d.tasks("base")[::30])


def test_an_agent_that_calls_the_users_tools_is_led_back():
    d, task = task_of("telecom", MOBILE)
    done = asyncio.run(episode(d, task, True, say(calls=[("toggle_airplane_mode", {})])))
    assert done.success and done.info["user_tools_by_agent"] == 0
    assert all("USER_SIDE_DEVICE_ACTION" in s.intervention.error_types for s in done.steps)


# --- the Validator -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("history,draft,error", [
    (IDENTIFIED, call("toggle_airplane_mode"), "USER_SIDE_DEVICE_ACTION"),
    (IDENTIFIED, call("get_details_by_id", id="L9999"), "FABRICATED_ARGUMENTS"),
    (IDENTIFIED, call("get_customer_by_phone", phone_number="555-123-2002"), "POINTLESS_REPEAT"),
    (IDENTIFIED, call("transfer_to_human_agents", summary="no data"), "PREMATURE_TERMINATION"),
    (IDENTIFIED, text("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."), "PREMATURE_TERMINATION"),
    (IDENTIFIED, text("I have enabled roaming for you."), "FALSE_CLAIM"),
    (IDENTIFIED, text("Nice weather."), "GOAL_DRIFT"),
    (IDENTIFIED, call("get_details_by_id", id="L1001"), ""),
    (IDENTIFIED, call("get_data_usage", customer_id="C1001", line_id="L1002"), ""),
    (IDENTIFIED, text("Is airplane mode on?"), ""),
    (IDENTIFIED, text("Please turn it off with toggle_airplane_mode."), ""),
])
def test_the_validator_in_telecom(history, draft, error):
    answer = RULES.validate(context("telecom", MOBILE, history, draft))
    assert answer.error_types == ([error] if error else []) and answer.is_valid == (not error)
    assert bool(answer.suggest_next) == bool(error)


KNOWN = [user("Order #W2378156, items 1151293680, 4983901480, 7706410293, 7747408585, 5555555555, credit_card_9513926.")]


@pytest.mark.parametrize("history,draft,error", [
    (KNOWN, call(EXCHANGE[0], **EXCHANGE[1]), "MISSING_CONFIRMATION"),
    ([*KNOWN, text(DETAILS), user("No.")], call(EXCHANGE[0], **EXCHANGE[1]), "MISSING_CONFIRMATION"),
    ([*KNOWN, text("Proceed?"), user("Yes.")], call(EXCHANGE[0], **EXCHANGE[1]), "MISSING_CONFIRMATION"),
    ([*KNOWN, text(DETAILS), user("Yes.")], call(EXCHANGE[0], **EXCHANGE[1] | {"new_item_ids": ["5555555555"]}),
     "ARGUMENT_MISMATCH"),
    ([*KNOWN, text(DETAILS), user("Yes, please.")], call(EXCHANGE[0], **EXCHANGE[1]), ""),
    (KNOWN, text(DETAILS), ""),
])
def test_the_validator_in_retail(history, draft, error):
    answer = RULES.validate(context("retail", "0", history, draft))
    assert answer.error_types == ([error] if error else [])


# --- the Corrector -------------------------------------------------------------------------------------------------
def test_the_corrector_asks_before_it_looks_up_and_looks_up_before_it_uses():
    first = RULES.correct(context("telecom", MOBILE, [user("I have no data.")], text("Hm.")))
    assert not first.tool_calls and "phone number" in first.content
    then = RULES.correct(context("telecom", MOBILE, [user("I have no data: 555-123-2002.")], text("Hm.")))
    assert then.tool_calls == [ToolCall(name="get_customer_by_phone", arguments={"phone_number": "555-123-2002"})]


def test_a_device_action_counts_as_done_once_the_user_reports_it():
    def left(*more):
        return [a.name for _, a in Case(context("telecom", MOBILE, [*IDENTIFIED, *more], text(""))).open_actions()]

    asked = text("Please turn it off with toggle_airplane_mode.")
    assert left() == left(asked) == ["toggle_airplane_mode", "toggle_roaming"]
    assert left(asked, user("It is off now.")) == ["toggle_roaming"]
    assert left(asked, user("toggle_airplane_mode: Error: broken")) == ["toggle_airplane_mode", "toggle_roaming"]


@pytest.mark.parametrize("correction,reason", [
    (text("As the reference answer says, use toggle_data."), "leak"),
    (call("enable_roaming", customer_id="C1001", line_id="L7777"), "wrong_tool_arguments"),
    (call("get_details_by_id", number=3), "wrong_tool_arguments"),
    (text("Your line has been updated."), "fabricated_tool_result"), (text("Hm."), "unreasonable_calibration"),
    (text("Is airplane mode on?"), ""),
])
def test_the_verifier(correction, reason):
    ctx = context("telecom", MOBILE, IDENTIFIED, text("Hm."))
    answer = RULES.verify(msgspec.structs.replace(ctx, correction=correction))
    assert answer.reasons == ([reason] if reason else []) and answer.ok == (not reason)


# --- evidence and prompts --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["telecom", "retail", "airline"])
def test_every_base_task_has_its_evidence_as_plain_data(name):
    d = domain(name)
    for official in d.tasks("base"):
        evidence = rti_task(d, official).evidence
        msgspec.json.encode(evidence)
        actions = official.evaluation_criteria.actions or []
        both = sorted(evidence["agent_actions"] + evidence["user_actions"], key=lambda a: a["place"])
        assert [a["name"] for a in both] == [a.name for a in actions]
        assert {a["name"] for a in evidence["user_actions"]} <= set(evidence["user_tools"])
        assert evidence["completion"].startswith("Done when ")


@pytest.mark.parametrize("name,own", [("telecom", "USER_SIDE_DEVICE_ACTION"), ("retail", "MISSING_CONFIRMATION"),
                                      ("airline", "MISSING_CONFIRMATION")])
def test_auto_gives_a_task_the_prompts_of_its_domain(name, own):
    pack = load_pack("auto", "tau2", "lab")
    ctx = context(name, "", [user("Good day.")], text("DRAFT-TEXT"))
    asked = {role: "\n".join(m.content for m in getattr(pack, role)(ctx)) for role in ROLES}
    common = ("FABRICATED_ARGUMENTS", "POINTLESS_REPEAT", "FALSE_CLAIM", "PREMATURE_TERMINATION", "CONTRADICTORY_ACTION",
              "GOAL_DRIFT", "ARGUMENT_MISMATCH", own, ctx.evidence["completion"])
    assert all(word in asked["validator"] for word in common)
    assert all(r in asked["verifier"] for r in ("leak", "fabricated_tool_result", "wrong_tool_arguments",
                                                "unreasonable_calibration"))
    assert all("DRAFT-TEXT" in a and "Required agent-side actions" in a and "Good day." in a for a in asked.values())
    assert ("Required user-side actions" in asked["validator"]) == (name == "telecom")
    assert not any(b in a for a in asked.values() for b in ("{agent}", "{errors}", "{corrector}", "{done_by_user}"))


def test_the_example_ids_of_a_schema_are_not_taken_for_shown():
    ctx = context("retail", "0", [user("Hello.")], text(""))
    assert Case(ctx).missing({"item_ids": ["1008292230"], "order_id": "#W0000000"}) == ["1008292230", "#W0000000"]
    assert guards.schema_violation(ToolCall(name=EXCHANGE[0], arguments=EXCHANGE[1]), ctx.tools) == ""
