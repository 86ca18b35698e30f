"""A rollout as plain text, for terminals and TensorBoard: what was said, called and answered, and what the intervention did.

Keeps invariant 4: evidence is no part of it. Control characters are spelt out, so that no reader obeys what a model wrote.
"""

from __future__ import annotations

import json
from typing import Sequence

from rti.trajectory import Group, Intervention, Message, Trajectory


def harmless(text: str) -> str:
    """Without control characters, which a terminal would obey: each is replaced by its picture (U+2400 and on), C1 by a box."""
    return "".join(c if c in "\n\t" or c.isprintable() or c == "\u3000" else chr(0x2400 + ord(c)) if ord(c) < 32 else "\ufffd"
                   for c in text)


def calls_text(m: Message) -> str:
    """The calls of a message, a line each."""
    return "\n".join(f"{c.name}({json.dumps(c.arguments, ensure_ascii=False)})" + (f"  error: {c.error}" if c.error else "")
                     for c in m.tool_calls)


def describe(note: Intervention) -> str:
    """What the roles and the gate said of a step, a line each."""
    verdict = "" if note.verifier_ok is None else " ".join(
        ["passes" if note.verifier_ok else "refuses", ", ".join(note.verifier_reasons), note.verifier_diagnosis]).strip()
    parts = [("outcome", note.outcome), ("Validator", " ".join([note.diagnosis, ", ".join(note.error_types)]).strip()),
             ("suggests", note.suggest_next), ("Verifier", verdict), ("guard", note.guard),
             ("perplexity", "" if note.ppl_roll is None else f"{note.ppl_roll:.3f}"), ("unreadable", ", ".join(note.malformed))]
    return "\n".join(f"{name}: {text}" for name, text in parts if text)


def telling(groups: Sequence[Group]) -> Trajectory:
    """The rollout of some groups that shows most: a rescue, else a success, else the first."""
    rescues = [g.members[g.replaced] for g in groups if g.replaced is not None]
    members = [m for g in groups for m in g.members]
    return next((m for m in (*rescues, *members) if m.success), members[0])


def transcript(t: Trajectory) -> str:
    """The whole rollout. The draft of an accepted correction stands before what took its place."""
    parts = [f"rollout {t.id}, task {t.task_id}: {'succeeded' if t.success else 'failed'}, reward {t.reward:g}, {t.ending}"]
    parts += [_said(m.role, m) for m in t.prompt]
    for i, step in enumerate(t.steps, start=1):
        note = step.intervention
        if note is not None and note.outcome == "accepted":
            parts.append(_said(f"turn {i}, draft (replaced)", note.draft))
        parts.append(_said(f"turn {i}", step.message))
        parts += [describe(note)] if note is not None else []
        parts += [_said(" ".join([m.role, m.name]).strip(), m) for m in step.observations]
    return harmless("\n\n".join(parts))


def _said(who: str, m: Message) -> str:
    return "\n".join([f"[{who}]", *(text for text in (m.reasoning, m.content, calls_text(m)) if text)])
