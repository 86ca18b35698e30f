"""Episodes do not see each other, the shared data stay as loaded, and the package imports neither torch nor Ray."""

from __future__ import annotations

import asyncio
import copy
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from rti.envs.tau2 import official  # noqa: E402
from rti.envs.tau2.domain import load_domain  # noqa: E402
from rti.envs.tau2.overlay import Overlay  # noqa: E402
from tests.envs.tau2_pairs import domain, play, reference, variants  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def vpn_tasks(n):
    """Telecom tasks of the full set, every second one of which begins with a broken VPN."""
    tasks = domain("telecom").tasks("full")
    broken = [t for t in tasks if any(a.func_name == "break_vpn" for a in t.initial_state.initialization_actions)]
    others = [t for t in tasks if t not in broken]
    return [t for pair in zip(broken[::5], others[::5]) for t in pair][:n]


async def test_fifty_interleaved_episodes_end_as_each_does_alone_and_share_nothing():
    d, tasks = domain("telecom"), vpn_tasks(50)
    assert len(tasks) == 50
    shared = official.member("domains.telecom.user_tools.TelecomUserTools").default_vpn_details
    before, details = d.fingerprint(), shared.model_copy(deep=True)
    moves = [[*reference(t), ("disconnect_vpn", {}, "user"), ("connect_vpn", {}, "user"), ("check_vpn_status", {}, "user")]
             for t in tasks]

    alone = [(await play(d, t, m)) for t, m in zip(tasks, moves)]
    together = await asyncio.gather(*(play(d, t, m) for t, m in zip(tasks, moves)))

    assert [x.world.state() for x in together] == [x.world.state() for x in alone]
    assert [[m.content for m in x.messages] for x in together] == [[m.content for m in x.messages] for x in alone]
    assert shared == details and d.fingerprint() == before
    assert all(x.world.environment.user_tools.default_vpn_details is not shared for x in together)


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
async def test_the_template_is_untouched_after_every_episode(name):
    d = domain(name)
    before = d.fingerprint()
    for task in random.Random(1).sample(d.tasks("base"), 12 if name == "telecom" else 4):     # a hash takes its time
        for trajectory in variants(task, random.Random(task.id), 2):
            await play(d, task, trajectory)
            assert d.fingerprint() == before, task.id


async def test_a_world_changes_itself_alone():
    d = domain("retail")
    task = next(t for t in d.tasks("base") if d.gold(t))
    changed = (await play(d, task, reference(task))).world
    assert changed.state() == d.gold(task) != {}
    assert d.world(task).state() == {}


def test_an_overlay_is_the_mapping_it_covers_and_copies_what_is_looked_at():
    shared = {"a": [1], "b": [2], "c": [3]}
    kept = copy.deepcopy(shared)
    view = Overlay(shared)
    view["a"].append(9)
    view.get("b").append(9)
    assert view.pop("c") == [3] and "c" not in view and view.get("c") is None
    view.setdefault("d", [4]).append(5)
    view |= {"e": [6]}
    assert view == {"a": [1, 9], "b": [2, 9], "d": [4, 5], "e": [6]}
    assert view.touched == {"a", "b", "c", "d", "e"} and shared == kept
    with pytest.raises(KeyError):
        view.pop("c")


def run(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_package_imports_neither_torch_nor_ray_nor_the_official_package_before_it_is_asked():
    code = ("import sys, pkgutil, importlib, rti.envs.tau2 as p\n"
            "for m in pkgutil.iter_modules(p.__path__): importlib.import_module(f'rti.envs.tau2.{m.name}')\n"
            "assert not {'torch', 'ray', 'tau2'} & set(sys.modules), set(sys.modules) & {'torch', 'ray', 'tau2'}\n"
            "from rti.envs.tau2.domain import load_domain\nload_domain('retail')\n"
            "assert not {'torch', 'ray'} & set(sys.modules)")
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module, says", [("tau2", "no module 'tau2"), ("tau2.registry", "tau2.registry")])
def test_without_the_package_or_with_the_physics_package_of_that_name_the_message_names_the_extra(module, says):
    code = ("import sys\n"
            "class Absent:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {module!r}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
            "sys.meta_path.insert(0, Absent())\n"
            "from rti.envs import load_task_set\nfrom rti.config.schema import EnvConfig\n"
            "try: load_task_set(EnvConfig(name='tau2'))\n"
            "except Exception as e: print(type(e).__name__, e)")
    said = run(code).stdout
    assert said.startswith("FatalEnvironmentError") and says in said and "pip install -e '.[tau2]'" in said


def test_a_data_folder_is_found_in_the_official_layout_or_refused_with_the_mend(tmp_path):
    from rti.envs.base import FatalEnvironmentError
    from rti.envs.tau2.domain import data_folder
    own = data_folder("")
    assert (own / "domains" / "retail" / "db.json").is_file()
    assert data_folder(str(own)) == own and data_folder(str(own.parent)) == own
    with pytest.raises(FatalEnvironmentError, match="env.tau2.data_dir"):
        data_folder(str(tmp_path))
    with pytest.raises(FatalEnvironmentError, match=f"is 'elsewhere' \\(here {Path.cwd()}/elsewhere\\)"):
        data_folder("elsewhere")
    with pytest.raises(FatalEnvironmentError, match="env.tau2.domain is 'banking'"):
        load_domain("banking")


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_policy_and_tools_are_what_the_official_constructor_gives(name):
    import importlib
    d = load_domain(name)
    environment = importlib.import_module(f"tau2.domains.{name}.environment").get_environment()
    assert d.policy == environment.policy
    schemas = [t.openai_schema["function"] for t in environment.get_tools()]
    assert [(t.name, t.description, t.parameters) for t in d.tools] == [
        (f["name"], f["description"], f["parameters"]) for f in schemas]
    assert len(d.user_tools) == (30 if name == "telecom" else 0)
