"""What the documents say is there: every command in a bash or sh block, every link, every path.

A command is taken apart: programs and modules must exist, flags must be known to them, configurations and words must load,
extras and make targets must be defined. The quick ones are run. A command that this test does not know fails, so that a new
kind of command cannot go unchecked.
"""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rti.config.load import load

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
OTHER_PROGRAMS = {"git", "cd", "export", "ray", "tensorboard", "tau2", "source"}     # not ours: taken at their word
QUICK = {"rti.config.load", "rti.config.describe"}                            # run as they stand


def commands():
    """(document, command) of every fenced bash or sh block; a line ending in a backslash goes on in the next."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in re.findall(r"^```(?:bash|sh)\n(.*?)^```", text, re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield pytest.param(words, id=f"{document.name}:{' '.join(words)}")


def extras():
    call = next(n for n in ast.walk(ast.parse((ROOT / "setup.py").read_text()))
                if isinstance(n, ast.keyword) and n.arg == "extras_require")
    return set(ast.literal_eval(call.value))


def check(words):
    while words and re.fullmatch(r"[A-Z_][A-Z0-9_]*=\S*", words[0]):     # VARIABLE=value before a command
        words = words[1:]
    for i, word in enumerate(words):
        if word in ("&&", "|", ">", "2>"):
            check(words[:i])
            return check(words[i + 1:]) if word in ("&&", "|") else None
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(rest) <= set(targets), f"make {rest}: the Makefile has {targets}"
    elif program in ("pip", "python") and rest[:1] == ["install"] or rest[:3] == ["-m", "pip", "install"]:
        check_install(rest[rest.index("install") + 1:])
    elif program == "pip":
        assert rest[0] == "uninstall", rest
    elif program == "python" and rest[0] == "-m":
        check_module(rest[1], rest[2:])
    elif program == "python":
        check_script(rest[0], rest[1:])
    elif program == "ray" and "--" in rest:
        check(rest[rest.index("--") + 1:])
    else:
        assert program in OTHER_PROGRAMS, f"{program}: teach tests/test_docs.py how to check it"


def check_install(words):
    for word in words:
        if word.startswith("."):
            named = re.fullmatch(r"\.(?:\[([a-z0-9,-]+)\])?", word)
            assert named and set((named[1] or "").split(",")) - {""} <= extras(), word


def check_module(module, rest):
    if not module.startswith("rti"):
        assert module in ("pytest", "venv"), module
        return
    spec = importlib.util.find_spec(module)
    assert spec, f"there is no module {module}"
    source = Path(spec.origin)
    source = source.with_name("__main__.py") if source.name == "__init__.py" else source
    check_flags(source, rest)
    check_configuration(rest)


def check_script(script, rest):
    assert (ROOT / script).is_file(), f"there is no {script}"
    check_flags(ROOT / script, rest)
    check_configuration(rest)


def check_flags(source, words):
    text = source.read_text(encoding="utf-8")
    for word in words:
        if word.startswith("--"):
            flag = word.partition("=")[0]
            assert f'"{flag}"' in text, f"{source.relative_to(ROOT)} knows no {flag}"


def check_configuration(words):
    """A command that names a configuration must load, its words included."""
    settings = [w for w in words if re.fullmatch(r"[a-z][a-z0-9_.]*=.*", w)]
    name = words[words.index("--config") + 1] if "--config" in words else None
    if name:
        load(name, settings)
    elif settings and "--config" not in words:
        names = [w for w in words if w.endswith(".yaml")]
        if names:
            load(names[0], settings)


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_in_the_documents_is_one_that_works(words):
    check(words)
    if words[0].endswith("python") and words[1] == "-m" and words[2] in QUICK:
        done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", sorted(p.name for p in (ROOT / "launch").glob("*.py")))
def test_every_entry_point_explains_itself(script):
    done = subprocess.run([sys.executable, f"launch/{script}", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_and_named_files_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    broken = [link for link in links if not (document.parent / link).exists()]
    named = re.findall(r"`((?:rti|launch|configs|docs|tests|benchmarks)/[\w./-]+\.(?:py|md|yaml|gz))`", text)
    broken += [name for name in named if not (ROOT / name).exists()]
    assert not broken, f"{document.name} names what is not there: {broken}"


def headings(document):
    """What a link may name after the #: GitHub's form of the headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+?)\s*$", text, re.M)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_name_headings_that_are_there(document):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    targets = [((document.parent / file) if file else document, anchor) for file, anchor in links]
    broken = [f"{path.name}#{anchor}" for path, anchor in targets if path.suffix == ".md" and anchor not in headings(path)]
    assert not broken, f"{document.name} links to headings that are not there: {broken}"


def test_the_tests_that_a_document_names_are_there():
    there = {name for path in (ROOT / "tests").rglob("test_*.py")
             for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)}
    named = {name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8"))}
    assert named and named <= there, f"no such tests: {sorted(named - there)}"


def test_every_field_bug_has_a_row():
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "field-bugs.md").read_text(encoding="utf-8"), re.M)
    assert rows == [str(n) for n in range(1, 40)]
