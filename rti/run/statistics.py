"""The numbers of a step's groups, under the keys of metrics.py. Pure; numpy only.

Keeps: statistics are over exactly what was consumed (a replaced member is gone, its rescue counts, field bug 4), "failed" and
pass@G read the outcome bit (field bug 6), and a key for which nothing was measured is left out instead of being 0.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Iterable, Sequence

import numpy as np

from rti.run.ledger import LedgerEntry, totals
from rti.run.metrics import REFUSALS, ROLES
from rti.trajectory import Ending, Group, Intervention, Message, Source, Step, Trajectory

_VERIFIER_PREFIX, _GUARD_PREFIX = "verifier_", "guard_"


def group_metrics(groups: Sequence[Group], *, learner_version: int, weight_eps: float,
                  reused: Sequence[Group] = ()) -> dict[str, float]:
    """Metrics of the groups that one step consumes. `learner_version`: of the weights that the step begins with. `reused`:
    those that earlier steps consumed as well; they count in the staleness alone, so that nothing is reported twice."""
    members = [m for g in groups for m in g.members]
    intervened = [t for g in groups for t in (*g.members, *g.attempts) if t.intervened and t.ending.is_agents]
    return {
        **_groups(groups), **_rewards(groups, members), **_staleness([*groups, *reused], learner_version), **_episodes(members),
        **_tools(members), **_interventions(intervened), **_corrections(intervened), **_weights(intervened, weight_eps),
        **_teacher([t for g in groups for t in (*g.members, *g.attempts)]),
    }


def ledger_metrics(entries: Iterable[LedgerEntry]) -> dict[str, float]:
    """What the ledger says of one step. Put over `group_metrics`: the algorithm's word on what was trained wins there."""
    t = totals(entries)
    return {"groups/consumed": t.consumed, "groups/trained": t.trained, "groups/no_signal": t.no_signal,
            "groups/voided": t.voided, "groups/passed": t.passed, "groups/failed": t.failed, "groups/rescued": t.rescued,
            "buffer/reused": t.reused}


def _mean(key: str, values: Iterable[float]) -> dict[str, float]:
    """{key: mean}, or nothing where there are no values."""
    values = list(values)
    return {key: float(np.mean(values, dtype=np.float64))} if values else {}


def _share(key: str, part: int, whole: int) -> dict[str, float]:
    return {key: part / whole} if whole else {}


# --- groups ------------------------------------------------------------------------------------------------------
def _groups(groups: Sequence[Group]) -> dict[str, float]:
    failed = sum(g.failed_before for g in groups)
    rescued = sum(g.replaced is not None for g in groups)
    trained = sum(g.teaches for g in groups)
    return {
        "groups/consumed": len(groups), "groups/trained": trained, "groups/no_signal": len(groups) - trained,
        "groups/failed": failed, "groups/rescued": rescued, **_branches(groups),
        **_share("groups/failed_share", failed, len(groups)), **_share("groups/rescued_share", rescued, failed),
        **_share("pass@G/before", len(groups) - failed, len(groups)),
        **_share("pass@G/after", sum(any(m.success for m in g.members) for g in groups), len(groups)),
    }


def _branches(groups: Sequence[Group]) -> dict[str, float]:
    """Nothing where no rollout was meant to be a branch."""
    meant = [m.branch for g in groups for m in g.members if m.branch is not None]
    dropped = sum(bool(b.dropped) for b in meant)
    return {"groups/branches": len(meant) - dropped, "groups/branches_dropped": dropped} if meant else {}


def _rewards(groups: Sequence[Group], members: Sequence[Trajectory]) -> dict[str, float]:
    by_class: dict[str, list[float]] = {}
    for g in groups:
        if g.task_class:
            by_class.setdefault(g.task_class, []).extend(g.rewards_before)
    out = {
        **_mean("reward/mean", (m.reward for m in members)),
        **_mean("reward/before_mean", (r for g in groups for r in g.rewards_before)),
        **_mean("reward/group_std", (float(np.std([m.reward for m in g.members])) for g in groups if g.members)),
    }
    for name in sorted(by_class):
        out |= _mean(f"reward/class/{name}", by_class[name])
    return out


def _staleness(groups: Sequence[Group], learner_version: int) -> dict[str, float]:
    ages = [learner_version - g.oldest_version for g in groups]
    return {**_mean("staleness/mean", ages), **({"staleness/max": max(ages)} if ages else {})}


# --- episodes ----------------------------------------------------------------------------------------------------
def _episodes(members: Sequence[Trajectory]) -> dict[str, float]:
    endings = Counter(m.ending for m in members)
    out = {
        **_mean("episode/turns", (len(m.steps) for m in members)),
        **_mean("episode/tokens", (m.n_agent_tokens for m in members)),
        **_mean("episode/length", (sum(len(s.token_ids) for s in m.samples) for m in members)),
        **_mean("time/episode_s", (m.wall_s for m in members)),
    }
    for ending in Ending:
        out |= _share(f"episode/ending/{ending}", endings[ending], len(members))
    return out


def _tools(members: Sequence[Trajectory]) -> dict[str, float]:
    calls = [len(s.message.tool_calls) for m in members for s in m.steps]
    malformed = sum(bool(c.error) for m in members for s in m.steps for c in s.message.tool_calls)
    failed = sum(failed_calls(s) for m in members for s in m.steps)
    used = sum(any(not c.error for s in m.steps for c in s.message.tool_calls) for m in members)
    return {
        **_share("tools/used_share", used, len(members)), **_share("tools/calls", sum(calls), len(members)),
        **_share("tools/malformed_share", malformed, sum(calls)), **_share("tools/error_share", failed, sum(calls)),
    }


def failed_calls(step: Step) -> int:
    """Calls of a step that could not be read, or whose reply is an error (it begins with that word, as every environment's
    error replies do)."""
    replies = {o.tool_call_id: o.content for o in step.observations if o.role == "tool"}
    in_order = [o.content for o in step.observations if o.role == "tool"]
    failed = 0
    for i, call in enumerate(step.message.tool_calls):
        reply = replies.get(call.id, "") if call.id else (in_order[i] if i < len(in_order) else "")
        failed += bool(call.error) or reply[:5].lower() == "error"
    return failed


# --- interventions -----------------------------------------------------------------------------------------------
def _notes(trajectories: Iterable[Trajectory]) -> list[Intervention]:
    return [s.intervention for t in trajectories for s in t.steps if s.intervention is not None]


def flagged(note: Intervention) -> bool:
    """Whether the Validator judged the draft invalid."""
    return note.outcome not in ("valid", "validator_malformed")


def refusal(note: Intervention) -> str | None:
    """The key of REFUSALS that a step counts under; None where it was not flagged, or accepted. Where several reasons are
    given the first one counts, so that the counts add up."""
    if not flagged(note) or note.outcome == "accepted":
        return None
    if note.outcome == "refused_verifier":
        reason = note.verifier_reasons[0].strip().lower() if note.verifier_reasons else ""
        return _known(_VERIFIER_PREFIX, reason)
    if note.outcome == "refused_guard":
        return _known(_GUARD_PREFIX, note.guard.partition(":")[0].strip().lower())
    return note.outcome.removeprefix("refused_")


def _known(prefix: str, reason: str) -> str:
    return prefix + reason if prefix + reason in REFUSALS else prefix + "other"


def _interventions(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    notes = _notes(rollouts)
    n_flagged = sum(flagged(n) for n in notes)
    accepted = sum(n.outcome == "accepted" for n in notes)
    why = Counter(r for n in notes if (r := refusal(n)) is not None)
    malformed = Counter(role for n in notes for role in set(n.malformed))
    return {
        "intervention/rollouts": len(rollouts),
        **_share("intervention/success_share", sum(t.success for t in rollouts), len(rollouts)),
        **_share("intervention/accepted_trajectories_share", sum(t.n_accepted > 0 for t in rollouts), len(rollouts)),
        "intervention/steps": len(notes), "intervention/flagged": n_flagged, "intervention/accepted": accepted,
        "intervention/refused": n_flagged - accepted,
        **_share("intervention/flagged_share", n_flagged, len(notes)),
        **_share("intervention/accepted_share", accepted, n_flagged),
        **{f"intervention/refused/{key}": why[key] for key in REFUSALS},
        **{f"intervention/malformed/{role}": malformed[role] for role in ROLES},
    }


def _corrections(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    notes = _notes(rollouts)
    pairs = [(n.draft, n.correction) for n in notes if n.outcome == "accepted" and n.correction is not None]
    scored = [n for n in notes if n.ppl_roll is not None and math.isfinite(n.ppl_roll)]
    accepted = [n.ppl_roll for n in scored if n.outcome == "accepted"]
    refused = [n.ppl_roll for n in scored if n.outcome == "refused_gate"]
    return {
        **_mean("intervention/calls_original", (len(draft.tool_calls) for draft, _ in pairs)),
        **_mean("intervention/calls_corrected", (len(fixed.tool_calls) for _, fixed in pairs)),
        **_mean("intervention/chars_original", (characters(draft) for draft, _ in pairs)),
        **_mean("intervention/chars_corrected", (characters(fixed) for _, fixed in pairs)),
        **_mean("ppl/accepted_mean", accepted),
        **({"ppl/accepted_p90": float(np.percentile(accepted, 90))} if accepted else {}),
        **_mean("ppl/refused_mean", refused),
    }


def characters(message: Message) -> int:
    """Length of an assistant turn as text: reasoning, content, and each call's name and JSON arguments."""
    calls = sum(len(c.name) + len(json.dumps(c.arguments, ensure_ascii=False)) for c in message.tool_calls)
    return len(message.reasoning) + len(message.content) + calls


def _weights(rollouts: Sequence[Trajectory], eps: float) -> dict[str, float]:
    samples = [s for t in rollouts for s in t.samples]
    parts = [s.weights[s.sources == Source.CORRECTION] for s in samples]
    weights = np.concatenate(parts).astype(np.float64) if parts else np.empty(0)
    if not len(weights):
        return {"weight/tokens": 0}
    low, high = np.float64(np.float32(1 - eps)), np.float64(np.float32(1 + eps))     # the bounds as a weight can hold them
    return {
        "weight/tokens": len(weights), "weight/mean": float(weights.mean()), "weight/std": float(weights.std()),
        "weight/min": float(weights.min()), "weight/max": float(weights.max()),
        "weight/clipped_low_share": float((weights <= low).mean()),
        "weight/clipped_high_share": float((weights >= high).mean()),
    }


# --- the teacher -------------------------------------------------------------------------------------------------
def _teacher(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    """What a teacher was asked for; nothing where none was."""
    samples = [s for t in rollouts for s in t.samples]
    written = sum(int((s.sources == Source.TEACHER).sum()) for s in samples)
    judged = sum(int(s.mask.sum()) for s in samples if s.teacher_logps is not None)
    return {"teacher/written_tokens": written, "teacher/judged_tokens": judged} if written or judged else {}
