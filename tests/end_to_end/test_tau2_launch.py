"""What users of τ²-Bench hit, through the entry points they start: no endpoint, a wrong key, no extra, a user that never stops.

How each of these is told apart and counted is tested in tests/envs/test_tau2_simulator.py; here it is what the shell shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from tests.engines.tiny import write_parrot  # noqa: E402
from tests.envs.test_tau2_simulator import serving, text  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SMALL = """\
name: small
steps: 1
model: {path: lab}
env: {name: tau2, tau2: {domain: retail, max_turns: 2, nl_assertions: skip}}
rollout: {group_size: 2, groups_per_step: 1, max_tokens: 16, max_context: 8192}
intervention: {prompts: full}
generators: {threads: 1}
env_workers: {count: 1}
learner: {pack_tokens: 8192, threads: 1}
ray: {start_timeout_s: 600}
evaluation: {tasks: 2, samples: 1, before: false, after: false}
"""


async def launch(directory, script, *words, **environment):
    """Exit code, standard output, and both outputs together, of a script as a process of its own."""
    (directory / "small.yaml").write_text(SMALL)
    ours = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "launch" / script), *words, cwd=directory, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=ours | {"NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"} | environment)
    out, err = await process.communicate()
    return process.returncode, out.decode(), (out + err).decode()


def user(url):
    return [f"env.tau2.user_endpoint.base_url={url}", "env.tau2.user_endpoint.model=user-model",
            "env.tau2.user_endpoint.retries=0"]


async def test_without_an_endpoint_nothing_starts_and_the_keys_to_set_are_named(tmp_path):
    code, _, shown = await launch(tmp_path, "rti.py", "--config", "small.yaml")
    assert code == 1 and not (tmp_path / "runs").exists()
    assert "env.tau2.user_endpoint.base_url" in shown and "env.tau2.user=scripted" in shown and "Traceback" not in shown


async def test_a_wrong_key_stops_the_run_before_it_begins_and_is_not_shown(tmp_path):
    async with serving(status=401) as (url, _):
        code, _, shown = await launch(tmp_path, "rti.py", "--config", "small.yaml", *user(url),
                                      "env.tau2.user_endpoint.key_env=RTI_TEST_KEY", RTI_TEST_KEY="sk-a-secret")
    assert code == 1 and "401" in shown and "RTI_TEST_KEY" in shown
    assert "sk-a-secret" not in shown and "Traceback" not in shown


async def test_without_the_extra_the_run_ends_with_what_to_install(tmp_path):
    (tmp_path / "absent" / "tau2").mkdir(parents=True)
    absent = "raise ModuleNotFoundError('No module named tau2', name='tau2')"
    (tmp_path / "absent" / "tau2" / "__init__.py").write_text(absent)
    async with serving(text("yes")) as (url, _):
        code, _, shown = await launch(tmp_path, "rti.py", "--config", "small.yaml", *user(url),
                                      PYTHONPATH=str(tmp_path / "absent"))
    assert code == 1 and "pip install -e '.[tau2]'" in shown and "Traceback" not in shown


@pytest.mark.slow
async def test_a_user_that_never_stops_costs_the_turns_and_gets_no_reward(tmp_path):
    write_parrot(tmp_path / "policy", "Ok", 32_768, (ROOT / "docs" / "tau2.md").read_text(encoding="utf-8"))
    async with serving(text("Go on.")) as (url, asked):
        code, out, shown = await launch(
            tmp_path, "eval.py", "--config", "small.yaml", *user(url), "model.path=./policy", "model.chat=generic",
            "rollout.max_context=32768", "learner.pack_tokens=32768", "env.tau2.domain=telecom", "env.tau2.max_turns=3",
            "evaluation.tasks=1")
    assert code == 0, shown
    summary = json.loads(out)
    assert (summary["p@1"], summary["n_tasks"], summary["lost_samples"]) == (0.0, 1, 0)
    results = json.loads((tmp_path / "runs" / "small-evaluation" / "tau2-results.json").read_text())
    [simulation] = results["simulations"]
    assert simulation["termination_reason"] == "max_steps" and simulation["reward_info"]["reward"] == 0.0
    said = [(m["role"], m["content"]) for m in simulation["messages"][1:]]
    assert said == [("user", "Go on."), ("assistant", "Ok")] * 3 + [("user", "Go on.")] and len(asked) == 1 + 4
