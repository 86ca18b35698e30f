"""The audit's checks of stored groups: tokens, weights, gate, replacement, evidence. Each looks at one group at a time.

`where` names file and record; the ledger's entry of the group is at hand, None where the ledger has none.
"""

from __future__ import annotations

import math
from typing import Iterator

import msgspec
import numpy as np

from rti.config.teacher import judges, rolls_out
from rti.run.findings import Findings, Records
from rti.run.leaks import leaks
from rti.run.ledger import LedgerEntry, entry_for
from rti.trajectory import Group, Sample, Source, Trajectory


def _rollouts(group: Group) -> Iterator[Trajectory]:
    yield from group.members
    yield from group.attempts


def _samples(group: Group, where: str) -> Iterator[tuple[str, Trajectory, Sample]]:
    for trajectory in _rollouts(group):
        for i, sample in enumerate(trajectory.samples):
            yield f"{where}, rollout {trajectory.id}, sample {i}", trajectory, sample


def arrays_agree(group: Group) -> bool:
    """Whether the per-token arrays of every sample have one length."""
    samples = (s for t in _rollouts(group) for s in t.samples)
    return all(len({len(array) for array in msgspec.structs.astuple(s) if array is not None}) == 1 for s in samples)


def trained_tokens(run: Records, group: Group, entry: LedgerEntry | None, where: str, found: Findings) -> None:
    """Invariant 2: behaviour log-probability, version and weight on each trained token, and nothing on the others."""
    for place, trajectory, sample in _samples(group, where):
        found.checked += int(sample.mask.sum())
        try:
            sample.check()
        except ValueError as e:
            found.breach(place, str(e))
            continue
        mask, context = sample.mask, ~sample.mask
        if (sample.behaviour_logps[mask] > 1e-6).any():
            found.breach(place, "a behaviour log-probability is above 0")
        if sample.weights[context].any() or sample.behaviour_logps[context].any() or (sample.versions[context] != -1).any():
            found.breach(place, "a token of the context has a weight, a log-probability or a version")
        if entry is not None and mask.any() and int(sample.versions.max()) > entry.learner_version:
            found.breach(place, f"a token is of version {int(sample.versions.max())}, and the step began with version "
                                f"{entry.learner_version}")
        if mask.any() and mask[0]:
            found.breach(place, "it begins with a trained token: there is no prompt to predict it from")
    for trajectory in _rollouts(group):
        place, asked = f"{where}, rollout {trajectory.id}", run.config.rollout.temperature
        if trajectory.temperature != asked:
            found.breach(place, f"sampled at temperature {trajectory.temperature}; rollout.temperature is {asked}")
        if not trajectory.ending.is_agents:
            found.breach(place, f"it ended by {trajectory.ending}: it must be run again, never kept")


def teacher(run: Records, group: Group, entry: LedgerEntry | None, where: str, found: Findings) -> None:
    """A teacher's tokens are of no version and fill whole intervened rollouts of LUFFY; its log-probabilities stand on every
    trained token of OPD, and on no other; neither is there under another algorithm."""
    shown, judged = rolls_out(run.config), judges(run.config)
    for place, trajectory, sample in _samples(group, where):
        mask = sample.mask
        taught = sample.sources == Source.TEACHER
        found.checked += 1
        if not (taught == (mask & (shown and trajectory.intervened))).all():
            found.breach(place, "the teacher's tokens are not those of the rollouts that it ran")
        if (sample.versions[taught] != -1).any():
            found.breach(place, "a token of the teacher's is of a version of the policy")
        if (sample.teacher_logps is not None) != judged:
            found.breach(place, f"it has {'no ' if judged else ''}log-probabilities of a teacher, and algo.name is "
                                f"{run.config.algo.name}")
        elif judged and (not np.isnan(sample.teacher_logps[~mask]).all() or not (sample.teacher_logps[mask] <= 1e-6).all()):
            found.breach(place, "the teacher's log-probabilities are not those of exactly the trained tokens")


def weights(run: Records, group: Group, entry: LedgerEntry | None, where: str, found: Findings) -> None:
    """Weights are within the clip, equal the clipped ratio of the stored log-probabilities, and 1 off intervened tokens."""
    config = run.config.intervention
    low, high = np.float32(1 - config.weight_eps), np.float32(1 + config.weight_eps)
    for place, _, sample in _samples(group, where):
        fixed, policy = sample.sources == Source.CORRECTION, np.isin(sample.sources, (Source.POLICY, Source.TEACHER))
        found.checked += int(fixed.sum())
        if (sample.weights[policy] != 1).any():
            found.breach(place, "a token that the policy sampled has a weight other than 1")
        held = sample.weights[fixed]
        if not len(held):
            continue
        if not ((held >= low) & (held <= high)).all():
            found.breach(place, f"a weight of {_odd(held, low, high)} is outside [{low}, {high}]")
            continue
        gap = sample.correction_logps[fixed].astype(np.float64) - sample.behaviour_logps[fixed].astype(np.float64)
        right = np.clip(np.exp(np.clip(gap, -50, 50)), low, high) if config.reweight else np.ones(len(held))
        if not np.allclose(held, right, rtol=1e-5, atol=1e-6):
            found.breach(place, "a weight is not the clipped ratio of its correction and rollout log-probabilities"
                         if config.reweight else "a weight is not 1, and intervention.reweight is off")


def _odd(held: np.ndarray, low: np.float32, high: np.float32) -> float:
    return float(held[~((held >= low) & (held <= high))][0])


def gate(run: Records, group: Group, entry: LedgerEntry | None, where: str, found: Findings) -> None:
    """Accepted corrections, and only they, are intervened tokens, and their perplexity is at most delta."""
    delta = run.config.intervention.delta
    for trajectory in _rollouts(group):
        place = f"{where}, rollout {trajectory.id}"
        turns = _corrected_turns(trajectory)
        accepted = {i for i, s in enumerate(trajectory.steps) if s.intervention and s.intervention.outcome == "accepted"}
        if accepted != set(turns):
            odd = sorted(accepted.symmetric_difference(turns))
            found.breach(place, f"steps {odd}: accepted corrections and intervened tokens are not the same steps")
        if turns and not trajectory.intervened:
            found.breach(place, "it holds intervened tokens, and is not an intervened rollout")
        for turn, logps in turns.items():
            found.checked += 1
            ppl = math.exp(min(-float(logps.mean()), 700.0))
            if not ppl <= delta * (1 + 1e-6):
                found.breach(place, f"step {turn}: perplexity {ppl:.4g} of its intervened tokens is above delta {delta:g}")
            noted = trajectory.steps[turn].intervention.ppl_roll if turn in accepted else None
            if noted is not None and not math.isclose(noted, ppl, rel_tol=1e-3):
                found.breach(place, f"step {turn}: its perplexity is noted as {noted:.4g}, the tokens give {ppl:.4g}")


def _corrected_turns(trajectory: Trajectory) -> dict[int, np.ndarray]:
    """turn -> behaviour log-probabilities of its intervened tokens."""
    found: dict[int, list[np.ndarray]] = {}
    for sample in trajectory.samples:
        fixed = sample.sources == Source.CORRECTION
        for turn in np.unique(sample.turns[fixed]):
            found.setdefault(int(turn), []).append(sample.behaviour_logps[fixed & (sample.turns == turn)].astype(np.float64))
    return {turn: np.concatenate(parts) for turn, parts in found.items()}


def stored_group(run: Records, group: Group, entry: LedgerEntry | None, where: str, found: Findings) -> None:
    """The stored group is the one that the ledger says was consumed."""
    found.checked += 1
    where = f"{where} (group {group.id})"
    if entry is None:
        found.breach(where, "the ledger has no step that consumed it")
        return
    mine = entry_for(group, step=entry.step, learner_version=entry.learner_version, trained=entry.disposition == "trained")
    for name in ("task_id", "oldest_version", "rewards", "rewards_before", "replaced", "attempts", "ids", "tokens"):
        if getattr(mine, name) != getattr(entry, name):
            found.breach(where, f"{name} is {getattr(mine, name)}, the ledger says {getattr(entry, name)}")
    for i, member in enumerate(group.members):
        if member.intervened != (i == group.replaced):
            found.breach(where, f"member {i} is {'' if member.intervened else 'not '}an intervened rollout")
    for what in _strangers(group):
        found.breach(where, what)
    if group.replaced is not None and not 0 <= group.replaced < len(group.members):
        found.breach(where, f"member {group.replaced} was replaced, and there are {len(group.members)}")
    elif group.replaced is not None and not group.members[group.replaced].success:
        found.breach(where, f"member {group.replaced} took a place in the group, and did not succeed")


def _strangers(group: Group) -> Iterator[str]:
    """Rollouts that are not of the group or of its task, stand in it twice, or have tokens of turns that they did not take."""
    ids = [t.id for t in _rollouts(group)]
    if len(set(ids)) != len(ids):
        yield f"rollout {next(i for i in ids if ids.count(i) > 1)} stands in it twice"
    for t in _rollouts(group):
        if (t.group_id, t.task_id) != (group.id, group.task_id) or not t.id.startswith(f"{group.id}/"):
            yield f"rollout {t.id} is of group {t.group_id} and task {t.task_id}, the group is of task {group.task_id}"
        if any(len(s.turns) and int(s.turns.max()) >= len(t.steps) for s in t.samples):
            yield f"rollout {t.id} has tokens of a turn beyond its {len(t.steps)}"
    for t in group.attempts:
        if not t.intervened:
            yield f"attempt {t.id} is not an intervened rollout"


def evidence(run: Records, group: Group, entry: LedgerEntry | None, where: str, found: Findings) -> None:
    """Invariant 4."""
    found.checked += len(group.members) + len(group.attempts)
    for trajectory, what in leaks(group, run.is_fixed):
        found.breach(f"{where}, rollout {trajectory}", what)
