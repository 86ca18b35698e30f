"""A private view of a shared collection of records, copied record by record, when one is first looked at.

Keeps: the shared records are never handed out by key, so that no episode can change another's. Iterating gives the shared ones,
to be read only (the official tools search that way and change nothing they find so; the tests prove it after every episode).
"""

from __future__ import annotations

import copy
from typing import Any, Mapping

_MISSING = object()


class Overlay(dict):
    """A dict that begins as the mapping `shared`. `touched` holds the keys whose value may differ from the shared one."""

    __slots__ = ("shared", "touched")

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self.shared = shared
        self.touched: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key not in self.touched:
            value = copy.deepcopy(value)
            self[key] = value
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.touched.add(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.touched.add(key)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        if key not in self:
            if default is _MISSING:
                raise KeyError(key)
            return default
        value = self[key]
        del self[key]
        return value

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def popitem(self) -> tuple[str, Any]:
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def __ior__(self, other: Any) -> "Overlay":
        self.update(other)
        return self

    def record(self, key: str) -> Any:
        """The value as it stands, None where there is none, without touching it."""
        return super().get(key)
