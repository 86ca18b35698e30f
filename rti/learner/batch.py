"""From the groups of a step to the samples that train, with the denominators of the whole step. Pure numpy.

Keeps field bugs 1, 4, 8, 10 and 18: only members that train are in a group's statistics, a group that teaches nothing puts
no token into any denominator, denominators are known before the first micro-batch, and a token whose behaviour
log-probability is not finite leaves the loss and |tau_i| alike. Every rank calls this on all groups, so that all ranks know
the same denominators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

import numpy as np

from rti.algos.base import Algorithm
from rti.trajectory import Group, Sample, Source, Trajectory


@dataclass(frozen=True)
class TrainSample:
    """One sequence to forward, and its n trained tokens. Inputs end where nothing after them is predicted any more."""

    inputs: np.ndarray              # int32 [T]
    select: np.ndarray              # int64 [n]: positions of `inputs` whose successor is trained on
    targets: np.ndarray             # int64 [n]: those successors
    behaviour_logps: np.ndarray     # float32 [n]
    correction_logps: np.ndarray    # float32 [n]
    weights: np.ndarray             # float32 [n]
    intervened: np.ndarray          # bool [n]
    from_teacher: np.ndarray        # bool [n]
    teacher_logps: np.ndarray       # float32 [n]; NaN where the sample has none
    advantage: float
    scale: float                    # 1 / (|tau_i| * trajectories of the step), or 1 / trained tokens of the step
    temperature: float


@dataclass(frozen=True)
class StepBatch:
    samples: list[TrainSample]
    groups: int
    groups_no_signal: int
    trajectories: int               # members that train, of groups that teach
    members_left_out: int           # of those groups, that do not train
    nonfinite_tokens: int           # left out of loss and denominator

    @property
    def trained_tokens(self) -> int:
        return sum(len(s.select) for s in self.samples)


def prepare(groups: Sequence[Group], algorithm: Algorithm) -> StepBatch:
    """The samples of all groups that teach, in the order of groups, members and samples."""
    taken: list[tuple[Trajectory, float]] = []
    teaching = left_out = 0
    for group in groups:
        advantages = algorithm.advantages(group)
        if not (advantages.any() or algorithm.distils):
            continue
        teaching += 1
        members = [(m, float(a)) for m, a in zip(group.members, advantages) if algorithm.trains(m)]
        left_out += len(group.members) - len(members)
        taken += members
    samples, nonfinite = [], 0
    for trajectory, advantage in taken:
        made, dropped = _train_samples(trajectory, advantage, len(taken), algorithm.distils)
        samples += made
        nonfinite += dropped
    if algorithm.aggregation == "token":
        scale = 1.0 / max(1, sum(len(s.select) for s in samples))
        samples = [replace(s, scale=scale) for s in samples]
    return StepBatch(samples, len(groups), len(groups) - teaching, len(taken), left_out, nonfinite)


def _train_samples(trajectory: Trajectory, advantage: float, trajectories: int,
                   distils: bool) -> tuple[list[TrainSample], int]:
    """|tau_i| counts the usable tokens of all samples: a trajectory that forked is still one trajectory."""
    if distils and any(s.teacher_logps is None for s in trajectory.samples):
        raise ValueError(f"trajectory {trajectory.id} has no log-probabilities of the teacher, which its algorithm distils: it "
                         "was made under another algo.name")
    trained = sum(int(s.mask.sum()) for s in trajectory.samples)
    usable = [_usable(s, trajectory.id) for s in trajectory.samples]
    length = sum(len(u) for u in usable)
    scale = 1.0 / (length * trajectories) if length else 0.0
    made = [_train_sample(s, at, advantage, scale, trajectory.temperature)
            for s, at in zip(trajectory.samples, usable) if len(at)]
    return made, trained - length


def _usable(sample: Sample, trajectory_id: str) -> np.ndarray:
    """Positions of the trained tokens that have all the numbers they need."""
    mask = sample.mask
    if len(mask) and mask[0]:
        raise ValueError(f"trajectory {trajectory_id} has a sample that begins with a trained token: there is no prompt to "
                         "predict it from. A sample must begin with its prompt (Source.CONTEXT).")
    finite = np.isfinite(sample.behaviour_logps) & np.isfinite(sample.weights)
    finite &= np.isfinite(sample.correction_logps) | (sample.sources != Source.CORRECTION)
    if sample.teacher_logps is not None:
        finite &= np.isfinite(sample.teacher_logps)
    return np.flatnonzero(mask & finite)


def _train_sample(sample: Sample, at: np.ndarray, advantage: float, scale: float, temperature: float) -> TrainSample:
    sources, teacher = sample.sources[at], sample.teacher_logps
    return TrainSample(
        inputs=sample.token_ids[:at[-1]], select=(at - 1).astype(np.int64), targets=sample.token_ids[at].astype(np.int64),
        behaviour_logps=sample.behaviour_logps[at], correction_logps=sample.correction_logps[at], weights=sample.weights[at],
        intervened=sources == Source.CORRECTION, from_teacher=sources == Source.TEACHER,
        teacher_logps=np.full(len(at), np.nan, np.float32) if teacher is None else teacher[at],
        advantage=advantage, scale=scale,
        temperature=temperature if temperature > 0 else 1.0)    # greedy: engines give log-probabilities of temperature 1
