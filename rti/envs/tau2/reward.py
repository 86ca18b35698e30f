"""The reward of a conversation, as the official evaluator gives it: the same RewardInfo, without its replays and hashes.

Keeps: every component equals the official one on the same messages. Actions and communicated information are the official
evaluators' own; the database is compared by what changed, against the task's gold state; assertions are run by the official
environment in the episode's final world; natural-language assertions are the official prompt, answered by our judge.
"""

from __future__ import annotations

from typing import Any, Sequence

from rti.envs.base import FatalEnvironmentError
from rti.envs.tau2 import official
from rti.envs.tau2.domain import Domain
from rti.envs.tau2.judge import Judge
from rti.envs.tau2.world import World

COUNTED = ("user_stop", "agent_stop")
"""The endings after which a conversation is scored at all."""


async def evaluate(domain: Domain, task: Any, messages: Sequence[Any], world: World, termination: str,
                   judge: Judge | None) -> Any:
    """The official RewardInfo. `world` is in the state that the messages left it in; its assertions may change it.

    `judge` answers natural-language assertions; they are evaluated where the reward basis names them."""
    o = official.load()
    info = o.simulation.RewardInfo
    if termination not in COUNTED:
        return info(reward=0.0, reward_basis=None,
                    info={"note": f"Simulation terminated prematurely. Termination reason: {termination}"})
    criteria = task.evaluation_criteria
    if criteria is None:
        return info(reward=1.0, reward_basis=None, info={"note": "No evaluation criteria"})
    kinds = o.tasks.RewardType
    basis = set(criteria.reward_basis)
    parts = [({kinds.DB, kinds.ENV_ASSERTION}, env := _environment(domain, task, world)),
             ({kinds.ACTION}, action := o.action.ActionEvaluator.calculate_reward(task=task, full_trajectory=list(messages)))]
    nl = await _natural(task, messages, judge) if kinds.NL_ASSERTION in basis else None
    parts += [({kinds.NL_ASSERTION}, nl)]
    said = o.communicate.CommunicateEvaluator.calculate_reward(task=task, full_trajectory=list(messages))
    parts += [({kinds.COMMUNICATE}, said)]
    reward, breakdown = 1.0, {}
    for names, part in parts:
        if basis & names:
            breakdown |= part.reward_breakdown or {}
            reward *= part.reward
    return info(reward=reward, db_check=env.db_check, env_assertions=env.env_assertions, action_checks=action.action_checks,
                nl_assertions=nl.nl_assertions if nl else None, communicate_checks=said.communicate_checks,
                reward_basis=criteria.reward_basis, reward_breakdown=breakdown,
                info={"env": env.info, "nl": nl.info if nl else None, "communicate": said.info, "action": action.info})


def _environment(domain: Domain, task: Any, world: World) -> Any:
    s, kinds, criteria = official.load().simulation, official.load().tasks.RewardType, task.evaluation_criteria
    if criteria.actions is None and criteria.env_assertions is None:
        return s.RewardInfo(reward=1.0, db_check=s.DBCheck(db_match=True, db_reward=1.0),
                            info={"note": "No expected actions or env assertions"})
    match = world.state() == domain.gold(task)
    checks = []
    for assertion in criteria.env_assertions or []:
        met = world.environment.run_env_assertion(assertion, raise_assertion_error=False)
        checks.append(s.EnvAssertionCheck(env_assertion=assertion, met=met, reward=float(met)))
    parts = {kinds.DB: float(match), kinds.ENV_ASSERTION: float(all(c.met for c in checks))}
    breakdown = {kind: value for kind, value in parts.items() if kind in criteria.reward_basis}
    reward = 1.0
    for value in breakdown.values():
        reward *= value
    return s.RewardInfo(reward=reward, db_check=s.DBCheck(db_match=match, db_reward=float(match)), env_assertions=checks,
                        reward_basis=criteria.reward_basis, reward_breakdown=breakdown)


async def _natural(task: Any, messages: Sequence[Any], judge: Judge | None) -> Any:
    o = official.load()
    assertions = task.evaluation_criteria.nl_assertions
    if not assertions:
        return o.nl.NLAssertionsEvaluator.calculate_reward(task=task, full_trajectory=list(messages))
    if judge is None:
        raise FatalEnvironmentError(f"task {task.id} has natural-language assertions in its reward, and there is no judge; "
                                    "mend: set env.tau2.judge.base_url and .model, or env.tau2.nl_assertions=skip")
    checks = await judge.check(messages, assertions)
    reward = float(all(c.met for c in checks))
    return o.simulation.RewardInfo(reward=reward, nl_assertions=checks,
                                   reward_breakdown={o.tasks.RewardType.NL_ASSERTION: reward})
