"""The house stands: floors rest on lower floors alone, Ray stays in its layer, and files stay short enough to read.

Imports are read from the source, also those inside functions, so that nothing needs to be imported to check them.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FLOORS = (      # from the ground up; a floor may rest on the ones before it and, without going in circles, on itself
    ("rti.commands",),
    ("rti.trajectory", "rti.config", "rti.control", "rti.lab"),     # rti.lab itself: only where the shipped policy lies
    ("rti.pretrained",),
    ("rti.modeling",),
    ("rti.envs", "rti.chat", "rti.engines", "rti.algos", "rti.run"),
    ("rti.mas", "rti.branching", "rti.rollout", "rti.teacher", "rti.learner"),
    ("rti.evaluation",),
    ("rti.report",),
    ("rti.study",),
    ("rti.actors",),
    ("launch", "rti.simulation", "rti.lab.*"),        # rti.lab.*: the tools that made the shipped policy
)

IMPLEMENTATIONS = {     # of one protocol: none may import another
    "rti.chat": ("hermes", "generic", "lab"),
    "rti.engines": ("torch_engine", "vllm_engine", "endpoint"),
    "rti.envs": ("navigation", "tau2", "claw_eval"),
    "rti.algos": ("aepo", "grpo", "gspo", "luffy", "opd", "rti"),
}


def sources(*roots):
    return sorted(p for root in roots for p in (ROOT / root).rglob("*.py"))


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(p): p for p in sources("rti", "launch")}


@functools.cache
def imports(path):
    """Dotted names that a file imports; `from a import b` gives a.b where that is a module of ours, else a."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {n if n in MODULES else node.module for n in names}
    return found


def floor_of(module):
    """(height, area) of a module of ours."""
    if module == "rti":
        return 0, "rti"
    for height, areas in enumerate(FLOORS):
        for area in areas:
            if area == "rti.lab":
                if module == area:
                    return height, area
            elif module == area or module.startswith(area.removesuffix("*").rstrip(".") + "."):
                return height, area
    raise AssertionError(f"{module} stands on no floor: give it one in FLOORS")


def own(names):
    return sorted(n for n in names if n.split(".")[0] in ("rti", "launch"))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_from_its_own_floor_or_below(module):
    height, area = floor_of(module)
    above = [n for n in own(imports(MODULES[module])) if floor_of(n)[0] > height]
    assert not above, f"{module} (floor of {area}) reaches up to {above}"


def test_areas_do_not_import_each_other_in_circles():
    edges = {}
    for module, path in MODULES.items():
        area = floor_of(module)[1]
        edges.setdefault(area, set()).update(floor_of(n)[1] for n in own(imports(path)) if floor_of(n)[1] not in (area, "rti"))
    settled = set()
    while free := {a for a in edges if a not in settled and edges[a] <= settled}:
        settled |= free
    assert settled == set(edges), f"these import each other in circles: {sorted(set(edges) - settled)}"


@pytest.mark.parametrize("package", IMPLEMENTATIONS)
def test_implementations_of_one_protocol_do_not_import_each_other(package):
    names = [f"{package}.{n}" for n in IMPLEMENTATIONS[package]]
    missing = [n for n in names if n not in MODULES]
    assert not missing, f"IMPLEMENTATIONS names {missing}, which do not exist"
    for name in names:
        for module in (m for m in MODULES if m == name or m.startswith(name + ".")):
            others = [i for i in own(imports(MODULES[module])) for o in names if o != name and f"{i}.".startswith(f"{o}.")]
            assert not others, f"{module} imports {others}"


def test_every_environment_package_is_among_the_implementations():
    packages = {p.parent.name for p in (ROOT / "rti" / "envs").glob("*/__init__.py")}
    assert packages == set(IMPLEMENTATIONS["rti.envs"])


def test_ray_is_imported_in_actors_and_launch_only():
    users = [m for m, p in MODULES.items() if any(n.split(".")[0] == "ray" for n in imports(p))]
    assert [m for m in users if not m.startswith(("rti.actors", "launch"))] == []


def test_the_ground_floor_needs_no_torch():
    for module, path in MODULES.items():
        if module.startswith(("rti.trajectory", "rti.config", "rti.control")):
            assert not {n.split(".")[0] for n in imports(path)} & {"torch", "transformers"}, module


# --- files that can be read --------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", sources("rti", "launch", "tests", "benchmarks"), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_is_short_and_says_what_it_is_for(path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 500
    long = [i for i, line in enumerate(lines, 1) if len(line) > 128]
    assert not long, f"lines of more than 128 characters: {long}"
    tree = ast.parse(text)
    assert not lines or ast.get_docstring(tree), "no module docstring"
    assert not [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.type is None], "a bare except"
    assert not re.search(r"\b(TO" r"DO|FIX" r"ME|X{3})\b", text)
