"""One episode's private official environment, and what its databases differ in from the domain's own.

Keeps: two worlds of one task have equal states exactly where the official hashes of their databases are equal. A state holds
the canonical JSON (the one that the official hash is taken of) of the records that changed, not of all.
"""

from __future__ import annotations

import json
from typing import Any, Mapping

from rti.envs.tau2.overlay import Overlay

State = Mapping[tuple[str, str, str], str | None]
"""(side, collection, key) -> canonical JSON of a record that differs from the domain's own, None where it was removed.
A database that is not kept record by record stands under (side, "", "") as a whole."""


class World:
    """`environment` is an official Environment over private databases; only this episode holds it."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment

    def call(self, call: Any) -> Any:
        """The official ToolMessage that answers an official ToolCall, of either side; never an exception of a tool."""
        return self.environment.get_response(call)

    def sync(self) -> None:
        """What the official loop does after every step: agent database and device are brought in line."""
        self.environment.sync_tools()

    def state(self) -> State:
        found: dict[tuple[str, str, str], str | None] = {}
        for side, toolkit in (("assistant", self.environment.tools), ("user", self.environment.user_tools)):
            if toolkit is not None:
                found |= _changes(side, toolkit.db)
        return found


def is_collection(value: Any) -> bool:
    """Whether a database field is kept record by record: a dict of records by id."""
    return isinstance(value, dict)


def _changes(side: str, db: Any) -> State:
    fields = dict(db)
    if not fields or not all(isinstance(v, Overlay) for v in fields.values()):
        return {(side, "", ""): canonical(db)}
    return {(side, name, key): text for name, overlay in fields.items() for key in overlay.touched
            for text in [canonical(overlay.record(key))] if text != _shared(overlay, key)}


def canonical(record: Any) -> str | None:
    """What the official hash digests, of one record or a whole database; None for None."""
    if record is None:
        return None
    if hasattr(record, "model_dump"):
        record = record.model_dump(warnings=False)
    return json.dumps(record, sort_keys=True, default=str)


def _shared(overlay: Overlay, key: str) -> str | None:
    return canonical(overlay.shared.get(key))
