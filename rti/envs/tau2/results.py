"""A results file in the official format, so that the official tools can view an evaluation and score it again.

Keeps: every conversation is the official record of what was said and done, with both sides' calls and results, and its
RewardInfo; the official evaluator gives the same rewards on it.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Mapping, Sequence

from rti.config.schema import Tau2Config
from rti.envs.base import Task
from rti.envs.tau2 import official
from rti.envs.tau2.domain import load_domain
from rti.envs.tau2.environment import official_task
from rti.envs.tau2.taskset import limits_of
from rti.trajectory import Message, Trajectory


def results(config: Tau2Config, tasks: Sequence[Task], simulations: Mapping[str, Sequence[Mapping[str, Any]]], *, model: str,
            trials: int, seed: int) -> Any:
    """The official Results. `simulations`: task id -> the `simulation` of the outcome's info of each sample, in order."""
    s, domain, limits = official.load().simulation, load_domain(config.domain, config.data_dir), limits_of(config)
    runs = [{**run, "trial": trial} for task in tasks for trial, run in enumerate(simulations.get(task.id, ()))]
    info = s.Info(
        git_commit=official.version(), num_trials=trials, max_steps=limits.steps, max_errors=limits.errors, seed=seed,
        agent_info=s.AgentInfo(implementation="rti", llm=model),
        user_info=s.UserInfo(implementation=f"rti_{config.user}", llm=config.user_endpoint.model or None),
        environment_info=official.load().environment.EnvironmentInfo(domain_name=domain.name, policy=domain.policy))
    return s.Results(info=info, tasks=[official_task(t) for t in tasks],
                     simulations=[s.SimulationRun.model_validate(run) for run in runs])


def write_results(path: Path, *args: Any, **kwargs: Any) -> None:
    """`results` as the official tools load it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(results(*args, **kwargs).model_dump_json(indent=2), encoding="utf-8")


def cut_short(trajectory: Trajectory) -> dict[str, Any]:
    """The record of an episode that a token limit or an empty reply ended, as far as the agent saw it: reward 0."""
    o = official.load()
    seen = [*trajectory.prompt, *(m for step in trajectory.steps for m in (step.message, *step.observations))]
    answered = [later.role == "tool" for later in seen[1:]] + [False]
    messages = [_official(o, m, there) for m, there in zip(seen, answered) if m.role != "system"]
    now = datetime.datetime.now().isoformat()
    run = o.simulation.SimulationRun(
        id=trajectory.id, task_id=trajectory.task_id, start_time=now, end_time=now, duration=trajectory.wall_s,
        termination_reason="agent_error", messages=messages, seed=trajectory.seed,
        reward_info=o.simulation.RewardInfo(reward=0.0, reward_basis=None, info={"note": f"RTI: {trajectory.ending}"}))
    return run.model_dump(mode="json", exclude_none=True)


def _official(o: Any, message: Message, answered: bool) -> Any:
    if message.role == "tool":
        return o.message.ToolMessage(role="tool", id=message.tool_call_id, content=message.content)
    if message.role == "user":
        return o.message.UserMessage(role="user", content=message.content)
    calls = [o.message.ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in message.tool_calls] if answered else None
    return o.message.AssistantMessage(role="assistant", content=message.content or None, tool_calls=calls or None)
