"""The next correct step in telecom: identify the customer and the line, then the required actions in the reference's order.

Device actions are the user's: the agent names them in a text, one at a time, and reads the outcome in the user's answer.
"""

from __future__ import annotations

import re
from typing import Any

from rti.envs.tau2.evidence import RequiredAction
from rti.mas.roles import Correction
from rti.mas.rules.tau2_case import YES, Case
from rti.trajectory import ToolCall

PLEASE_HOLD = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
_PHONE = re.compile(r"\b\d{3}-\d{3}-\d{4}\b")

_ASK = {
    "toggle_airplane_mode": "Please turn Airplane Mode off with toggle_airplane_mode.",
    "toggle_data": "Please turn mobile data on with toggle_data.",
    "toggle_roaming": "Please turn data roaming on with toggle_roaming.",
    "toggle_data_saver_mode": "Please turn Data Saver off with toggle_data_saver_mode.",
    "toggle_wifi_calling": "Please turn Wi-Fi Calling off with toggle_wifi_calling.",
    "reseat_sim_card": "Please take the SIM card out and put it back with reseat_sim_card.",
    "reset_apn_settings": "Please put the APN settings back to their defaults with reset_apn_settings.",
    "reboot_device": "Please restart your phone with reboot_device.",
    "disconnect_vpn": "Please disconnect the VPN with disconnect_vpn.",
    "make_payment": "I have sent you a payment request. Please look at it with check_payment_request and pay it with "
                    "make_payment.",
}
_CHECKS = {
    "assert_internet_speed": "run_speed_test", "assert_mobile_data_status": "run_speed_test",
    "assert_can_send_mms": "can_send_mms", "assert_service_status": "check_status_bar",
}


def next_step(case: Case) -> Correction | None:
    """None where the visible history offers no way forward."""
    if case.made("transfer_to_human_agents"):
        return _say("The transfer is made, so I tell the user.", PLEASE_HOLD)
    if (step := _identify(case)) is not None:
        return step
    for side, action in case.open_actions():
        return _ask(action) if side == "user" else _act(case, action)
    return _look_again(case)


def _identify(case: Case) -> Correction | None:
    if _customer(case):
        return None
    numbers = _PHONE.findall("\n".join(case.user_texts))
    if not numbers:
        return _say("I have to know who the customer is first.",
                    "I am sorry about the trouble. What is your name, and the phone number of the line?")
    return _call("I look the customer up by the phone number.", "get_customer_by_phone", phone_number=numbers[-1])


def _ask(action: RequiredAction) -> Correction:
    if action.name == "grant_app_permission":
        app, permission = action.arguments["app_name"], action.arguments["permission"]
        text = f"Please give the {app} app the {permission} permission with grant_app_permission."
    elif action.name == "set_network_mode_preference":
        text = f"Please set the network mode to {action.arguments['mode']} with set_network_mode_preference."
    else:
        text = _ASK.get(action.name, f"Please use {action.name} on your phone.")
    return _say("The next thing to put right is on the user's phone, so I ask for it.", f"{text} What does it say then?")


def _act(case: Case, action: RequiredAction) -> Correction | None:
    if action.name == "transfer_to_human_agents":
        summary = f"The customer reports: {case.user_texts[0]}" if case.user_texts else "The issue cannot be solved here."
        return _call("This is beyond what I can do here, so I transfer the user.", action.name, summary=summary)
    if (look := _before(case, action)) is not None:
        return look
    if case.missing(action.arguments):
        return None
    return Correction(reasoning="I have all that is needed for this change.",
                      tool_calls=[ToolCall(name=action.name, arguments=dict(action.arguments))])


def _before(case: Case, action: RequiredAction) -> Correction | None:
    """What must be looked up, or asked, before a change; None where all is there."""
    customer = _customer(case)
    if "bill_id" in action.arguments:
        bills = {"customer_id": customer["customer_id"]}
        if not case.made("get_bills_for_customer", bills):
            return _call("I check the bills of the customer.", "get_bills_for_customer", **bills)
        return None
    if _line(case, customer) is None:
        unseen = [i for i in customer.get("line_ids", []) if not case.tried("get_details_by_id", {"id": i})]
        return _call("I look for the line with this phone number.", "get_details_by_id", id=unseen[0]) if unseen else None
    return _refuel(case, action, customer) if action.name == "refuel_data" else None


def _refuel(case: Case, action: RequiredAction, customer: dict[str, Any]) -> Correction | None:
    line = _line(case, customer)
    plan = _details(case, line["plan_id"])
    if plan is None:
        return _call("I look up what refueling costs on this plan.", "get_details_by_id", id=line["plan_id"])
    price = plan.get("data_refueling_price_per_gb")
    said = [(a, u) for a, u in case.exchanges() if "refuel" in a.lower()]
    if not said:
        return _say("The plan's data may be used up: I ask how much to add.",
                    "The data of your plan is used up. How many GB of data would you like to refuel, 2 GB at most?")
    amount = action.arguments.get("gb_amount")
    if not any(YES.match(u) and f"{amount:g} GB" in a for a, u in said) and len(said) < 3:
        return _say("I confirm the price before I add data.",
                    f"I would refuel {amount:g} GB of data at {price} dollars per GB. Shall I proceed (yes/no)?")
    return None


def _look_again(case: Case) -> Correction | None:
    """All required is done: the user looks whether the trouble is gone, then restarts once."""
    check = next((_CHECKS[a.function] for a in case.evidence.assertions if a.function in _CHECKS), "check_status_bar")
    texts = [f"That should be all. Please check again with {check}. Is it resolved now?",
             f"Please restart your phone with reboot_device and check once more with {check}."]
    text = next((t for t in texts if t not in case.agent_texts[-2:]), None)
    return _say("The changes are made; I see whether they helped.", text) if text else None


def _customer(case: Case) -> dict[str, Any] | None:
    for name in ("get_customer_by_phone", "get_customer_by_id"):
        if (made := case.made(name)) and isinstance(made.data, dict):
            return made.data
    made = case.made("get_customer_by_name")
    return made.data[0] if made and isinstance(made.data, list) and made.data else None


def _line(case: Case, customer: dict[str, Any]) -> dict[str, Any] | None:
    """The line that the user calls about."""
    numbers = _PHONE.findall("\n".join(case.user_texts)) or [customer.get("phone_number")]
    return next((d.data for d in case.calls if isinstance(d.data, dict) and "line_id" in d.data
                 and d.data.get("phone_number") in numbers), None)


def _details(case: Case, id: str) -> dict[str, Any] | None:
    made = case.made("get_details_by_id", {"id": id})
    return made.data if made and isinstance(made.data, dict) else None


def _say(reasoning: str, text: str) -> Correction:
    return Correction(reasoning=reasoning, content=text)


def _call(reasoning: str, name: str, **arguments: Any) -> Correction:
    return Correction(reasoning=reasoning, tool_calls=[ToolCall(name=name, arguments=arguments)])
