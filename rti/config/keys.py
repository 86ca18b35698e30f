"""The schema as a tree of keys in the user's spelling, with types and help. Everything else in this package walks it.

A key is dotted (`learner.lr`), a section is a key that holds keys. `async` and `class` are spelled as a user writes them;
the fields behind them end in an underscore, because Python keeps those words. Depends on the schema alone.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import typing
from dataclasses import dataclass
from typing import Any, Iterator

from rti.config import schema
from rti.config.schema import CHANGEABLE, Config


class ConfigError(ValueError):
    """A configuration that cannot be used. The text is for the user: key, value, why, the mend, and where it came from."""


@dataclass(frozen=True)
class Key:
    """One key of the schema. `kind` is the type of its value, a section's dataclass where it holds other keys."""

    name: str           # dotted, in the user's spelling
    kind: Any           # str, int, float, bool, dict or a section's dataclass
    optional: bool
    default: Any
    doc: str

    @property
    def is_section(self) -> bool:
        return dataclasses.is_dataclass(self.kind)

    @property
    def field_path(self) -> str:
        """Dotted path of the field behind the key (`async_.max_staleness`)."""
        return ".".join(_to_field(part) for part in self.name.split("."))

    @property
    def type_name(self) -> str:
        if self.is_section:
            return "section"
        names = {str: "text", int: "integer", float: "number", bool: "true or false", dict: "mapping"}
        return names[self.kind] + (" or null" if self.optional else "")


@functools.cache
def keys() -> dict[str, Key]:
    """Every key and section of the schema by dotted name, in the order of the schema."""
    return {k.name: k for k in _walk(Config, "")}


def value_of(config: Any, name: str) -> Any:
    """The value of a key in a configuration: value_of(config, "async.max_staleness")."""
    for part in name.split("."):
        config = getattr(config, _to_field(part))
    return config


def leaves(config: Config) -> dict[str, Any]:
    """Every key that is not a section, with its value in `config`."""
    return {k.name: value_of(config, k.name) for k in keys().values() if not k.is_section}


def is_changeable(name: str) -> bool:
    """True where a resumed run may change the key: it, or a section it is in, is in CHANGEABLE."""
    parts = name.split(".")
    return any(".".join(parts[:n]) in CHANGEABLE for n in range(1, len(parts) + 1))


def nearest(name: str) -> str:
    """The valid key that is most like `name`, judged by the whole name, its last part and its section."""
    section, _, last = name.rpartition(".")

    def likeness(key: str) -> float:
        its_section, _, its_last = key.rpartition(".")
        whole = difflib.SequenceMatcher(None, name, key).ratio()
        return whole + difflib.SequenceMatcher(None, last, its_last).ratio() + 0.25 * (section == its_section)

    return max(keys(), key=likeness)


def _walk(section: type, prefix: str) -> Iterator[Key]:
    kinds = typing.get_type_hints(section)
    docs = _docs()[section.__name__]
    for f in dataclasses.fields(section):
        kind, optional = _unwrap(kinds[f.name])
        name = prefix + _from_field(f.name)
        if dataclasses.is_dataclass(kind):
            yield Key(name, kind, optional, None, docs.get(f.name) or "")
            yield from _walk(kind, name + ".")
        else:
            default = f.default_factory() if f.default is dataclasses.MISSING else f.default
            yield Key(name, kind, optional, default, docs.get(f.name, ""))


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """(X, True) of Optional[X]; (X, False) of X."""
    args = typing.get_args(kind)
    if type(None) in args:
        (kind,) = (a for a in args if a is not type(None))
        return kind, True
    return kind, False


@functools.cache
def _docs() -> dict[str, dict[str, str]]:
    """Class name -> field name -> the string that stands under the field in the source of the schema."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found[node.name] = {}
        for field_node, doc_node in zip(node.body, node.body[1:]):
            if isinstance(field_node, ast.AnnAssign) and isinstance(doc_node, ast.Expr):
                docs[field_node.target.id] = " ".join(ast.literal_eval(doc_node.value).split())
    return found


def _to_field(part: str) -> str:
    return part + "_" if part in ("async", "class") else part


def _from_field(part: str) -> str:
    return part.removesuffix("_")
