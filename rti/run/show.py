"""`python -m rti.run.show RUN_DIR [--group ID]`: stored rollouts in the terminal, turn by turn, with what the intervention did.

Keeps: what a model or a tool wrote is shown as text; control characters in it are spelt out, so that none reaches the terminal.
Evidence is privileged: it is printed only where it is asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rti.commands import guarded
from rti.run import trajectories
from rti.run.directory import TRAJECTORIES, is_run
from rti.run.files import RecordError
from rti.run.transcript import calls_text, describe, harmless
from rti.trajectory import Group, Message, Step, Trajectory

STYLES = {"system": "dim", "user": "yellow", "assistant": "cyan", "tool": "green"}


def stored(run_dir: Path) -> Iterator[tuple[int, Group]]:
    """(step, group) of everything that is stored, the newest steps first."""
    for step, path in reversed(trajectories.files(run_dir / TRAJECTORIES).items()):
        for group in trajectories.read(path):
            yield step, group


def show_list(groups: Iterator[tuple[int, Group]], console: Console) -> int:
    """A line a stored group; how many there are."""
    table = Table("step", "group", "task", "class", "succeeded before", "as trained on", "intervention", box=None)
    n = 0
    for n, (step, group) in enumerate(groups, start=1):
        rescue = f"rescued {group.members[group.replaced].id}" if group.replaced is not None else ""
        said = rescue or (f"{len(group.attempts)} in vain" if group.attempts else "")
        before, after = sum(map(bool, group.rewards_before)), sum(m.success for m in group.members)
        size = len(group.members)
        cells = [str(step), group.id, group.task_id, group.task_class, f"{before} of {size}", f"{after} of {size}", said]
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    console.print(table)
    return n


def show_group(step: int, group: Group, console: Console, *, member: str = "", evidence: bool = False) -> int:
    """The rollouts of a group whose id ends in `/member` (all: ""); how many were shown."""
    console.print(Text(f"group {group.id}, step {step}, task {harmless(group.task_id)} {harmless(group.task_class)}", "bold"))
    trained = _numbers([m.reward for m in group.members])
    console.print(Text(f"rewards before {_numbers(group.rewards_before)}, as trained on {trained}"))
    chosen = [t for t in (*group.members, *group.attempts) if not member or t.id.rpartition("/")[2] == member]
    for trajectory in chosen:
        _show(trajectory, console)
        if evidence and trajectory.evidence:
            console.print(Text("privileged evidence (the policy never saw it)", "bold yellow"))
            console.print(Text(harmless(json.dumps(trajectory.evidence, ensure_ascii=False, indent=2)), "yellow"))
    return len(chosen)


def _show(t: Trajectory, console: Console) -> None:
    kind = "intervened " if t.intervened else ""
    console.rule(Text(f"{kind}rollout {t.id}: {'succeeded' if t.success else 'failed'}, reward {t.reward:g}, {t.ending}"))
    for message in t.prompt:
        _say(message, console)
    for i, step in enumerate(t.steps, start=1):
        console.print(Text(f"turn {i}" + (", cut at the token limit" if step.finish_reason == "length" else ""), "bold"))
        _turn(step, console)


def _turn(step: Step, console: Console) -> None:
    note = step.intervention
    if note is not None and note.outcome == "accepted":
        _say(note.draft, console, "strike dim", "draft, replaced")
        _say(step.message, console, "cyan", "correction, taken")
    else:
        _say(step.message, console)
        if note is not None and note.correction is not None:
            _say(note.correction, console, "strike dim", "correction, refused")
    if note is not None:
        console.print(Padding(Text(harmless(describe(note)), "magenta"), (0, 0, 0, 2)))
    for message in step.observations:
        _say(message, console)


def _say(m: Message, console: Console, style: str = "", title: str = "") -> None:
    style = style or STYLES.get(m.role, "")
    console.print(Text(harmless(title or " ".join([m.role, m.name]).strip()), "dim"))
    for text, how in ((m.reasoning, f"italic {style}"), (m.content, style), (calls_text(m), style)):
        if text:
            console.print(Padding(Text(harmless(text), how), (0, 0, 0, 2)))


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{v:g}" for v in values)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rti.run.show", description="Show the stored rollouts of a run.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--group", default="", metavar="ID", help="a group, e.g. 0-12; without it: the list of stored groups")
    parser.add_argument("--member", default="", metavar="N",
                        help="one rollout of the group: 0, 1, .. or i0 for an intervened one")
    parser.add_argument("--evidence", action="store_true", help="print the privileged evidence, too")
    args = parser.parse_args(words)
    console = Console(highlight=False)
    try:
        return _run(args, console)
    except RecordError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace, console: Console) -> int:
    if not is_run(args.run_dir):
        raise RecordError(f"{args.run_dir} is not the directory of a run; give one, e.g. runs/lab")
    if not args.group:
        if not show_list(stored(args.run_dir), console):
            raise RecordError(f"{args.run_dir} stores no rollouts; records.trajectories says of how many groups a step")
        return 0
    found = next(((step, group) for step, group in stored(args.run_dir) if group.id == args.group), None)
    if found is None:
        raise RecordError(f"group {args.group} is not stored; without --group the stored ones are listed")
    if not show_group(*found, console, member=args.member, evidence=args.evidence):
        raise RecordError(f"group {args.group} has no rollout {args.member}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
