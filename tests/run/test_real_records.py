"""Records of real episodes: rollouts and interventions as they run in production, through run directory and audit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rti.algos.replace import replace_failed
from rti.config.schema import Config
from rti.engines.base import SamplingParams
from rti.rollout import PlainPolicy, run_episode
from rti.run.audit import audit, main
from rti.run.directory import RunDirectory
from rti.run.ledger import entry_for
from rti.run.metrics import check
from rti.run.statistics import group_metrics, ledger_metrics
from rti.trajectory import Group, Trajectory
from tests.mas.scripted import EchoEnvironment, ScriptedEngine, echo_task, say
from tests.mas.test_pipeline import BETTER, CANARY, DRAFT, INVALID, VALID, engine_of, pipeline
from tests.run.breaking import expect

SEED = 7


def make_config(delta: float = 5.0, guards: bool = True) -> Config:
    config = Config(name="real", steps=1)
    config.rollout.group_size, config.rollout.groups_per_step = 4, 1
    config.rollout.max_tokens, config.rollout.max_context = 300, 4000
    config.intervention.delta, config.intervention.guards, config.intervention.attempts = delta, guards, 2
    return config


def make_engine(**replies: object) -> ScriptedEngine:
    """The policy gives up at once, and finishes once something was echoed; the Corrector has it echo."""
    told = {"policy": lambda text: DRAFT if "<|tool|>" in text else say("I pass.", content="No."),
            "validator": lambda text: VALID if "<|tool|>" in text else INVALID}
    return engine_of(**(told | replies))


async def episode(config: Config, engine: ScriptedEngine, member: str, intervened: bool) -> Trajectory:
    intervention = config.intervention
    policy = (pipeline(engine, delta=intervention.delta, guards=intervention.guards) if intervened
              else PlainPolicy(engine, engine.chat, SamplingParams(max_tokens=300, temperature=0.8)))
    task = echo_task(code=CANARY, place="Qingshan")
    return await run_episode(task, EchoEnvironment(), policy, engine.chat, id=f"0-0/{member}", group_id="0-0", seed=SEED,
                             limits=config.rollout, temperature=0.8, intervened=intervened)


async def run_one_step(path: Path, config: Config, engine: ScriptedEngine) -> dict[str, float]:
    members = [await episode(config, engine, str(i), False) for i in range(4)]
    group = Group(id="0-0", task_id="t1", task_class="plain", members=members, rewards_before=[0.0] * 4)
    group = replace_failed(group, [await episode(config, engine, "i0", True)], "random", random.Random(SEED))
    entries = [entry_for(group, step=1, learner_version=0)]
    values = {**group_metrics([group], learner_version=0, weight_eps=0.2), **ledger_metrics(entries)}
    check(values)
    with RunDirectory.open(path, config) as run:
        run.consume(entries)
        run.save_trajectories(1, [group])
        run.log(1, values)
    return values


async def test_a_rescue_passes_the_audit_and_is_counted(tmp_path: Path) -> None:
    values = await run_one_step(tmp_path, make_config(), make_engine())
    assert main([str(tmp_path)]) == 0
    looked_at = {r.check.name: r.findings.checked for r in audit(tmp_path)}
    assert looked_at["gate"] == 1 and looked_at["weights"] > 100
    assert values["pass@G/before"] == 0 and values["pass@G/after"] == 1 and values["groups/rescued"] == 1
    assert values["intervention/flagged"] == values["intervention/accepted"] == 1 and values["intervention/steps"] == 2
    assert 1 < values["ppl/accepted_mean"] < 5 and 0.8 <= values["weight/mean"] <= 1.2
    assert values["intervention/calls_original"] == 0 and values["intervention/calls_corrected"] == 1


async def test_a_refused_rescue_passes_the_audit_too(tmp_path: Path) -> None:
    values = await run_one_step(tmp_path, make_config(delta=1.0), make_engine())
    assert main([str(tmp_path)]) == 0
    assert values["intervention/refused/gate"] == 1 and values["ppl/refused_mean"] > 1 and values["groups/rescued"] == 0


@pytest.mark.parametrize("corrector", [say("It is in the notes.", [("echo", {"text": CANARY})]),
                                       say("To qingshan.", [("echo", {"text": "Echo"})])])
async def test_a_leak_that_no_guard_stopped_is_found(tmp_path: Path, corrector: str) -> None:
    await run_one_step(tmp_path / "guarded", make_config(), make_engine(corrector=corrector))
    assert main([str(tmp_path / "guarded")]) == 0
    await run_one_step(tmp_path / "open", make_config(guards=False), make_engine(corrector=corrector))
    expect(tmp_path / "open", "evidence-hidden", "rollout 0-0/i0", "the correction of step 0")


async def test_a_clean_correction_with_the_guards_off_passes(tmp_path: Path) -> None:
    await run_one_step(tmp_path, make_config(guards=False), make_engine(corrector=BETTER))
    assert main([str(tmp_path)]) == 0
