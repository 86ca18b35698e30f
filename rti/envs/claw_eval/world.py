"""The services of one episode, the calls to them, and the log of these calls.

Keeps: all state is in the instance, so that any number of worlds live side by side; whatever the agent calls, it is answered
in JSON: {"data": ..} or {"status": .., "error": ..}; every call is in the log, in order.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import msgspec

from rti.envs.claw_eval.faults import STATUS, TOLD, Faults
from rti.envs.claw_eval.services import SERVICES, TOOLS
from rti.envs.claw_eval.services.base import Refusal, Row, Service, Tool
from rti.trajectory import ToolCall, ToolSchema

Fixtures = Mapping[str, dict[str, list[Row]]]
"""Rows by service and collection."""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the log. `applied`: the service carried it out, also where the reply was lost."""

    tool: str
    service: str
    arguments: dict[str, Any]
    status: int
    writes: bool
    applied: bool
    fault: str = ""


def tools_of(services: Sequence[str]) -> list[ToolSchema]:
    return [t.schema for name in services for t in SERVICES[name].tools]


class World:
    """`older`: rows as they were before, for stale reads (a service without them is as it was at the beginning)."""

    def __init__(self, services: Sequence[str], fixtures: Fixtures, now: str, faults: Faults | None = None,
                 older: Fixtures | None = None) -> None:
        self._fixtures, self._older, self.now = fixtures, older or {}, now
        self._services: dict[str, Service] = {n: SERVICES[n](fixtures.get(n, {}), now) for n in services}
        self._faults = faults or Faults()
        self.log: list[Logged] = []

    def call(self, call: ToolCall) -> str:
        """The reply as JSON text."""
        tool = TOOLS.get(call.name)
        if call.error or tool is None or tool.service not in self._services:
            why = call.error or f"there is no tool {call.name!r}"
            return self._answer(call, tool, 400 if call.error else 404, {"error": why})
        fault = self._faults.next(call.name, tool.writes)
        if fault in ("error", "rate_limit"):
            return self._answer(call, tool, STATUS[fault], {"error": TOLD[fault]}, fault=fault)
        service = self._services[tool.service]
        if fault == "stale":
            service = SERVICES[tool.service]({**self._fixtures.get(tool.service, {}), **self._older.get(tool.service, {})},
                                             self.now)
        try:
            arguments = msgspec.convert(call.arguments, tool.arguments)
            data = getattr(service, tool.method)(**msgspec.structs.asdict(arguments))
        except msgspec.ValidationError as e:
            return self._answer(call, tool, 422, {"error": str(e)})
        except Refusal as e:
            return self._answer(call, tool, e.status, {"error": e.text})
        if fault == "lost_reply":
            return self._answer(call, tool, STATUS[fault], {"error": TOLD[fault]}, applied=True, fault=fault)
        told = {"data": data}
        if fault == "stale":
            told["cached"] = "this answer may be out of date; ask again for the present state"
        elif fault == "slow":
            told["latency_ms"] = self._faults.latency_ms()
        return self._answer(call, tool, 200, told, applied=True, fault=fault or "")

    def _answer(self, call: ToolCall, tool: Tool | None, status: int, told: dict[str, Any], *, applied: bool = False,
                fault: str = "") -> str:
        self.log.append(Logged(tool=call.name, service=tool.service if tool else "", arguments=call.arguments, status=status,
                               writes=bool(tool and tool.writes), applied=applied, fault=fault))
        body = told if status < 400 else {"status": status, **told}
        return msgspec.json.encode(body).decode()
