"""`python -m rti.run.audit RUN_DIR`: check the invariants that a run directory can show.

Prints one line an invariant. Exit code 0: all hold; 1: a breach, named with file and line or record; 2: not a run directory.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

from rti.commands import guarded
from rti.run import checks, file_checks, token_checks, trajectories
from rti.run.files import RecordError
from rti.run.findings import Findings, NotARun, Records, read_records

_MEND = "mend the records first"
SHOWN = 5
"""Breaches of one invariant that are printed; the rest are counted."""


class Check(NamedTuple):
    name: str
    text: str       # what holds
    unit: str       # of what was checked
    run: Callable[..., None]


RUN_CHECKS = (
    Check("records-readable", "every line of metrics and ledger, every stored record can be read", "records",
          checks.records_readable),
    Check("consumed-once", "a group is consumed by at most one step (a rescued one by buffer.reuse), or voided", "entries",
          checks.consumed_once),
    Check("nothing-skipped", "no group of the plan was passed over", "groups", checks.nothing_skipped),
    Check("passed-over", "no step passed over more groups than algo.dynamic_sampling", "steps", checks.passed_over),
    Check("steps-contiguous", "steps are 1, 2, 3, .. in metrics and ledger", "steps", checks.steps_contiguous),
    Check("versions-monotonic", "weights never go back; an update adds one version and had a trained group", "entries",
          checks.versions_monotonic),
    Check("staleness-bounded", "learner version - oldest version is within async.max_staleness", "entries",
          checks.staleness_bounded),
    Check("advantage", "only whole groups with unequal rewards, or with a teacher's judgement, were trained", "groups",
          checks.advantage),
    Check("replacement", "a rescue replaced one failed member of a failed group, nothing else changed", "groups",
          checks.replacement),
    Check("metrics-agree", "metrics and summary count what the ledger lists", "steps", checks.agreement),
    Check("metrics-in-range", "every figure can be what its unit says", "figures", file_checks.in_range),
    Check("trajectory-files", "each step has one file with its groups, none twice", "files", file_checks.stored_files),
    Check("evaluations", "summary and metrics say what the evaluations' files say", "evaluations", file_checks.evaluations),
    Check("checkpoints-whole", "checkpoints have their marker and all files as written", "checkpoints",
          checks.checkpoints_whole),
    Check("no-secrets", "no file holds the value of a variable named by a *_env key", "files", checks.no_secrets),
)
GROUP_CHECKS = (
    Check("trained-tokens", "trained tokens carry log-probability, version and weight, others nothing", "tokens",
          token_checks.trained_tokens),
    Check("weights", "weights are within the clip, and 1 off intervened tokens", "intervened tokens", token_checks.weights),
    Check("gate", "perplexity of accepted corrections is at most delta", "corrections", token_checks.gate),
    Check("teacher", "a teacher's tokens and log-probabilities stand where the algorithm asks for them, and nowhere else",
          "samples", token_checks.teacher),
    Check("stored-groups", "stored groups are those that the ledger lists", "groups", token_checks.stored_group),
    Check("evidence-hidden", "no evidence in what a policy reads", "rollouts", token_checks.evidence),
)


_ALWAYS = tuple(c for c in RUN_CHECKS if c.name in ("records-readable", "checkpoints-whole", "no-secrets"))


class Result(NamedTuple):
    check: Check
    findings: Findings

    @property
    def holds(self) -> bool:
        return not self.findings.breaches


def audit(path: str | Path) -> list[Result]:
    """Run every check. Raises NotARun."""
    records = read_records(Path(path))
    results = [Result(check, Findings()) for check in (*RUN_CHECKS, *GROUP_CHECKS)]
    readable = results[0].findings
    for result in results[:len(RUN_CHECKS)]:
        if records.damage and result.check not in _ALWAYS:
            result.findings.skipped = _MEND     # what is missing would look like a breach of everything
        else:
            result.check.run(records, result.findings)
    _audit_groups(records, results[len(RUN_CHECKS):], readable)
    return results


def _audit_groups(records: Records, results: Sequence[Result], readable: Findings) -> None:
    entries = records.consumed
    for result in results:
        result.findings.skipped = _MEND if records.damage else ""
    checked = [] if records.damage else results
    for step, path in records.trajectory_files().items():
        name = str(path.relative_to(records.path))
        try:
            for number, group in enumerate(trajectories.read(path), start=1):
                readable.checked += 1
                entry = entries.get(group.id)
                entry = entry if entry is not None and entry.step == step else None
                # arrays of unequal length are the first check's finding; the others could only stumble over them
                for check, found in checked if token_checks.arrays_agree(group) else checked[:1]:
                    check.run(records, group, entry, f"{name} record {number}", found)
        except RecordError as e:
            readable.breaches.append(str(e))


def report(results: Sequence[Result]) -> str:
    lines = []
    for check, found in results:
        state = "BREACH" if found.breaches else "-" if found.skipped else "ok"
        lines.append(f"{state:<7}{check.name:<20}{check.text}"
                     + (f"; not checked, {found.skipped}" if found.skipped else f" ({found.checked} {check.unit})"))
        lines += [f"         {breach}" for breach in found.breaches[:SHOWN]]
        if len(found.breaches) > SHOWN:
            lines.append(f"         and {len(found.breaches) - SHOWN} more")
        lines += [f"       note: {note}" for note in found.notes]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rti.run.audit",
                                     description="Check the invariants that a run directory shows.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    try:
        results = audit(parser.parse_args(words).run_dir)
    except NotARun as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    print(report(results))
    broken = sum(not r.holds for r in results)
    print(f"\n{broken} of {len(results)} invariants are broken" if broken else f"\nall {len(results)} invariants hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
