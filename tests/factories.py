"""Seeded makers of samples, trajectories and groups that keep every invariant, for tests of whatever consumes them.

All randomness comes from the generator given (`rng`), so equal calls give equal records. What a test wants to break it breaks
in the record it got.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from rti.trajectory import Ending, Group, Intervention, Message, Sample, Source, Step, ToolCall, Trajectory


def make_sample(
    rng: np.random.Generator, *, turns: Sequence[int] = (4, 5), prompt: int = 6, observation: int = 3, version: int = 0,
    corrected: Sequence[int] = (), first_turn: int = 0, weight_eps: float = 0.2, vocab: int = 97,
    prompt_ids: Sequence[int] | None = None,
) -> Sample:
    """A prompt, then `turns[i]` agent tokens for each turn with `observation` context tokens between turns.

    `corrected`: indices into `turns` of those written by the Corrector. `first_turn`: number of the first turn.
    Perplexity of each turn is below 5, as the default gate demands.
    """
    sources: list[int] = [Source.CONTEXT] * (len(prompt_ids) if prompt_ids is not None else prompt)
    numbers: list[int] = [-1] * len(sources)
    for i, n in enumerate(turns):
        if i:
            sources += [Source.CONTEXT] * observation
            numbers += [-1] * observation
        sources += [Source.CORRECTION if i in corrected else Source.POLICY] * n
        numbers += [first_turn + i] * n
    source = np.array(sources, np.uint8)
    n, agent, fixed = len(source), source != Source.CONTEXT, source == Source.CORRECTION
    token_ids = rng.integers(0, vocab, n).astype(np.int32)
    if prompt_ids is not None:
        token_ids[:len(prompt_ids)] = prompt_ids
    behaviour = np.where(agent, -rng.uniform(0.05, 1.5, n), 0).astype(np.float32)
    correction = np.where(fixed, np.minimum(behaviour + rng.normal(0, 0.2, n), -1e-3), np.nan).astype(np.float32)
    ratio = np.exp(np.where(fixed, correction - behaviour, 0))
    return Sample(
        token_ids=token_ids, sources=source, behaviour_logps=behaviour, correction_logps=correction,
        weights=np.where(agent, np.clip(ratio, 1 - weight_eps, 1 + weight_eps), 0).astype(np.float32),
        versions=np.where(agent, version, -1).astype(np.int32), turns=np.array(numbers, np.int16),
    )


def make_intervention(outcome: str, sample: Sample | None = None, turn: int = 0) -> Intervention:
    """What the pipeline would have noted for `outcome`; with a sample, the perplexity of that turn."""
    draft = Message(role="assistant", reasoning="go", tool_calls=[ToolCall(name="direction", arguments={"origin": "1.0,2.0"})])
    search = ToolCall(name="poi_search", arguments={"address": "A"})
    fixed = Message(role="assistant", reasoning="first look", tool_calls=[search])
    made = Intervention(outcome=outcome, draft=draft)
    if outcome == "validator_malformed":
        made.malformed = ["validator"]
        return made
    if outcome == "valid":
        return made
    made.diagnosis, made.error_types, made.suggest_next = "too early", ["FABRICATED_ARGUMENTS"], "search first"
    if outcome == "corrector_malformed":
        made.malformed = ["corrector"]
    if outcome in ("corrector_malformed", "no_correction"):
        return made
    made.correction = fixed
    if outcome == "verifier_malformed":
        made.malformed = ["verifier"]
        return made
    made.verifier_ok = outcome != "refused_verifier"
    if outcome == "refused_verifier":
        made.verifier_reasons = ["leak"]
    if outcome == "refused_gate":
        made.ppl_roll = 17.5
    if outcome == "accepted":
        made.ppl_roll = 1.0
        if sample is not None:
            made.ppl_roll = float(np.exp(-sample.behaviour_logps[sample.turns == turn].astype(np.float64).mean()))
    return made


def make_trajectory(
    rng: np.random.Generator, *, group_id: str = "0-0", member: int | str = 0, reward: float = 0.0, task_id: str = "task-0",
    task_class: str = "", intervened: bool = False, corrected: Sequence[int] = (), outcomes: Sequence[str] | None = None,
    turns: Sequence[int] = (4, 5), version: int = 0, ending: Ending = Ending.COMPLETED, forks: bool = False,
    temperature: float = 0.8, weight_eps: float = 0.2, prompt_ids: Sequence[int] | None = None,
    evidence: dict[str, Any] | None = None, vocab: int = 97,
) -> Trajectory:
    """One episode of `len(turns)` agent turns. `corrected` turns are accepted corrections (implies `intervened`).

    `outcomes` names the intervention's outcome at each turn; by default "accepted" where corrected, else "valid".
    `forks`: one sample a turn, as with a chat format that rewrites earlier turns.
    """
    intervened = intervened or bool(corrected)
    common = {"version": version, "weight_eps": weight_eps, "prompt_ids": prompt_ids, "vocab": vocab}
    if forks:
        samples = [make_sample(rng, turns=[n], corrected=[0] if i in corrected else [], first_turn=i, **common)
                   for i, n in enumerate(turns)]
    else:
        samples = [make_sample(rng, turns=turns, corrected=corrected, **common)]
    steps = []
    for i, n in enumerate(turns):
        note = None
        if intervened:
            outcome = outcomes[i] if outcomes is not None else ("accepted" if i in corrected else "valid")
            note = make_intervention(outcome, samples[i] if forks else samples[0], i)
        call = ToolCall(name="poi_search", arguments={"address": f"Place {i}"}, id=f"c{i}")
        message = Message(role="assistant", reasoning="look", tool_calls=[call])
        if note is not None and note.outcome == "accepted" and note.correction is not None:
            message = note.correction
        elif note is not None:
            message = note.draft
        answer = Message(role="tool", content="Place 30.000000,104.000000", tool_call_id=f"c{i}", name="poi_search")
        steps.append(Step(message=message, observations=[answer], n_tokens=n, intervention=note))
    prompt = [Message(role="system", content="You plan trips."), Message(role="user", content="From A to B.")]
    return Trajectory(
        id=f"{group_id}/{member}", group_id=group_id, task_id=task_id, task_class=task_class, intervened=intervened,
        ending=ending, reward=reward, success=reward > 0, temperature=temperature, samples=samples, prompt=prompt,
        steps=steps, tools=["poi_search", "direction"], seed=int(rng.integers(1 << 31)), wall_s=0.5,
        evidence=dict(evidence or {}),
    )


def make_group(
    rng: np.random.Generator | int = 0, *, rewards: Sequence[float] = (1, 0, 0, 1), rescued: int | None = None,
    attempts: int = 0, group_id: str = "0-0", task_id: str = "task-0", task_class: str = "", version: int = 0,
    **trajectory: Any,
) -> Group:
    """A group whose plain rollouts got `rewards`, all with one prompt.

    `rescued`: index of the member that a successful intervened rollout replaces (all `rewards` must then be 0).
    `attempts`: intervened rollouts before it that failed. Further keywords go to every make_trajectory.
    """
    if isinstance(rng, int):
        rng = np.random.default_rng(rng)
    trajectory.setdefault("prompt_ids", rng.integers(0, 97, 6))
    common = {"group_id": group_id, "task_id": task_id, "task_class": task_class, "version": version, **trajectory}
    members = [make_trajectory(rng, member=i, reward=float(r), **common) for i, r in enumerate(rewards)]
    failed = [make_trajectory(rng, member=f"i{k}", intervened=True, outcomes=["refused_gate"] * len(members[0].steps), **common)
              for k in range(attempts)]
    if rescued is not None:
        if any(rewards):
            raise ValueError("only a group whose plain rollouts all failed can be rescued")
        members[rescued] = make_trajectory(rng, member=f"i{attempts}", reward=1.0, corrected=(0,), **common)
    return Group(id=group_id, task_id=task_id, task_class=task_class, members=members, admitted_version=version,
                 rewards_before=[float(r) for r in rewards], replaced=rescued, attempts=failed)
