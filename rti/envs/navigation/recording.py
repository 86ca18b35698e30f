"""A file of service replies: written while recording, read while replaying. Replay never asks the service.

Keeps: no key is ever written (a request's identity leaves key, sig and callback out), and a request that is not in the file
stops the run with a message that names it. JSON lines; each is appended whole, so several processes may record to one file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping

from rti.envs.base import FatalEnvironmentError
from rti.envs.navigation.geometry import CoordinateError, normalise_pair

SECRET_PARAMETERS = frozenset({"key", "sig", "callback"})
_COORDINATES = ("location", "origin", "destination", "waypoints")


def identity(path: str, params: Mapping[str, str]) -> str:
    """What a request is cached and recorded under: path and sorted parameters, without secrets, coordinates normalised."""
    parts = []
    for name in sorted(set(params) - SECRET_PARAMETERS):
        value = params[name]
        if name in _COORDINATES:
            value = ";".join(_normal(pair) for pair in value.split(";"))
        parts.append(f"{name}={value}")
    return f"{path}?{'&'.join(parts)}"


def _normal(pair: str) -> str:
    try:
        return normalise_pair(pair)
    except CoordinateError:
        return pair


class Recorder:
    """Appends replies to a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, request: str, reply: Mapping[str, Any]) -> None:
        line = json.dumps({"request": request, "reply": reply}, ensure_ascii=False, separators=(",", ":")) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


class Recording:
    """Replies read from a file. The first reply recorded for a request is the one replayed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._replies: dict[str, dict[str, Any]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError as e:
            raise FatalEnvironmentError(
                f"cannot read the recording {self.path}: {e.strerror}; mend: set env.navigation.record to a file made with "
                f"service=offline or service=amap and the same setting") from e
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._replies.setdefault(entry["request"], entry["reply"])
            except (ValueError, KeyError, TypeError):
                raise FatalEnvironmentError(f"line {number} of the recording {self.path} is damaged; mend: "
                                            f"delete that line") from None

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, request: str) -> dict[str, Any]:
        reply = self._replies.get(request)
        if reply is None:
            raise FatalEnvironmentError(
                f"the recording {self.path} ({len(self)} replies) has no reply to {request}; mend: record it with "
                f"service=amap, or use service=offline")
        return reply
