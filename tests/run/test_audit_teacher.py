"""What the audit says of a teacher's tokens and log-probabilities: each rule is broken on purpose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Callable

import numpy as np
import pytest

from rti.run import checks, token_checks
from rti.run.findings import Findings
from rti.run.ledger import Numbered, entry_for
from rti.run.statistics import group_metrics
from rti.trajectory import Group, Source
from tests.factories import make_group
from tests.run.made_run import make_config


def shown() -> Group:
    """A failed group in which an episode of the teacher's took a place."""
    group = make_group(0, rewards=(0, 0, 0, 0), rescued=1, attempts=1)
    for trajectory in (group.members[1], *group.attempts):
        for sample in trajectory.samples:
            mask = sample.mask
            sample.sources[mask], sample.versions[mask], sample.weights[mask] = Source.TEACHER, -1, 1
            sample.correction_logps[:] = np.nan
        for step in trajectory.steps:
            step.intervention = None
    return group


def judged(rewards=(0, 0, 0, 0)) -> Group:
    group = make_group(0, rewards=rewards)
    for member in group.members:
        for sample in member.samples:
            sample.teacher_logps = np.where(sample.mask, sample.behaviour_logps - 1, np.nan).astype(np.float32)
    return group


def look(check: Callable, name: str, group: Group, **entry) -> Findings:
    config, found = make_config(), Findings()
    config.algo.name = name
    entry = entry_for(group, step=1, learner_version=0, **entry)
    run = SimpleNamespace(config=config, ledger=[Numbered(1, entry)])
    if check in (checks.advantage, checks.replacement):
        check(run, found)
    else:
        check(run, group, entry, "here", found)
    return found


@pytest.mark.parametrize("name, group", [("luffy", shown()), ("opd", judged())])
def test_a_teachers_records_break_nothing(name, group):
    for check in (token_checks.teacher, token_checks.trained_tokens, token_checks.weights, token_checks.gate,
                  token_checks.stored_group):
        found = look(check, name, group, trained=True)
        assert not found.breaches, (check, found.breaches)
    for check in (checks.advantage, checks.replacement):
        found = look(check, name, group, trained=True)
        assert not found.breaches, (check, found.breaches)


def spoil(group: Group, member: int, field: str, value: float, trained: bool = True) -> Group:
    sample = group.members[member].samples[0]
    getattr(sample, field)[np.flatnonzero(sample.mask == trained)[0]] = value
    return group


@pytest.mark.parametrize("name, group, word", [
    ("rti", shown(), "not those of the rollouts that it ran"),
    ("luffy", spoil(shown(), 0, "sources", Source.TEACHER), "not those of the rollouts that it ran"),
    ("luffy", spoil(shown(), 1, "sources", Source.POLICY), "not those of the rollouts that it ran"),
    ("luffy", spoil(shown(), 1, "versions", 0), "of a version of the policy"),
    ("luffy", judged((0, 0, 0, 1)), "has log-probabilities of a teacher, and algo.name is luffy"),
    ("opd", make_group(0, rewards=(0, 1, 0, 0)), "has no log-probabilities of a teacher"),
    ("opd", spoil(judged(), 2, "teacher_logps", np.nan), "exactly the trained tokens"),
    ("opd", spoil(judged(), 2, "teacher_logps", 0.5), "exactly the trained tokens"),
    ("opd", spoil(judged(), 2, "teacher_logps", -1.0, trained=False), "exactly the trained tokens"),
])
def test_a_teachers_record_where_it_does_not_belong(name, group, word):
    assert word in "\n".join(look(token_checks.teacher, name, group).breaches)


def test_a_judged_group_is_trained_on_whatever_its_rewards_and_another_is_not():
    assert "a teacher judged its tokens" in look(checks.advantage, "opd", judged(), trained=False).breaches[0]
    assert "all its rewards are [0.0]" in look(checks.advantage, "luffy", judged(), trained=True).breaches[0]
    assert "algo.name is opd" in "\n".join(look(checks.replacement, "opd", shown()).breaches)


def test_the_tokens_that_a_teacher_was_asked_for_are_counted():
    group = shown()
    written = sum(int(s.mask.sum()) for t in (group.members[1], *group.attempts) for s in t.samples)
    found = group_metrics([group], learner_version=0, weight_eps=0.2)
    assert (found["teacher/written_tokens"], found["teacher/judged_tokens"]) == (written, 0)
    assert found["intervention/rollouts"] == 2 and found["intervention/success_share"] == 0.5
    group = judged()
    found = group_metrics([group], learner_version=0, weight_eps=0.2)
    assert found["teacher/judged_tokens"] == sum(m.n_agent_tokens for m in group.members)
    assert not [k for k in group_metrics([make_group(0)], learner_version=0, weight_eps=0.2) if k.startswith("teacher")]
