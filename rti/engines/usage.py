"""What the endpoints of this process have served, by role. Kept apart from the answers, so that no layer passes it along.

Counters only ever grow until they are taken, and what is taken is counted nowhere else: an actor hands its counters out once.
"""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, kw_only=True):
    """Of one role. Tokens are as the service counts them; 0 where it does not say."""

    requests: int = 0               # HTTP requests, each attempt one
    retries: int = 0                # of these, made again after a fault
    failures: int = 0               # calls that ended in an error
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: Usage) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class UsageBook:
    """Counters by role."""

    def __init__(self) -> None:
        self._by_role: dict[str, Usage] = {}

    def of(self, role: str) -> Usage:
        """The counters of a role, to be added to."""
        return self._by_role.setdefault(role, Usage())

    def take(self) -> dict[str, Usage]:
        """What was counted since the last call."""
        taken, self._by_role = self._by_role, {}
        return taken

    def merge(self, taken: dict[str, Usage]) -> None:
        """Count what another book gave out."""
        for role, usage in taken.items():
            self.of(role).add(usage)


BOOK = UsageBook()
"""Of this process."""
