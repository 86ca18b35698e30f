"""Loading a configuration: YAML files that compose through `defaults`, words of the command line, and nothing unnoticed.

    config = load("lab.yaml", ["algo=grpo", "learner.lr=1e-4"])

Every value remembers the file and line, or the command-line word, it came from, so that each refusal can name it. Values
are checked against the schema (here) and against what makes sense (validate.py) before anything starts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from rti.commands import guarded
from rti.config.keys import ConfigError, Key, is_changeable, keys, leaves, nearest
from rti.config.schema import Config
from rti.config.validate import validate

__all__ = ["ConfigError", "Setting", "check_resumable", "dump", "load", "load_run_config", "load_with_origins", "validate"]


@dataclass(frozen=True)
class Setting:
    """One value that a user gave, and where. `name` may reach into a mapping (`env.options.size`)."""

    name: str
    value: Any
    origin: str


def load(config_name: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration called `config_name` with `overrides` applied, checked whole. Raises ConfigError."""
    return load_with_origins(config_name, overrides)[0]


def load_with_origins(config_name: str, overrides: Sequence[str] = ()) -> tuple[Config, dict[str, str]]:
    """As `load`; also where each value that is given comes from: key -> file and line, or the word of the command line."""
    path = find(config_name)
    words, choices = _split_words(overrides)
    composer = _Composer(choices)
    settings = composer.file(path)
    for group in choices:
        if group not in composer.taken:  # no file chooses for this group: the word itself mixes its choice in
            settings += composer.choice(path, group, choices[group], (path,), _word_origin(f"{group}={choices[group]}"))
    settings += [s for word in words for s in _word_settings(word)]
    _check_choices(path, settings, choices)
    return _build(settings)


def load_run_config(path: str | Path) -> Config:
    """The configuration that a run wrote: `path` is its config.yaml or its directory."""
    path = Path(path)
    path = path / "config.yaml" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"{path}: no configuration there; a run directory holds config.yaml")
    return _build(_Composer({}).file(path))[0]


def dump(config: Config, origins: Mapping[str, str] | None = None) -> str:
    """The whole configuration as YAML, keys as a user writes them. `load_run_config` reads it back unchanged.
    `origins`, of `load_with_origins`: a comment above each value that is not left at its default says where it comes from."""
    tree: dict[str, Any] = {}
    for name, value in leaves(config).items():
        *sections, last = name.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return _with_origins(text, origins) if origins else text


def _with_origins(text: str, origins: Mapping[str, str]) -> str:
    """The YAML of `dump`, with a comment above each value that was given."""
    above: dict[int, str] = {}

    def walk(node: yaml.MappingNode, prefix: str) -> None:
        for key_node, value_node in node.value:
            name = prefix + key_node.value
            if name in origins:
                above[key_node.start_mark.line] = f"{' ' * key_node.start_mark.column}# {' '.join(origins[name].split())}"
            if isinstance(value_node, yaml.MappingNode):
                walk(value_node, name + ".")

    walk(yaml.compose(text, Loader=yaml.SafeLoader), "")
    lines = text.splitlines()
    return "".join(f"{above[i]}\n{line}\n" if i in above else f"{line}\n" for i, line in enumerate(lines))


class _Dumper(yaml.SafeDumper):
    """Escapes what YAML would take for a line break or leave out."""

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def check_resumable(old: Config, new: Config) -> None:
    """Raise ConfigError where a resumed run would differ from the one in its directory in a key that may not change."""
    before, after = leaves(old), leaves(new)
    changed = [name for name in before if before[name] != after[name] and not is_changeable(name)]
    if changed:
        listed = "\n".join(f"  {name}: {before[name]!r} in the run directory, {after[name]!r} now" for name in changed)
        raise ConfigError(
            "the run directory was made with another configuration, so resuming would mix two runs:\n" + listed +
            "\nGive those keys their old values, or begin a new run (another name or run_dir, or --resume never).")


def find(config_name: str) -> Path:
    """The file meant by `--config`: a path, else a name in the shipped configs."""
    for candidate in (Path(config_name), configs_dir() / config_name):
        for path in (candidate, candidate.with_name(candidate.name + ".yaml")):
            if path.is_file():
                return path
    names = sorted(p.name for p in configs_dir().glob("*.yaml"))
    raise ConfigError(f"--config {config_name}: no such file, and no such name in {configs_dir()} (there: {', '.join(names)})")


def configs_dir() -> Path:
    """configs/ of the checkout, or the copy inside the installed package."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "configs"
    return shipped if shipped.is_dir() else package.parent / "configs"


# --- files -------------------------------------------------------------------------------------------------------
class _Composer:
    """Reads a file and what its `defaults` name. `choices` from the command line swap those of the files."""

    def __init__(self, choices: dict[str, str]):
        self.choices = choices
        self.taken: set[str] = set()   # groups for which some file makes a choice

    def file(self, path: Path, chain: tuple[Path, ...] = ()) -> list[Setting]:
        """Settings of a file: those of its `defaults` in order, then its own. Later ones win."""
        if path in chain:
            raise ConfigError(f"{path}: its defaults lead back to itself ({' -> '.join(p.name for p in (*chain, path))})")
        root = _read_yaml(path)
        if root is None:
            return []
        own, settings = [], []
        for key_node, value_node in _items(root, str(path)):
            if key_node.value == "defaults":
                settings = self.defaults(path, value_node, (*chain, path))
            else:
                own.append((key_node, value_node))
        return settings + list(_settings(own, "", lambda node: f"{path}:{node.start_mark.line + 1}"))

    def defaults(self, path: Path, node: yaml.Node, chain: tuple[Path, ...]) -> list[Setting]:
        origin = f"{path}:{node.start_mark.line + 1}"
        if not isinstance(node, yaml.SequenceNode):
            raise ConfigError(f"{origin}: defaults must be a list, e.g. [base.yaml, {{algo: rti}}]")
        settings: list[Setting] = []
        for entry in node.value:
            if isinstance(entry, yaml.ScalarNode):
                settings += self.file(_beside(path, entry.value, origin), chain)
            elif isinstance(entry, yaml.MappingNode) and all(isinstance(v, yaml.ScalarNode) for _, v in entry.value):
                for group, choice in entry.value:
                    settings += self.choice(path, group.value, choice.value, chain, origin)
            else:
                raise ConfigError(f"{origin}: an entry of defaults is a file name or `group: name`")
        return settings

    def choice(self, path: Path, group: str, name: str, chain: tuple[Path, ...], origin: str) -> list[Setting]:
        self.taken.add(group)
        if group in self.choices:
            name, origin = self.choices[group], _word_origin(f"{group}={self.choices[group]}")
        return self.file(_beside(path, f"{group}/{name}.yaml", origin), chain)


def _beside(path: Path, name: str, origin: str) -> Path:
    """A file named in `path`: in the same directory, else in the shipped configs."""
    directories = list(dict.fromkeys((path.parent.resolve(), configs_dir())))
    for directory in directories:
        if (directory / name).is_file():
            return directory / name
    group = name.rpartition("/")[0]
    there = sorted({p.stem for d in directories for p in (d / group).glob("*.yaml")})
    if group and not there and group in keys():
        raise ConfigError(f"{origin}: {group} is a section and takes keys, e.g. {_example(group)}")
    raise ConfigError(f"{origin}: no file {name} in {' or '.join(map(str, directories))}"
                      + (f" (there: {', '.join(there)})" if there else ""))


def _example(section: str) -> str:
    key = next(k for k in keys().values() if k.name.startswith(section + ".") and not k.is_section)
    return f"{key.name}={key.default}"


def _read_yaml(path: Path) -> yaml.Node | None:
    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else "?"
        raise ConfigError(f"{path}:{line}: not YAML: {e.problem}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not a YAML text in UTF-8: {e}") from e


# --- words of the command line -----------------------------------------------------------------------------------
def _split_words(overrides: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(words that set keys, choices such as algo=grpo)."""
    words, choices = [], {}
    for word in overrides:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{_word_origin(word)}: expected key=value, e.g. learner.lr=1e-4")
        key = keys().get(name)
        if key and key.is_section and text and not text.lstrip().startswith("{"):
            choices[name] = text
        else:
            words.append(word)
    return words, choices


def _word_settings(word: str) -> Iterator[Setting]:
    name, _, text = word.partition("=")
    origin = _word_origin(word)
    try:
        value = yaml.compose(text, Loader=yaml.SafeLoader) or yaml.ScalarNode("tag:yaml.org,2002:str", "", style="'")
    except yaml.YAMLError as e:
        raise ConfigError(f"{origin}: the value is not YAML: {getattr(e, 'problem', e)}") from e
    return _settings([(yaml.ScalarNode("tag:yaml.org,2002:str", name), value)], "", lambda node: origin)


def _word_origin(word: str) -> str:
    return f"command-line word '{word}'"


def _check_choices(path: Path, settings: list[Setting], choices: dict[str, str]) -> None:
    """`algo=grpo` must not lose silently to an `algo.name` that a file sets after the choice is mixed in."""
    final = {s.name: s for s in settings}
    for group, choice in choices.items():
        word = _word_origin(f"{group}={choice}")
        chosen = {s.name: s.value for s in _Composer({}).file(_beside(path, f"{group}/{choice}.yaml", word))}
        name = f"{group}.name"
        winner = final.get(name)
        if name in chosen and winner.value != chosen[name] and not winner.origin.startswith("command-line"):
            raise ConfigError(f"{word} is overruled: {winner.origin} sets {name} to {winner.value}; "
                              f"leave that key to {group}/{winner.value}.yaml")


# --- values ------------------------------------------------------------------------------------------------------
def _items(node: yaml.Node, where: str) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Pairs of a mapping node; refuses anything else, and a key that stands twice."""
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{where}: expected `key: value` lines, found {_describe(node)}")
    seen: set[str] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{where}: a key must be a word (line {key_node.start_mark.line + 1})")
        if key_node.value in seen:
            raise ConfigError(f"{where}: {key_node.value} stands twice (line {key_node.start_mark.line + 1}); keep one")
        seen.add(key_node.value)
    return node.value


def _settings(items, prefix: str, origin_of) -> Iterator[Setting]:
    """The settings in the pairs of a mapping at section `prefix` ("" or "learner.")."""
    for key_node, value_node in items:
        origin = origin_of(key_node)
        name = prefix + key_node.value
        key = keys().get(name) or _holder(name)
        if key is None:
            raise ConfigError(f"{origin}: unknown key {name}; the nearest valid key is {nearest(name)}")
        if not key.is_section:
            yield Setting(name, _value(key, name, value_node, origin), origin)
        elif isinstance(value_node, yaml.MappingNode):
            yield from _settings(_items(value_node, origin), name + ".", origin_of)
        elif not _is_null(value_node):  # `learner:` with nothing under it is an empty section
            raise ConfigError(f"{origin}: {name} is a section and takes keys, got {_describe(value_node)}")


def _holder(name: str) -> Key | None:
    """The mapping (`env.options`) that a longer name reaches into."""
    while "." in name:
        name = name.rpartition(".")[0]
        key = keys().get(name)
        if key is not None:
            return key if key.kind is dict else None
    return None


def _value(key: Key, name: str, node: yaml.Node, origin: str) -> Any:
    """The value in a YAML node as the key's type. Read from the text, so that 1e-6 is a number and `name: 007` a text."""
    if key.kind is dict:
        try:
            value = yaml.SafeLoader("").construct_document(node)
        except yaml.YAMLError as e:
            raise ConfigError(f"{origin}: {name}: {getattr(e, 'problem', e)}") from e
        if name == key.name and not isinstance(value, dict):
            raise ConfigError(f"{origin}: {name} must be a mapping, got {_describe(node)}")
        return value
    if key.optional and _is_null(node):
        return None
    if not isinstance(node, yaml.ScalarNode) or _is_null(node) or not node.tag.startswith(_PLAIN):
        raise ConfigError(f"{origin}: {name} must be {_article(key.type_name)}, got {_describe(node)}")
    if "${" in node.value:  # an interpolation: OmegaConf resolves and checks it
        return node.value
    try:
        return _SCALARS[key.kind](node.value)
    except ValueError:
        raise ConfigError(f"{origin}: {name} must be {_article(key.type_name)}, got {_describe(node)}") from None


def _number(text: str) -> float:
    text = text.strip().lower()
    value = float(text.replace(".inf", "inf"))
    if value != value or "_" in text:
        raise ValueError(text)
    return value


def _integer(text: str) -> int:
    if "_" in text:
        raise ValueError(text)
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError(text)


_PLAIN = tuple(f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "timestamp"))
_SCALARS = {str: str, int: _integer, float: _number, bool: _truth}


def _is_null(node: yaml.Node) -> bool:
    return node.tag == "tag:yaml.org,2002:null"


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode) and not (node.tag.startswith(_PLAIN) or _is_null(node)):
        return f"a value tagged {node.tag}"
    if isinstance(node, yaml.ScalarNode):
        return "nothing" if _is_null(node) and not node.value else f"'{node.value}'"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _article(type_name: str) -> str:
    return {"integer": "an integer", "number": "a number", "text": "a text", "mapping": "a mapping"}.get(type_name, type_name)


# --- building ----------------------------------------------------------------------------------------------------
def _build(settings: list[Setting]) -> tuple[Config, dict[str, str]]:
    """Settings over the defaults of the schema, resolved and validated; and where each came from."""
    tree = OmegaConf.structured(Config)
    origins: dict[str, str] = {}
    for s in settings:
        key = keys().get(s.name) or _holder(s.name)
        if isinstance(s.value, str) and "${oc." in s.value:
            raise ConfigError(f"{s.origin}: {s.name} reads the environment through {s.value!r}, but a run writes its "
                              "configuration down; give the value itself, or the variable's name in a *_env key")
        path = key.field_path + s.name[len(key.name):]
        try:
            OmegaConf.update(tree, path, s.value, merge=True, force_add=key.kind is dict)
        except (OmegaConfBaseException, ValueError, TypeError) as e:
            why = str(e).splitlines()[0]
            if isinstance(e, GrammarParseError):
                why = f"{s.value!r} is no whole interpolation: write ${{key}} with both braces, or \\${{ for the letters alone"
            raise ConfigError(f"{s.origin}: {s.name}: {why}") from e
        origins[s.name] = s.origin
    try:
        config = OmegaConf.to_object(tree)
    except OmegaConfBaseException as e:
        name = next((k.name for k in keys().values() if k.field_path == e.full_key), str(e.full_key))
        raise ConfigError(f"{origins.get(name, 'the configuration')}: {name}: {str(e).splitlines()[0]}") from e
    validate(config, origins)
    return config, origins


def main() -> int:
    """`python -m rti.config.load NAME [key=value ...]`: print the resolved configuration, as launch/rti.py --print-config."""
    try:
        print(dump(*load_with_origins(sys.argv[1] if len(sys.argv) > 1 else "lab.yaml", sys.argv[2:])), end="")
    except ConfigError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
