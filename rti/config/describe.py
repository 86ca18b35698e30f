"""Every configuration key with its type, default and help, taken from the schema: the text of docs/configuration.md.

`python -m rti.config.describe` prints that file; a test compares it with the one in docs/.
"""

from __future__ import annotations

import sys
from typing import Iterator

from rti.commands import guarded
from rti.config.keys import Key, is_changeable, keys
from rti.config.validate import CHOICES

INTRODUCTION = """\
# Configuration

<!-- Written by `python -m rti.config.describe`; a test checks that it is current. Edit the schema, not this file. -->

A run is described by one YAML file and words on the command line:

```bash
python launch/rti.py --config lab.yaml algo=grpo learner.lr=1e-4 name=lab-grpo
```

- `--config NAME.yaml` is looked for as a path, then among the configurations that ship with RTI (`configs/`).
- `defaults` in a file lists what it builds on; later entries win over earlier ones, the file's own keys over all of them,
  and the command line over everything. `- base.yaml` names a file (beside this one, then in `configs/`); `- algo: rti`
  mixes in `algo/rti.yaml`.
- A word `key=value` sets a key; the value is read as YAML. A word that names a section, such as `algo=grpo`, swaps what
  `defaults` chose for it.
- An unknown key, a value of the wrong type and a value that cannot work are refused before anything starts. The message
  says the key, the nearest valid key or the mend, and the file with its line, or the command-line word, that it came from.
- `${other.key}` takes another key's value. A run writes its resolved configuration to `config.yaml` in its directory; so
  secrets have no place in it, and keys ending in `key_env` hold the *name* of an environment variable.
- A resumed run refuses a changed configuration, but for the keys marked *changeable*, which do not alter what is learned
  from which data.

To see the resolved configuration without running anything:

```bash
python -m rti.config.load lab.yaml algo=grpo
```

## Your own environment

`env.class: my_pkg.MyTaskSet` names a class of yours that keeps the `TaskSet` protocol of `rti/envs/base.py`; `env.options`
are its keyword arguments, and `env.name` is then only a label.

## Keys

"""


def describe() -> Iterator[Key]:
    """Every key and section, in the schema's order."""
    return iter(keys().values())


def help_text() -> str:
    """The keys as plain lines, for `--help`."""
    return "\n".join(f"  {k.name}={_shown(k)}  [{k.type_name}]  {_explained(k)}".rstrip()
                     for k in describe() if not k.is_section)


def document() -> str:
    """The text of docs/configuration.md."""
    sections = {"": [k for k in describe() if "." not in k.name and not k.is_section]}
    for k in describe():
        if not k.is_section and "." in k.name:
            sections.setdefault(k.name.rpartition(".")[0], []).append(k)
    return INTRODUCTION + "\n".join(_table(name, members) for name, members in sections.items())


def _table(section: str, members: list[Key]) -> str:
    rows = [f"| `{k.name}` | {k.type_name} | `{_shown(k)}` | {_cell(k)} |" for k in members]
    title = f"### `{section}`" if section else "### Top level"
    return "\n".join([title, "", "| key | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _cell(key: Key) -> str:
    text = _explained(key).replace("|", "\\|")
    return f"{text} *Changeable.*".lstrip() if is_changeable(key.name) else text


def _explained(key: Key) -> str:
    """The help under the field; the choices are added where it does not name them all."""
    choices = CHOICES.get(key.name, ())
    if all(word in key.doc for word in choices):
        return key.doc
    return f"{key.doc} One of: {', '.join(choices)}.".lstrip()


def _shown(key: Key) -> str:
    if key.default is None:
        return "null"
    if isinstance(key.default, bool):
        return str(key.default).lower()
    return repr(key.default) if key.default == "" or key.kind is dict else str(key.default)


if __name__ == "__main__":
    sys.exit(guarded(lambda: print(document(), end="")))
