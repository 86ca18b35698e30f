"""Whether privileged evidence reached what a policy reads (invariant 4), judged from stored trajectories alone.

Written apart from the guards of the intervention, so that a fault there is seen here. A literal of the evidence may stand in an
accepted correction only where the policy could read it before. In the prompt of any rollout, whatever the role, stands nothing
that only the prompts of the intervention hold: no coordinate, sentence or field of the evidence, and no literal of it that the
plain rollouts of the group did not read. What the policy wrote itself is not judged: it never saw evidence, and may know a
place by heart.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterator

from rti.trajectory import Group, Message, Source, Trajectory

_PAIR = re.compile(r"(-?\d{1,3}\.\d+)\s*[,，]\s*(-?\d{1,3}\.\d+)")
_WORD = re.compile(r"\w")


def leaks(group: Group, fixed: Callable[[str], bool] = lambda text: False) -> Iterator[tuple[str, str]]:
    """(trajectory id, what is wrong) for everything that breaks the invariant in a group.

    `fixed`: whether a system message is the environment's own for every task, such as a policy for agents: it tells nothing of
    this one. It is asked about messages alone that hold a literal.
    """
    own = _known_by_heart(group)
    for trajectory in (*group.members, *group.attempts):
        yield from ((trajectory.id, what) for what in _in_prompt(trajectory, fixed))
        yield from ((trajectory.id, what) for what in _beside_the_task(trajectory, group))
        yield from ((trajectory.id, what) for what in _in_corrections(trajectory, own))
    yield from _prompt_ids(group)


# --- prompts -----------------------------------------------------------------------------------------------------
def _in_prompt(trajectory: Trajectory, fixed: Callable[[str], bool]) -> Iterator[str]:
    """What no task text holds. A user may name places and ids; that a system message names one tells where things are."""
    literals = _literals(trajectory.evidence)
    numbered, pairs = {t for t in literals if any(c.isdigit() for c in t)}, {t for t in literals if _PAIR.search(t)}
    told, fields = _sentences(trajectory.evidence), [k for k in trajectory.evidence if "_" in k]
    for message, hidden in _prompts(trajectory, numbered, pairs):
        text = _normal(_text(message))
        held = [_describe(t) for t in sorted(hidden | told) if _holds(text, t)]
        held += [f"the field {k}" for k in fields if re.search(rf'"{re.escape(k)}"\s*:', message.content)]
        if held and not (message.role == "system" and fixed(message.content)):
            yield from (f"its {message.role} message holds {what} of the evidence" for what in held)


def _prompts(trajectory: Trajectory, numbered: set[str], pairs: set[str]) -> Iterator[tuple[Message, set[str]]]:
    """Each message that is part of a prompt by its place or its role, with the literals that it may not hold."""
    for message in trajectory.prompt:
        yield message, numbered if message.role == "system" else pairs
    replies = [o for s in trajectory.steps for o in s.observations]
    shown = _normal("\n".join(_text(m) for m in (*trajectory.prompt, *replies) if m.role != "system"))
    for message in replies:
        if message.role == "system":    # put in while the episode ran: what a tool or the user said may be said again
            yield message, {t for t in numbered if t not in shown}


def _beside_the_task(trajectory: Trajectory, group: Group) -> Iterator[str]:
    """Where all plain rollouts of the group read one prompt, nobody simulates a user, and it is the task's text: what another
    rollout reads beside it holds no literal of the evidence."""
    others = [m.prompt for m in group.members if not m.intervened and m is not trajectory]
    if len(others) < 2 or any(prompt != others[0] for prompt in others):
        return
    texts, mine = [_text(m) for m in others[0]], "\n".join(_text(m) for m in trajectory.prompt)
    if trajectory.prompt == others[0] or not all(m.content in mine for m in others[0]):
        return
    common, mine = _normal("\n".join(texts)), _normal(mine)
    yield from (f"its prompt holds {_describe(t)} of the evidence beside what the group's other rollouts read"
                for t in sorted(_literals(trajectory.evidence)) if _holds(mine, t) and not _holds(common, t))


# --- corrections ---------------------------------------------------------------------------------------------------
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
    """Rollouts that were given the same messages must begin with the same ids: a role's prompt would show here."""
    seen: list[tuple[list[Message], list[int]]] = []
    for trajectory in (*group.members, *group.attempts):
        if not trajectory.samples:
            continue
        sample = trajectory.samples[0]
        agent = (sample.sources != Source.CONTEXT).nonzero()[0]
        ids = sample.token_ids[:int(agent[0]) if len(agent) else len(sample.token_ids)].tolist()
        like = next((others for prompt, others in seen if prompt == trajectory.prompt), None)
        if like is None:
            seen.append((trajectory.prompt, ids))
        elif like != ids:
            yield trajectory.id, "its rollout prompt has the messages of another rollout of the group, and other ids"


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


def _sentences(evidence: Any) -> set[str]:
    """What the evidence says in whole sentences, in normal form: criteria, assertions, a closing reply. A title is none: the
    user may have asked for it."""
    found = (_normal(text) for text in _strings(evidence))
    return {t for t in found if len(t.split()) >= 8 or not t.isascii() and len(t) > 30}


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
