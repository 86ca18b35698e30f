"""Whether privileged evidence reached what a policy reads (invariant 4), judged from stored trajectories alone.

Written apart from the guards of the intervention, so that a fault there is seen here. A literal of the evidence may stand in an
accepted correction only where the policy could read it before. What the policy wrote itself is not judged: it never saw
evidence, and may know a place by heart.
"""

from __future__ import annotations

import re
from typing import Any, Iterator

from rti.trajectory import Group, Message, Source, Trajectory

_PAIR = re.compile(r"(-?\d{1,3}\.\d+)\s*[,，]\s*(-?\d{1,3}\.\d+)")
_WORD = re.compile(r"\w")


def leaks(group: Group) -> Iterator[tuple[str, str]]:
    """(trajectory id, what is wrong) for everything that breaks the invariant in a group."""
    own = _known_by_heart(group)
    for trajectory in (*group.members, *group.attempts):
        yield from ((trajectory.id, what) for what in _in_prompt(trajectory))
        yield from ((trajectory.id, what) for what in _in_corrections(trajectory, own))
    yield from _prompt_ids(group)


def _in_prompt(trajectory: Trajectory) -> Iterator[str]:
    """The system message of a rollout must not tell where things are, or name an id of the reference."""
    hidden = {t for t in _literals(trajectory.evidence) if any(c.isdigit() for c in t)}
    for message in trajectory.prompt:
        if message.role == "system":
            text = _normal(_text(message))
            yield from (f"its system message holds {_describe(t)} of the evidence" for t in sorted(hidden) if _holds(text, t))


def _in_corrections(trajectory: Trajectory, own: set[str]) -> Iterator[str]:
    hidden = _literals(trajectory.evidence) - own
    if not hidden or not trajectory.n_accepted:
        return
    visible = _normal("\n".join(_text(m) for m in trajectory.prompt))
    for i, step in enumerate(trajectory.steps):
        said = _normal(_text(step.message))
        if step.intervention is not None and step.intervention.outcome == "accepted":
            for literal in sorted(hidden):
                if _holds(said, literal) and literal not in visible:
                    yield f"the correction of step {i} holds {_describe(literal)} of the evidence that nothing before it shows"
        visible = "\n".join([visible, said, *(_normal(_text(o)) for o in step.observations)])


def _known_by_heart(group: Group) -> set[str]:
    """Names that a plain rollout wrote before it could read them: the policy has them from its tools or its training."""
    found: set[str] = set()
    for trajectory in group.members:
        if trajectory.intervened:
            continue
        hidden = {t for t in _literals(trajectory.evidence) if not _PAIR.search(t)}
        visible = _normal("\n".join(_text(m) for m in trajectory.prompt))
        for step in trajectory.steps:
            said = _normal(_text(step.message))
            found |= {t for t in hidden if _holds(said, t) and t not in visible}
            visible = "\n".join([visible, said, *(_normal(_text(o)) for o in step.observations)])
    return found


def _prompt_ids(group: Group) -> Iterator[tuple[str, str]]:
    """Members that were given the same messages must begin with the same ids: a role's prompt would show here."""
    first: tuple[list[Message], list[int]] | None = None
    for trajectory in (*group.members, *group.attempts):
        if not trajectory.samples:
            continue
        sample = trajectory.samples[0]
        agent = (sample.sources != Source.CONTEXT).nonzero()[0]
        ids = sample.token_ids[:int(agent[0]) if len(agent) else len(sample.token_ids)].tolist()
        if first is None:
            first = (trajectory.prompt, ids)
        elif first[0] == trajectory.prompt and first[1] != ids:
            yield trajectory.id, "its rollout prompt has the messages of the group's first member, and other ids"


# --- literals ----------------------------------------------------------------------------------------------------
def _literals(evidence: Any) -> set[str]:
    """Texts of the evidence that tell something, in normal form: coordinates, and names, ids and numbers of some length."""
    found: set[str] = set()
    for text in _strings(evidence):
        normal = _normal(text)
        pairs = _PAIR.findall(normal)
        if pairs:
            found |= {f"{a},{b}" for a, b in pairs}
        elif 2 <= len(normal) <= 60 and (len(normal) >= 4 or not normal.isascii()):
            found.add(normal)
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for v in value.values():
            yield from _strings(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _strings(v)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield repr(value)


def _normal(text: str) -> str:
    """Case and white space even, coordinates with six decimals."""
    text = " ".join(text.casefold().split())
    return _PAIR.sub(lambda m: f"{float(m[1]):.6f},{float(m[2]):.6f}", text)


def _text(message: Message) -> str:
    """All that a message shows, one value a line."""
    values = [v for c in message.tool_calls for v in (c.name, *_strings(c.arguments))]
    return "\n".join([message.name, message.reasoning, message.content, *values])


def _holds(text: str, literal: str) -> bool:
    """Whether a literal stands in a text as whole words (where it is written with letters that have words)."""
    at = text.find(literal)
    while at >= 0:
        before, after = text[max(at - 1, 0):at], text[at + len(literal):at + len(literal) + 1]
        if not literal.isascii() or not (_WORD.match(before) or _WORD.match(after)):
            return True
        at = text.find(literal, at + 1)
    return False


def _describe(literal: str) -> str:
    """A literal by its class and length: the audit's output is a log, too."""
    return "a coordinate" if _PAIR.search(literal) else f"a text of {len(literal)} characters"
