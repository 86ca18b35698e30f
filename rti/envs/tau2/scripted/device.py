"""A scripted user's hands: which device actions a text of the agent asks for, and whether the device now does what it should.

An action is asked for by its tool's name, or, in a text without names, by a plain phrase. Where the agent says which way a
switch should be ("turn airplane mode off"), the user looks first and leaves a switch that is right already.
"""

from __future__ import annotations

import re
from typing import Any, Collection, NamedTuple


class Move(NamedTuple):
    """A call on the device. `wanted` (on, off): a look before the switch `then`, which is used only where it is needed."""

    name: str
    arguments: dict[str, Any]
    wanted: str = ""
    then: str = ""


class _Goal(NamedTuple):
    story: str          # where the scenario says this, it is the goal
    check: str
    reached: str
    missed: str


_GOALS = (
    _Goal(r"speed test returns excellent|excellent internet speed", "run_speed_test", r"\(Excellent\)",
          "The internet is still not as fast as I need it."),
    _Goal(r"\bMMS\b[^.]*\b(messag|send)", "can_send_mms", r"\bcan send MMS", "I still cannot send an MMS."),
    _Goal(r"status bar shows that you have signal|No Service", "check_status_bar", r"📶", "There is still no signal."))

_SWITCHES = {       # switch: (where its state is read, the state in that reply)
    "toggle_airplane_mode": ("check_network_status", r"Airplane Mode: (ON|OFF)"),
    "toggle_data": ("check_network_status", r"Mobile Data Enabled: (Yes|No)"),
    "toggle_roaming": ("check_network_status", r"Data Roaming Enabled: (Yes|No)"),
    "toggle_wifi": ("check_network_status", r"Wi-Fi Radio: (ON|OFF)"),
    "toggle_data_saver_mode": ("check_data_restriction_status", r"mode is (ON|OFF)"),
    "toggle_wifi_calling": ("check_wifi_calling_status", r"turned (ON|OFF)")}

_DO = r"\b(turn|switch|toggle|disable|enable|set)\b[^.]*?"
_PHRASES = (        # the first that fits a clause counts
    (r"\bre-?(boot|start)|turn[^.]*\boff and (back )?on", "reboot_device"),
    (r"\bre-?(seat|insert)[^.]*\bsim\b|\btake out[^.]*\bsim\b", "reseat_sim_card"),
    (_DO + r"\b(airplane|flight) mode", "toggle_airplane_mode"), (_DO + r"\bdata saver", "toggle_data_saver_mode"),
    (_DO + r"\bwi-?fi calling", "toggle_wifi_calling"), (_DO + r"\broaming", "toggle_roaming"),
    (_DO + r"\bmobile data\b|" + _DO + r"\bcellular data\b", "toggle_data"), (_DO + r"\bwi-?fi\b", "toggle_wifi"),
    (r"\b(reset|restore)\b[^.]*\bapn\b", "reset_apn_settings"),
    (r"\b(disconnect|turn off|disable)\b[^.]*\bvpn", "disconnect_vpn"),
    (r"\b(connect to|turn on|enable)\b[^.]*\bvpn", "connect_vpn"),
    (r"\b(grant|allow|give)\b[^.]*\bpermission", "grant_app_permission"),
    (r"\b(set|change|switch)\b[^.]*\bnetwork (mode|preference)", "set_network_mode_preference"),
    (r"\b(accept|make|approve)\b[^.]*\bpayment|\bpay (it|the|your)\b", "make_payment"),
    (r"\bpayment request", "check_payment_request"), (r"\bspeed test|\bhow fast", "run_speed_test"),
    (r"\b(send|try)\b[^.]*\b(mms|picture message)", "can_send_mms"), (r"\bpermissions?\b", "check_app_permissions"),
    (r"\binstalled apps|\bwhich apps", "check_installed_apps"), (r"\bsim\b[^.]*\b(status|work|check)|\bcheck[^.]*\bsim\b",
                                                                 "check_sim_status"),
    (r"\bapn\b", "check_apn_settings"), (r"\bvpn\b", "check_vpn_status"), (r"\bdata saver", "check_data_restriction_status"),
    (r"\bwi-?fi calling", "check_wifi_calling_status"), (r"\bwi-?fi\b", "check_wifi_status"),
    (r"\bnetwork mode|\bpreferred network", "check_network_mode_preference"),
    (r"\bstatus bar|\bsignal\b|\bbars\b", "check_status_bar"),
    (r"\bairplane mode|\broaming|\bmobile data\b|\bnetwork status", "check_network_status"))
_AGAIN = re.compile(r"\b(try|check|test) (it |that |this )?(again|now)|\b(is|does) (it|everything) (now )?work|\bresolved\b|"
                    r"\bworking now|\bfixed\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[.;!?\n]+|\b(?:and then|then|after that)\b", re.IGNORECASE)
_NOT_MINE = re.compile(r"\b(i|we)(['’](ve|ll|m|re)| have| will| can| am| are| could| enabled| sent)\b", re.IGNORECASE)
_NEGATED = re.compile(r"\b(do not|don['’]t|never|without|no need to|avoid)\b[^.]*$", re.IGNORECASE)
_MODES = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only")
_PERMISSIONS = ("sms", "storage", "camera", "location", "microphone", "contacts", "phone", "network")
_READS = ("check_", "run_", "can_")


class Device:
    """`story` is the scenario's text, `tools` the names of the user's tools."""

    def __init__(self, story: str, tools: Collection[str]) -> None:
        self._tools = sorted(tools, key=len, reverse=True)
        self._goal = next((g for g in _GOALS if re.search(g.story, story)), None)
        self.satisfied = False

    @property
    def complaint(self) -> str:
        return self._goal.missed if self._goal else ""

    def moves(self, text: str) -> list[Move]:
        """The calls that the agent asks for, in its order; after a change the user looks whether its trouble is gone."""
        moves: list[Move] = []
        for name, clause in self._named(text) or self._phrased(text):
            moves += [m for m in _calls(name, clause, text) if m not in moves]
        if not moves and not (self._goal and _AGAIN.search(text)):
            return []
        changed = any(not m.name.startswith(_READS) or m.wanted for m in moves)
        if self._goal and (changed or not moves) and self._goal.check not in [m.name for m in moves]:
            moves.append(Move(self._goal.check, {}))
        return moves

    def after_look(self, look: Move, reply: str) -> list[Move]:
        """The switch itself, where the look shows that it is not as wanted."""
        state = re.search(_SWITCHES[look.then][1], reply)
        is_on = bool(state) and state[1] in ("ON", "Yes")
        return [] if is_on == (look.wanted == "on") else [Move(look.then, {})]

    def saw(self, name: str, reply: str) -> None:
        if self._goal and name == self._goal.check:
            self.satisfied = bool(re.search(self._goal.reached, reply))

    def _named(self, text: str) -> list[tuple[str, str]]:
        """Tools that stand in the text by name, with the clause around each."""
        if not self._tools:
            return []
        found = []
        for match in re.finditer(rf"(?<![\w])({'|'.join(map(re.escape, self._tools))})(?![\w])", text):
            before = re.split(r"[.;!?\n]", text[:match.start()])[-1]
            after = re.split(r"[.;!?\n]", text[match.end():])[0]
            if not _NEGATED.search(before):
                found.append((match[1], f"{before} {after}"))
        return found

    def _phrased(self, text: str) -> list[tuple[str, str]]:
        found = []
        for clause in _CLAUSE.split(text):
            if _NOT_MINE.search(clause) or _NEGATED.search(clause):
                continue
            name = next((n for p, n in _PHRASES if re.search(p, clause, re.IGNORECASE)), None)
            if name in self._tools:
                found.append((name, clause))
        return found


def _calls(name: str, clause: str, text: str) -> list[Move]:
    if name in _SWITCHES:
        ways = {w for w, p in (("on", r"\b(on|enabled?)\b"), ("off", r"\b(off|disabled?)\b")) if re.search(p, clause, re.I)}
        return [Move(_SWITCHES[name][0], {}, ways.pop(), name)] if len(ways) == 1 else [Move(name, {})]
    if name == "set_network_mode_preference":
        return [Move(name, {"mode": next((m for m in _MODES if m in text), "4g_5g_preferred")})]
    if name == "set_apn_settings":      # nobody could dictate them: the user falls back on the default
        return [Move("reset_apn_settings", {})]
    if name == "grant_app_permission":
        wanted = [p for p in _PERMISSIONS if re.search(rf"\b{p}\b", text, re.IGNORECASE)]
        return [Move(name, {"app_name": _app(text), "permission": p}) for p in wanted]
    if name in ("check_app_status", "check_app_permissions"):
        return [Move(name, {"app_name": _app(text)})]
    return [Move(name, {})]


def _app(text: str) -> str:
    named = re.search(r"\b(messaging|browser|email|phone|camera|maps|social)\b(?= app|'|\"|,|\))", text, re.IGNORECASE)
    return named[1].lower() if named else "messaging"
