"""How a service and its tools are defined: a method with types, marked by `tool`, is the tool, its schema and its checks.

Keeps: a service changes only its own rows, which it was given as a copy; what the agent gets wrong is a `Refusal`, whose text
is told to it. Names of tools are `<service>_<method>`.
"""

from __future__ import annotations

import copy
import inspect
import typing
from typing import Annotated, Any, Callable, ClassVar, Sequence

import msgspec

from rti.trajectory import ToolSchema

Row = dict[str, Any]


class Refusal(Exception):
    """A call that a service does not carry out. `status` as in HTTP: 404 no such thing, 409 not now, 422 bad arguments."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as it was declared. `arguments` is a struct type: converting to it checks a call's arguments."""

    schema: ToolSchema
    service: str
    method: str
    writes: bool
    arguments: type[msgspec.Struct]


def tool(description: str, *, writes: bool = False, **says: str) -> Callable[[Callable], Callable]:
    """Marks a method as a tool. `says` describes its parameters; their types and defaults are those of the method."""
    def mark(method: Callable) -> Callable:
        method.declared = (description, writes, says)
        return method
    return mark


class Service:
    """A service over collections of rows, each a dict with an `id`. `now` is the episode's clock, "YYYY-MM-DD HH:MM"."""

    name: ClassVar[str] = ""
    tools: ClassVar[Sequence[Tool]] = ()

    def __init_subclass__(cls) -> None:
        cls.tools = tuple(_declared(cls.name, m) for m in vars(cls).values() if hasattr(m, "declared"))

    def __init__(self, rows: dict[str, list[Row]], now: str) -> None:
        self.rows, self.now = copy.deepcopy(rows), now

    def all(self, collection: str) -> list[Row]:
        return self.rows.setdefault(collection, [])

    def one(self, collection: str, id: str) -> Row:
        """The row of an id. Raises Refusal where there is none."""
        found = next((r for r in self.all(collection) if r["id"] == id.strip()), None)
        if found is None:
            raise Refusal(404, f"{self.name} has no {id!r} among its {collection}")
        return found

    def matching(self, collection: str, query: str, *fields: str) -> list[Row]:
        """Rows that hold every word of the query in their fields, case aside; all rows for an empty query."""
        words = query.casefold().split()
        return [r for r in self.all(collection)
                if all(w in " ".join(str(r.get(f, "")) for f in fields).casefold() for w in words)]

    def add(self, collection: str, prefix: str, **fields: Any) -> Row:
        """A new row. Its id is the prefix and the number after the highest one there."""
        numbers = [int(r["id"].rpartition("-")[2]) for r in self.all(collection)]
        row = {"id": f"{prefix}-{max(numbers, default=100) + 1}", **fields}
        self.all(collection).append(row)
        return row


def brief(rows: Sequence[Row], *fields: str) -> list[Row]:
    """Rows reduced to some fields: what a list shows of them."""
    return [{f: r[f] for f in ("id", *fields) if f in r} for r in rows]


def _declared(service: str, method: Callable) -> Tool:
    description, writes, says = method.declared
    hints = typing.get_type_hints(method)
    name = f"{service}_{method.__name__}"
    fields: list[Any] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:       # without self
        kind = Annotated[hints[parameter.name], msgspec.Meta(description=says[parameter.name])]
        fields.append((parameter.name, kind) if parameter.default is parameter.empty
                      else (parameter.name, kind, parameter.default))
    arguments = msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)
    schema = msgspec.json.schema(arguments)["$defs"][name]
    parameters = {k: schema[k] for k in ("type", "properties", "required", "additionalProperties")}
    for told in parameters["properties"].values():
        told.setdefault("type", "string")       # choices come without one, and chat templates ask for it
    return Tool(schema=ToolSchema(name=name, description=description, parameters=parameters), service=service,
                method=method.__name__, writes=writes, arguments=arguments)
