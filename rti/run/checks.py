"""The audit's checks of ledger, metrics, summary, checkpoints and files. Each keeps to one invariant and names what breaks it.

A check takes the records and its findings, nothing else; checks of stored tokens are in token_checks.py.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from pathlib import Path
from typing import Any, Iterable
from urllib.parse import quote

from rti.config.keys import leaves
from rti.config.schema import Config
from rti.config.teacher import judges
from rti.run.directory import CHECKPOINTS, LEDGER, METRICS, SUMMARY
from rti.run.findings import Findings, Records
from rti.run.ledger import DROPPED, NO_SIGNAL, PASSED, TRAINED, LedgerEntry, totals

_GROUP_ID = re.compile(r"(\d+)-(\d+)")


def records_readable(run: Records, found: Findings) -> None:
    found.checked = len(run.metrics) + len(run.ledger)
    found.breaches += run.damage
    found.notes += run.notes


def consumed_once(run: Records, found: Findings) -> None:
    """Invariant 5: at most one step consumes a group, or as many as buffer.reuse allows a rescued one, and nothing else happens
    to it afterwards."""
    ended: dict[str, tuple[int, LedgerEntry]] = {}
    for line, entry in run.ledger:
        found.checked += 1
        where = f"{LEDGER}:{line}"
        last = ended.get(entry.group_id)
        if last is not None and _used_again(run.config, last[1], entry):
            ended[entry.group_id] = (line, entry)
        elif entry.use != 1:
            found.breach(where, f"use {entry.use} of group {entry.group_id} " + (
                f"follows use {last[1].use} at step {last[1].step}; buffer.reuse is {run.config.buffer.reuse}" if last else
                "follows no other"))
        elif last is not None:
            at, first = last
            found.breach(where, f"group {entry.group_id} is {entry.disposition} at step {entry.step}, but line {at} says "
                                f"that it was {first.disposition} at step {first.step}")
        elif entry.consumed or entry.disposition in (DROPPED, PASSED):
            ended[entry.group_id] = (line, entry)
        if len(set(entry.ids)) != len(entry.ids):
            found.breach(where, f"group {entry.group_id} counts a rollout twice: {_twice(entry.ids)}")


def _used_again(config: Config, last: LedgerEntry, entry: LedgerEntry) -> bool:
    """Whether `entry` may follow `last`: the next use of the same rescued group, by a later step, within its allowance."""
    same = all(getattr(entry, name) == getattr(last, name) for name in ("ids", "rewards", "oldest_version", "replaced"))
    return (same and entry.replaced is not None and last.consumed and entry.consumed and entry.step > last.step
            and entry.use == last.use + 1 <= config.buffer.reuse)


def nothing_skipped(run: Records, found: Findings) -> None:
    """Field bug 28: of the plan's order, only what may be under way is missing below the furthest group consumed."""
    done = {m for _, e in run.ledger
            if (e.consumed or e.disposition in (DROPPED, PASSED)) and (m := _place(e.group_id)) is not None}
    found.checked = len(done)
    if not done:
        return
    length = max(position for _, position in done) + 1      # of an epoch, as far as the ledger shows
    furthest = max(done)
    expected = ((e, p) for e in range(furthest[0] + 1) for p in range(length) if (e, p) < furthest)
    missing = [f"{e}-{p}" for e, p in expected if (e, p) not in done]
    slots = (run.config.async_.max_staleness + 1) * run.config.rollout.groups_per_step
    if len(missing) > slots:
        found.breach(LEDGER, f"{len(missing)} groups before {furthest[0]}-{furthest[1]} were never consumed, and at most "
                             f"{slots} can be under way: {', '.join(missing[:5])} ...")


def passed_over(run: Records, found: Findings) -> None:
    """Dynamic sampling stays within its bound. Groups that were passed over are not kept: their reason stands in the ledger."""
    bound = run.config.algo.dynamic_sampling
    for step, entries in run.steps().items():
        passed = [e.group_id for e in entries if e.disposition == PASSED]
        found.checked += 1
        if len(passed) > bound:
            found.breach(f"{LEDGER} (step {step})", f"{len(passed)} groups were passed over ({', '.join(passed[:5])}), and "
                                                    f"algo.dynamic_sampling is {bound}")


def steps_contiguous(run: Records, found: Findings) -> None:
    for expected, line in enumerate(run.metrics, start=1):
        found.checked += 1
        if line.value["step"] != expected:
            found.breach(f"{METRICS}:{line.number}", f"step {line.value['step']} stands where step {expected} belongs")
            break
    before = 0
    # a step enters the ledger before its metrics are written, so a run that is going on or was killed may be one ahead
    reach = run.last_step + (run.summary is None)
    for line, entry in run.ledger:
        where = f"{LEDGER}:{line}"
        if entry.step < before:
            found.breach(where, f"step {entry.step} comes after step {before}")
        if not 1 <= entry.step <= reach:
            found.breach(where, f"step {entry.step} has no metrics: {METRICS} ends at step {run.last_step}")
        before = max(before, entry.step)


def versions_monotonic(run: Records, found: Findings) -> None:
    """Each step begins with the version that the one before it ended with; an update adds 1, and needs a trained group."""
    after = {line.value["step"]: line.value["learner/version"] for line in run.metrics
             if line.value.get("learner/version") is not None}
    numbers = {line.value["step"]: line.number for line in run.metrics}
    begins: dict[int, int] = {}
    for line, entry in run.ledger:
        found.checked += 1
        if begins.setdefault(entry.step, entry.learner_version) != entry.learner_version:
            found.breach(f"{LEDGER}:{line}", f"step {entry.step} begins with version {entry.learner_version} here and with "
                                             f"{begins[entry.step]} before")
    previous = 0
    steps = run.steps()
    for step in sorted(set(begins) | set(after)):
        where = f"{METRICS}:{numbers[step]}" if step in numbers else f"{LEDGER} (step {step})"
        begin = begins.get(step, previous)
        if begin < previous or begin > previous + (step - 1 not in after):
            found.breach(where, f"step {step} begins with version {begin}, and the step before it ended with {previous}")
        end = after.get(step, begin)
        if end - begin not in (0, 1):
            found.breach(where, f"step {step} takes the learner from version {begin} to {end}")
        elif end > begin and not any(e.disposition == TRAINED for e in steps.get(step, ())):
            found.breach(where, f"step {step} changed the weights to version {end} without a trained group")
        previous = end


def staleness_bounded(run: Records, found: Findings) -> None:
    """Invariant 6."""
    bound = run.config.async_.max_staleness
    for line, entry in run.ledger:
        found.checked += 1
        where, age = f"{LEDGER}:{line}", entry.learner_version - entry.oldest_version
        if entry.staleness != age:
            found.breach(where, f"group {entry.group_id}: staleness is {entry.staleness}, and learner version "
                                f"{entry.learner_version} - oldest version {entry.oldest_version} is {age}")
        elif entry.consumed and not 0 <= entry.staleness <= bound:
            found.breach(where, f"group {entry.group_id} was consumed at staleness {entry.staleness}; async.max_staleness is "
                                f"{bound}")


def advantage(run: Records, found: Findings) -> None:
    """Invariant 8: what was trained has unequal rewards, of a whole group (field bug 5), or a teacher judged its tokens."""
    size, all_train, judged = run.config.rollout.group_size, run.config.rollout.train_truncated, judges(run.config)
    for line, entry in run.ledger:
        if not entry.consumed:
            continue
        found.checked += 1
        where = f"{LEDGER}:{line}"
        if len(entry.rewards) != size or len(entry.ids) != size:
            found.breach(where, f"group {entry.group_id} has {len(entry.rewards)} rewards and {len(entry.ids)} members; "
                                f"rollout.group_size is {size}")
        if not all(math.isfinite(r) for r in entry.rewards):
            found.breach(where, f"group {entry.group_id} has a reward that is no number")
        differ = entry.tokens > 0 if judged else len(set(entry.rewards)) > 1
        if entry.disposition == TRAINED and not differ:
            why = "it has no token" if judged else f"all its rewards are {entry.rewards[:1]}"
            found.breach(where, f"group {entry.group_id} counts as trained, and {why}")
        if entry.disposition == NO_SIGNAL and differ and all_train:
            why = "a teacher judged its tokens" if judged else "its rewards differ"
            found.breach(where, f"group {entry.group_id} counts as no_signal, and {why}")


def replacement(run: Records, found: Findings) -> None:
    """A rescue takes the place of one member of a group that failed as a whole; nothing else changes."""
    for line, entry in run.ledger:
        if entry.consumed:
            found.checked += 1
            for what in _replacement(entry, run.config):
                found.breach(f"{LEDGER}:{line}", f"group {entry.group_id}: {what}")


def _replacement(entry: LedgerEntry, config: Config) -> Iterable[str]:
    if len(entry.rewards_before) != len(entry.rewards):
        yield f"{len(entry.rewards_before)} outcomes before the intervention for {len(entry.rewards)} members"
        return
    if entry.attempts and config.algo.name not in ("rti", "luffy"):
        yield f"intervened rollouts, but algo.name is {config.algo.name}"
    if entry.attempts and not entry.failed:
        yield "intervened rollouts, but a plain rollout had succeeded"
    if entry.attempts > config.intervention.attempts:
        yield f"{entry.attempts} intervened rollouts; intervention.attempts is {config.intervention.attempts}"
    own = [f"{entry.group_id}/{i}" for i in range(len(entry.ids))]
    if entry.replaced is not None:
        if not 0 <= entry.replaced < len(entry.ids):
            yield f"member {entry.replaced} was replaced, and there are {len(entry.ids)}"
            return
        if not entry.failed or not entry.attempts:
            yield "a member was replaced without a failed group and an intervened rollout"
        if entry.rewards[entry.replaced] <= max(entry.rewards_before):
            yield f"the rescue's reward {entry.rewards[entry.replaced]} is no success"
        if not entry.ids[entry.replaced].startswith(f"{entry.group_id}/i"):
            yield f"member {entry.replaced} was replaced, and is {entry.ids[entry.replaced]}"
    kept = [i for i in range(len(entry.ids)) if i != entry.replaced]
    if any(entry.ids[i] != own[i] for i in kept):
        yield f"members are not its own plain rollouts: {', '.join(entry.ids[i] for i in kept if entry.ids[i] != own[i])}"
    # rewards_before are outcome bits; only an environment that does not shape its rewards can be compared
    if set(entry.rewards) <= {0.0, 1.0} and any(entry.rewards[i] != entry.rewards_before[i] for i in kept):
        yield "the reward of a member that was not replaced changed"


_ADDED_LATER = ("groups/passed", "buffer/reused")
"""Keys that a run of an earlier version does not have, and did not need: nothing of what they count was there."""
_LEFT_OUT = ("learner/members_left_out", "learner/nonfinite_tokens")


def agreement(run: Records, found: Findings) -> None:
    """Metrics and summary say what the ledger says."""
    steps = run.steps()
    for line in run.metrics:
        found.checked += 1
        entries = steps.get(line.value["step"], [])
        expected = _expected(entries)
        if "policy/trained_tokens" in line.value and not any(line.value.get(k) for k in _LEFT_OUT):
            expected["policy/trained_tokens"] = sum(e.tokens for e in entries if e.disposition == TRAINED)
        for key, value in expected.items():
            logged = line.value.get(key, 0 if key in _ADDED_LATER else None)
            if logged is None or not math.isclose(logged, value, rel_tol=1e-9, abs_tol=1e-9):
                found.breach(f"{METRICS}:{line.number}", f"{key} is {logged}, the ledger says {value}")
    if run.summary is not None:
        t = totals(e for _, e in run.ledger)
        for key, value in (("steps", run.last_step), ("groups_consumed", t.consumed), ("groups_trained", t.trained),
                           ("groups_voided", t.voided), ("groups_failed", t.failed), ("groups_rescued", t.rescued),
                           ("intervened_rollouts", t.intervened)):
            if run.summary.get(key) != value:
                found.breach(SUMMARY, f"{key} is {run.summary.get(key)}, the records say {value}")


def _expected(entries: list[LedgerEntry]) -> dict[str, float]:
    t = totals(entries)
    consumed = [e for e in entries if e.consumed]
    out: dict[str, float] = {
        "groups/consumed": t.consumed, "groups/trained": t.trained, "groups/no_signal": t.no_signal, "groups/voided": t.voided,
        "groups/passed": t.passed, "groups/failed": t.failed, "groups/rescued": t.rescued, "buffer/reused": t.reused,
    }
    rewards = [r for e in consumed if e.use == 1 for r in e.rewards]
    if rewards:
        out |= {"reward/mean": math.fsum(rewards) / len(rewards), "staleness/max": max(e.staleness for e in consumed)}
    return out


# --- checkpoints and files -----------------------------------------------------------------------------------------
def checkpoints_whole(run: Records, found: Findings) -> None:
    """Every checkpoint with its marker has all its files, as they were written (field bug 29)."""
    root = run.path / CHECKPOINTS
    names = sorted(p.name for p in root.iterdir() if re.fullmatch(r"step-\d+", p.name)) if root.is_dir() else []
    whole = [n for n in names if (root / n / "COMPLETE").is_file()]
    for name in names:
        where, step = f"{CHECKPOINTS}/{name}", int(name.removeprefix("step-"))
        if name not in whole:
            if not whole or name > whole[-1]:
                found.breach(where, "it has no COMPLETE marker, and no whole checkpoint is newer")
            else:
                found.notes.append(f"{where} has no marker: what is left of one that was being removed; it is never loaded")
            continue
        found.checked += 1
        problem = _marker_problem(root / name)
        if problem:
            found.breach(where, problem)
        if step > run.last_step:
            found.breach(where, f"{METRICS} ends at step {run.last_step}: this checkpoint cannot be resumed from")


def _marker_problem(path: Path) -> str:
    try:
        listed = json.loads((path / "COMPLETE").read_text())["files"]
        files = {str(k): (int(v["size"]), int(v["crc32"])) for k, v in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        return f"its COMPLETE marker cannot be read ({type(e).__name__})"
    if not files:
        return "its COMPLETE marker lists no file"
    for name, (size, crc) in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if _crc(file) != crc:
            return f"{name} is damaged (its checksum differs)"
    return ""


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as f:
        while block := f.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


MIN_SECRET = 6
"""A shorter value would be found by chance in any file."""


def no_secrets(run: Records, found: Findings) -> None:
    """Field bug 39: no file holds what a variable named by a `*_env` key holds."""
    needles: dict[bytes, str] = {}
    variables = sorted(_variables(run.config))
    if not variables:
        found.skipped = "nothing to look for: no *_env key of the configuration names a variable"
    for variable in variables:
        value = os.environ.get(variable, "")
        if len(value) < MIN_SECRET:
            found.notes.append(f"{variable} is not set here, or too short to be told from chance: its value was not looked for")
            continue
        for form in (value, json.dumps(value)[1:-1], quote(value, safe="")):
            needles[form.encode()] = variable
    if not needles:
        found.skipped = found.skipped or "nothing to look for: no variable that the configuration names has a value here"
        return
    found.notes.append(f"looked for the values of {', '.join(sorted(set(needles.values())))}")
    for path in sorted(p for p in run.path.rglob("*") if p.is_file() and not p.is_symlink()):
        found.checked += 1
        for variable in sorted(_held(path, needles)):
            found.breach(str(path.relative_to(run.path)), f"holds the value of {variable}; delete the file and change the key")


def _variables(config: Config) -> set[str]:
    named = {value for name, value in leaves(config).items() if name.endswith("_env") and isinstance(value, str) and value}
    return named | {v for k, v in config.env.options.items() if str(k).endswith("_env") and isinstance(v, str) and v}


def _held(path: Path, needles: dict[bytes, str]) -> set[str]:
    """The variables whose values stand in a file. Reads in blocks that overlap by the longest needle."""
    found: set[str] = set()
    if not needles:
        return found
    overlap, tail = max(map(len, needles)) - 1, b""
    with path.open("rb") as f:
        while block := f.read(1 << 22):
            window = tail + block
            found |= {variable for needle, variable in needles.items() if needle in window}
            tail = window[-overlap:] if overlap else b""
    return found


def _place(group_id: str) -> tuple[int, int] | None:
    match = _GROUP_ID.fullmatch(group_id)
    return (int(match[1]), int(match[2])) if match else None


def _twice(ids: list[str]) -> Any:
    return next(i for i in ids if ids.count(i) > 1)
