"""The mock services of an official checkout, in this process: each episode runs its own copy of their code, without ports.

Keeps: no two episodes share anything. A service's file is compiled once and executed anew for each episode in a namespace of
its own; what it imports of the process (os.environ, sys.path, the clock) is put in by us, so that nothing global is read or
changed, and its file stays as it is. The clock is the task's own: see `clock_of`.
"""

from __future__ import annotations

import builtins
import datetime as real_datetime
import functools
import itertools
import json
import os
import sys
import types
from pathlib import Path
from typing import Any, Sequence
from urllib.parse import urlsplit

import httpx

from rti.envs.base import EnvironmentFault

NOON = real_datetime.datetime(2026, 3, 2, 9, 0, tzinfo=real_datetime.timezone.utc)
"""The clock of a service whose fixtures say nothing about the day."""

_numbers = itertools.count()


class Services:
    """The services of one task for one episode. `task`: an official TaskDefinition. Raises EnvironmentFault where one does not
    start. A call is one request at a time, as an agent makes them."""

    def __init__(self, home: Path, task: Any) -> None:
        self._by_port: dict[int, httpx.AsyncClient] = {}
        self._task = task
        clock = clock_of(home, task.services)
        for service in task.services:
            app = _app(home, service, clock)
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            self._by_port[service.port] = httpx.AsyncClient(transport=transport, timeout=30.0)

    async def request(self, method: str, url: str, body: Any = None) -> httpx.Response:
        """As the network would answer. Raises httpx.ConnectError where no service of the task has the URL's port."""
        client = self._by_port.get(urlsplit(url).port or 80)
        if client is None:
            raise httpx.ConnectError("[Errno 111] Connection refused")
        return await client.request(method, url, json=body) if body is not None else await client.request(method, url)

    async def audits(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(service, URL, its audit) in the task's order, where a service keeps one."""
        found = []
        for service in self._task.services:
            if service.reset_endpoint:
                url = service.reset_endpoint.rsplit("/reset", 1)[0] + "/audit"
                found.append((service.name, url, (await self.request("GET", url)).json()))
        return found

    async def close(self) -> None:
        for client in self._by_port.values():
            await client.aclose()
        self._by_port.clear()


# --- the task's own clock ----------------------------------------------------------------------------------------
def clock_of(home: Path, services: Sequence[Any]) -> dict[str, real_datetime.datetime]:
    """What time it is for each service (by name), always the same moment throughout an episode.

    Mail and calendar shift their fixtures to the day they run (mail so that the newest is a day old, the calendar so that the
    first event is a day ahead), while prompts and graders name days. At the moments given here both shifts are zero, so that
    the days are those that the task was written with. The other services take mail's moment, else the calendar's, else NOON."""
    moments = {s.name: moment for s in services if (moment := _unshifted(home, s))}
    first = next((moments[n] for n in ("gmail", "calendar") if n in moments), NOON)
    return {s.name: moments.get(s.name, first) for s in services}


def _unshifted(home: Path, service: Any) -> real_datetime.datetime | None:
    day = real_datetime.timedelta(days=1)
    if service.name == "gmail":
        dates = _dates(home, service, "GMAIL_FIXTURES", "date")
        return max(dates) + day if dates else None
    if service.name == "calendar":
        dates = _dates(home, service, "CALENDAR_FIXTURES", "start_time")
        return min(dates) - day if dates else None
    return None


def _dates(home: Path, service: Any, variable: str, key: str) -> list[real_datetime.datetime]:
    name = (service.env or {}).get(variable)
    if not name:
        return []
    records = json.loads((home / name).read_text(encoding="utf-8"))
    return [real_datetime.datetime.fromisoformat(r[key].replace("Z", "+00:00")) for r in records]


def _stopped(moment: real_datetime.datetime) -> types.ModuleType:
    """The datetime module with a clock that stands at `moment`."""
    class Datetime(real_datetime.datetime):
        @classmethod
        def now(cls, tz: real_datetime.tzinfo | None = None) -> real_datetime.datetime:
            return cls.fromisoformat((moment.astimezone(tz) if tz else moment.replace(tzinfo=None)).isoformat())

        @classmethod
        def utcnow(cls) -> real_datetime.datetime:
            return cls.now()

        @classmethod
        def today(cls) -> real_datetime.datetime:
            return cls.now()

    class Date(real_datetime.date):
        @classmethod
        def today(cls) -> real_datetime.date:
            return cls(moment.year, moment.month, moment.day)

    return _copy(real_datetime, datetime=Datetime, date=Date)


# --- one service's code in a namespace of its own ----------------------------------------------------------------
@functools.cache
def _code(path: Path) -> types.CodeType:
    return compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)


def _copy(module: types.ModuleType, **instead: Any) -> types.ModuleType:
    made = types.ModuleType(module.__name__)
    made.__dict__.update({**module.__dict__, **instead})
    return made


def _app(home: Path, service: Any, clock: dict[str, real_datetime.datetime]) -> Any:
    """The service's ASGI application, freshly made."""
    path = script_of(home, service)
    name = f"claw_eval_service_{path.parent.name}_{next(_numbers)}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(home, service, clock[service.name])}
    sys.modules[name] = module          # where pydantic looks up the names in annotations
    try:
        exec(_code(path), module.__dict__)
        return module.__dict__["app"]
    except Exception as fault:
        raise EnvironmentFault(f"the official service {service.name} ({path.name} of {path.parent.name}) does not start: "
                               f"{type(fault).__name__}: {fault}") from fault
    finally:
        del sys.modules[name]


def script_of(home: Path, service: Any) -> Path:
    """The file that a service's command runs ("python mock_services/gmail/server.py")."""
    return home / service.command.split()[-1]


def _importer(home: Path, service: Any, moment: real_datetime.datetime) -> Any:
    """__import__ for a service's code: the same modules, but for those by which it would reach what all episodes share."""
    environ = {"PATH": os.defpath, **{k: _absolute(home, str(v)) for k, v in (service.env or {}).items()}}
    faults = types.ModuleType("mock_services._base")        # its random faults are off by default (ERROR_RATE=0)
    faults.__dict__["add_error_injection"] = lambda app: None
    private = {"os": _copy(os, environ=environ, getenv=environ.get), "sys": _copy(sys, path=[]), "datetime": _stopped(moment),
               "mock_services._base": faults}

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        return private[name] if name in private else builtins.__import__(name, globals, locals, fromlist, level)

    return imported


def _absolute(home: Path, value: str) -> str:
    """A file of the checkout by its whole path: the official runner stands in the checkout, this process does not."""
    return str(home / value) if "/" in value and not os.path.isabs(value) else value
