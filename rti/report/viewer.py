"""Stored trajectories as the page's viewer takes them: plain JSON values, the most telling groups first, within a size.

Keeps: nothing here is HTML. Texts of models and tools leave as text, and the page writes them as text, never as markup.
"""

from __future__ import annotations

import logging
from typing import Any, Iterator, Sequence

import msgspec
import numpy as np

from rti.algos import load_algorithm
from rti.chat import load_chat_format
from rti.config.schema import Config
from rti.report.runs import Run
from rti.report.tokens import TokenTexts, turns
from rti.run import trajectories
from rti.run.files import RecordError
from rti.trajectory import Ending, Group, Intervention, Message, Trajectory

LOG = logging.getLogger(__name__)

LABELS = ("succeeded", "failed", "rescued", "refused", "truncated")
"""What the viewer filters by; a trajectory may have several."""


def collect(runs: Sequence[Run], megabytes: float) -> tuple[list[bytes], dict[str, int]]:
    """(JSON of each trajectory shown, run -> the step at which the page was full).

    Of each run the groups of the newest steps come first, and of a step those in which the intervention did something. Where
    the page would grow beyond `megabytes`, the rest of that step and all steps before it are left out, and not even read.
    """
    shown: list[bytes] = []
    full: dict[str, int] = {}
    for number, run in enumerate(runs):
        kept, step = _of_run(number, run, megabytes * 1e6 / len(runs))
        shown += kept
        if step is not None:
            full[run.name] = step
    return shown, full


def _of_run(number: int, run: Run, room: float) -> tuple[list[bytes], int | None]:
    texts, algorithm = _texts(run.config), _advantages(run.config)
    kept: list[bytes] = []
    for step, path in reversed(run.records.trajectory_files().items()):
        try:
            groups = list(trajectories.read(path))
        except RecordError as e:
            run.records.damage.append(str(e))
            continue
        for group in sorted(groups, key=lambda g: (g.replaced is None, not g.attempts, not g.failed_before)):
            parts = [msgspec.json.encode(item) for item in items(group, step, number, texts, algorithm)]
            room -= sum(map(len, parts))
            if room < 0:
                return kept, step
            kept += parts
    return kept, None


def items(group: Group, step: int, run: int, texts: TokenTexts, advantages: Any = None) -> Iterator[dict[str, Any]]:
    """Each member and each intervened rollout that was not taken. `advantages`: of a group's members, [G]."""
    values = advantages(group) if advantages is not None else [None] * len(group.members)
    for i, member in enumerate(group.members):
        kind = "rescue" if i == group.replaced else "rollout"
        yield _item(member, group, step, run, kind, texts, values[i])
    for attempt in group.attempts:
        yield _item(attempt, group, step, run, "attempt", texts, None)


def _item(t: Trajectory, group: Group, step: int, run: int, kind: str, texts: TokenTexts, advantage: Any) -> dict[str, Any]:
    by_turn = turns(t, texts)
    made = {
        "id": t.id, "run": run, "step": step, "group": group.id, "task": t.task_id, "class": t.task_class, "kind": kind,
        "labels": labels(t, kind), "reward": t.reward, "ending": str(t.ending), "seconds": round(t.wall_s, 2),
        "rewards": [m.reward for m in group.members],
        "prompt": [_message(m) for m in t.prompt],
        "turns": [_turn(step_, by_turn.get(i)) for i, step_ in enumerate(t.steps)],
        "evidence": _pretty(t.evidence) if t.evidence else "", "info": _pretty(t.info) if t.info else "",
    }
    if advantage is not None and np.isfinite(advantage):
        made["advantage"] = round(float(advantage), 4)
    return made


def labels(t: Trajectory, kind: str) -> list[str]:
    """Those of LABELS that a trajectory has."""
    refused = any(s.intervention is not None and s.intervention.outcome.startswith("refused_") for s in t.steps)
    has = {"succeeded": t.success, "failed": not t.success, "rescued": kind == "rescue", "refused": refused,
           "truncated": t.ending in (Ending.TRUNCATED, Ending.TURN_LIMIT)}
    return [label for label in LABELS if has[label]]


def _turn(step: Any, tokens: dict[str, Any] | None) -> dict[str, Any]:
    made = {"said": _message(step.message), "results": [_message(o) for o in step.observations]}
    if step.finish_reason != "stop":
        made["cut"] = True
    if step.intervention is not None:
        made["note"] = _note(step.intervention)
    if tokens is not None:
        made["tokens"] = tokens
    return made


def _note(note: Intervention) -> dict[str, Any]:
    """The intervention of a step; empty fields are left out."""
    made = {
        "outcome": note.outcome, "diagnosis": note.diagnosis, "errors": note.error_types, "suggest": note.suggest_next,
        "draft": _message(note.draft) if note.outcome != "valid" else None,
        "correction": _message(note.correction) if note.correction is not None else None,
        "verdict": note.verifier_ok, "reasons": note.verifier_reasons, "verifier": note.verifier_diagnosis,
        "guard": note.guard, "malformed": note.malformed,
        "ppl": round(note.ppl_roll, 4) if note.ppl_roll is not None and np.isfinite(note.ppl_roll) else None,
    }
    return {key: value for key, value in made.items() if value is not None and value != "" and value != []}


def _message(m: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": m.role}
    for key in ("content", "reasoning", "name"):
        if value := getattr(m, key):
            made[key] = value
    if m.tool_calls:
        made["calls"] = [{"name": c.name, "arguments": _compact(c.arguments)} | ({"error": c.error} if c.error else {})
                         for c in m.tool_calls]
    return made


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _texts(config: Config) -> TokenTexts:
    """By the policy's own tokenizer, where it can be loaded; where not, the page shows token numbers."""
    try:
        return TokenTexts(load_chat_format(config.model.chat, config.model.path).decode)
    except (ValueError, OSError, RuntimeError) as e:
        LOG.warning("the tokenizer of %s cannot be loaded (%s): the report shows tokens by their numbers", config.model.path,
                    str(e).splitlines()[0])
        return TokenTexts(None)


def _advantages(config: Config) -> Any:
    return load_algorithm(config.algo, config.intervention, config.rollout.train_truncated).advantages
