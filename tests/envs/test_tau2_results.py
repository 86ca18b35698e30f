"""The results file: the official models load it, and the official evaluator gives each conversation the reward that it says."""

from __future__ import annotations

import pytest

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from rti.actors.official_results import OfficialResults  # noqa: E402
from rti.config.schema import Config, Tau2Config  # noqa: E402
from rti.envs.tau2 import official  # noqa: E402
from rti.envs.tau2.dialogue import Limits  # noqa: E402
from rti.envs.tau2.environment import Tau2Environment  # noqa: E402
from rti.envs.tau2.taskset import limits_of, rti_task  # noqa: E402
from rti.trajectory import Ending, Message, Step, ToolCall, Trajectory, decode, encode  # noqa: E402
from tests.envs.tau2_pairs import DATA_DIR, Mover, domain, official_reward, reference  # noqa: E402


async def trajectory(name, task, moves, sample):
    """As an env worker returns it: what the environment says of a test task's episode, through the binary form."""
    d, user = domain(name), Mover()
    environment = Tau2Environment(lambda _: d, d.tools, lambda *_: user, Limits(turns=1000, steps=0))
    await environment.reset(task, seed=sample)
    for move in [*moves, "Bye."]:
        if isinstance(move, str):
            message = Message(role="assistant", content=move)
        elif move[2] == "user":
            user.next, message = move[:2], Message(role="assistant", content="Please do that.")
        else:
            message = Message(role="assistant", tool_calls=[ToolCall(name=move[0], arguments=move[1])])
        await environment.step(message)
    outcome = await environment.outcome()
    assert outcome is await environment.outcome()       # asked twice, evaluated once
    made = Trajectory(id=f"{task.id}/{sample}", group_id="g", task_id=task.id, success=outcome.success, reward=outcome.reward,
                      info=outcome.info, ending=Ending.COMPLETED, seed=sample)
    return decode(encode(made), Trajectory)


def config(name, tmp_path):
    made = Config(run_dir=str(tmp_path / "run"))
    made.env.name, made.env.tau2 = "tau2", Tau2Config(domain=name, data_dir=DATA_DIR, user="scripted")
    made.evaluation.samples = 2
    return made


@pytest.mark.parametrize("name", ["telecom", "retail"])
async def test_a_results_file_is_loaded_and_scored_again_by_the_official_evaluator(name, tmp_path):
    d, notes = domain(name), []
    collected = OfficialResults(config(name, tmp_path))
    chosen = d.tasks("base")[:6 if name == "telecom" else 2]       # the official evaluator takes its time over retail
    for task in chosen:
        moves = reference(task)
        rti = rti_task(d, task, "test")
        collected.keep([await trajectory(name, rti, moves, 0), await trajectory(name, rti, moves[:-1], 1)])
    collected.write(notes.append)
    results = official.load().simulation.Results.load(tmp_path / "run-evaluation" / "tau2-results.json")
    assert str(collected.path) in notes[0]
    assert [(r.task_id, r.trial) for r in results.simulations] == [(t.id, i) for t in chosen for i in (0, 1)]
    tasks = {t.id: t for t in results.tasks}
    for run in results.simulations:
        again = official_reward(name, tasks[run.task_id], run.messages, run.termination_reason.value)
        assert again.reward == run.reward_info.reward, run.task_id
        assert [m.turn_idx for m in run.messages] == list(range(len(run.messages)))
    assert {r.reward_info.reward for r in results.simulations if r.trial == 0} == {1.0}
    assert list(results.to_df().reward) == [r.reward_info.reward for r in results.simulations]


async def test_an_episode_cut_by_a_token_limit_is_in_the_file_with_reward_zero(tmp_path):
    task = domain("telecom").tasks("base")[0]
    cut = Trajectory(id="x", group_id="g", task_id=task.id, ending=Ending.TRUNCATED, seed=1,
                     prompt=[Message(role="system", content="policy"), Message(role="assistant", content="Hi!"),
                             Message(role="user", content="Help")],
                     steps=[Step(message=Message(role="assistant", content="", tool_calls=[ToolCall(name="a", id="1")]),
                                 observations=[Message(role="tool", content="b", tool_call_id="1", name="a")]),
                            Step(message=Message(role="assistant", tool_calls=[ToolCall(name="c", error="cut off")]))])
    collected = OfficialResults(config("telecom", tmp_path))
    collected.keep([cut])
    collected.write(lambda note: None)
    run, = official.load().simulation.Results.load(collected.path).simulations
    assert (run.reward_info.reward, run.termination_reason.value) == (0.0, "agent_error")
    assert [m.role for m in run.messages] == ["assistant", "user", "assistant", "tool", "assistant"]


def test_other_environments_write_nothing(tmp_path):
    collected = OfficialResults(Config(run_dir=str(tmp_path / "run")))
    collected.write(lambda note: pytest.fail("nothing was to be written"))
    assert not collected.path.exists()


def test_the_profiles_have_their_limits():
    assert limits_of(Tau2Config()) == Limits(turns=30, steps=200, errors=0)
    assert limits_of(Tau2Config(profile="official")) == Limits(turns=200, steps=200, errors=10)
