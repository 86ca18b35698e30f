"""What a teacher does with episodes: it judges the policy's own tokens (OPD), or runs the task itself (LUFFY). No Ray.

Keeps invariants 1 and 2: the teacher reads and writes the policy's very token ids, so that both must have one tokenizer
(rti.chat.tokens checks it); what it wrote is Source.TEACHER, of no policy version. The teacher sees what the policy would see:
no evidence reaches it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rti.engines.base import Engine, EngineError, PromptTooLong
from rti.rollout import AgentStep, PlainPolicy, StepContext
from rti.trajectory import Sample, Source, Trajectory


class TeacherPolicy(PlainPolicy):
    """A StepPolicy: PlainPolicy over the teacher's engine."""

    async def act(self, ctx: StepContext) -> AgentStep:
        step = await super().act(ctx)
        return msgspec.structs.replace(step, source=Source.TEACHER, versions=np.full_like(step.versions, -1))


async def judge(trajectory: Trajectory, teacher: Engine) -> None:
    """Fill `teacher_logps` of every sample: at the trajectory's temperature (that of the behaviour log-probabilities), NaN on
    tokens that are not trained on. Raises EngineError where the teacher cannot serve, or cannot read the whole of a sample."""
    temperature = trajectory.temperature or 1.0     # greedy sampling reports log-probabilities of temperature 1
    for sample in trajectory.samples:
        sample.teacher_logps = await _judged(sample, teacher, temperature, trajectory.id)


async def _judged(sample: Sample, teacher: Engine, temperature: float, id: str) -> np.ndarray:
    first = int(sample.mask.argmax())       # all before it is prompt; a sample has a trained token
    try:
        scores = await teacher.score(sample.token_ids[:first].tolist(), sample.token_ids[first:].tolist(), temperature)
    except PromptTooLong as fault:
        raise EngineError(f"the teacher cannot read episode {id}: {fault}. Give one whose context holds rollout.max_context "
                          "tokens") from fault
    logps = np.concatenate([np.full(first, np.nan), scores.logps]).astype(np.float32)
    return np.where(sample.mask, logps, np.float32(np.nan))
