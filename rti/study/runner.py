"""Runs what is missing of a study: each entry of the plan is a process of launch/rti.py or launch/eval.py.

Keeps: what is complete is never run again; what was stopped or killed goes on where it was (launch/rti.py resumes by itself);
an entry that was made with other words is refused, not mixed in; one process a directory, also where a killed study left
its runs behind. A first SIGTERM or SIGINT is passed on to the runs, which save a checkpoint, and the study ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable, Sequence

import msgspec

from rti.run.directory import SUMMARY
from rti.run.files import read_json, write_atomic, write_json
from rti.run.lock import holder
from rti.study import records
from rti.study.plan import BASE, MAKE_TEACHER, Entry, Scale, chosen_rates
from rti.study.records import EVALUATION, Outcome, score

ROOT = Path(__file__).resolve().parents[2]
OUTCOME = "outcome.json"
MAKER, LARGER = "make-teacher", "larger-policy"     # the run that makes the teacher, and what it begins with
RUNS = "RUNS:"
LOOK_S = 2.0        # between looks at a run that somebody else has in hand


class StudyError(RuntimeError):
    """The study cannot go on: its text says why and what to do."""


class Runner:
    """`directory`: where the runs are. `said`: what hears a line about what happens."""

    def __init__(self, scale: Scale, entries: Sequence[Entry], directory: Path, config: str, words: Sequence[str] = (), *,
                 jobs: int = 1, said: Callable[[str], None] = print):
        self._scale, self.entries, self._config, self._words = scale, list(entries), config, tuple(words)
        self.directory, self._jobs, self._said = directory.resolve(), jobs, said
        self._children: set[asyncio.subprocess.Process] = set()
        self._stopping = False
        self._outcomes: dict[str, Outcome] = {}
        self.failed: list[str] = []

    # --- what there is -------------------------------------------------------------------------------------------
    @property
    def teacher(self) -> Path:
        """The teacher's policy, once it is made: that of the last step."""
        return self.directory / MAKER / "checkpoints" / f"step-{self._scale.teacher_steps:06d}" / "hf"

    def outcomes(self) -> list[Outcome]:
        """Of every complete entry that was run, in the order of the plan."""
        return [o for e in self.entries if (o := self._outcome(e)) is not None]

    def missing(self) -> list[str]:
        return [e.name for e in self.entries if not self.is_complete(e)]

    def scores(self) -> dict[str, dict[float, float]]:
        """algorithm -> rate -> what its search run reached, of those that are complete."""
        found: dict[str, dict[float, float]] = {}
        for e in self.entries:
            if e.part == "search" and (outcome := self._outcome(e)) is not None:
                found.setdefault(e.method, {})[float(e.words[-1].partition("=")[2])] = score(outcome)
        return found

    def rates(self) -> dict[str, float]:
        return chosen_rates(self._scale, self.scores())

    def is_complete(self, entry: Entry) -> bool:
        return self._outcome(entry) is not None

    def _outcome(self, entry: Entry) -> Outcome | None:
        """As it was read when the entry was completed, or now; None where it is not complete."""
        if entry.name in self._outcomes:
            return self._outcomes[entry.name]
        place = self.directory / entry.name
        if not (place / (SUMMARY if entry.trains else EVALUATION)).is_file():
            return None
        kept = place / OUTCOME
        if kept.is_file():
            outcome = msgspec.json.decode(kept.read_bytes(), type=Outcome, strict=False)
        else:
            words = read_json(self._beside(entry, "words.json"))
            outcome = records.read_outcome(place, name=entry.name, part=entry.part, method=entry.method, seed=entry.seed,
                                           words=words)
            if entry.trains:
                records.check_account(place, outcome)
            write_json(kept, msgspec.to_builtins(outcome, str_keys=True))
        self._outcomes[entry.name] = outcome
        return outcome

    def _beside(self, entry: Entry, ending: str) -> Path:
        """A file beside an entry's directory; a name may hold a point."""
        return self.directory / f"{entry.name}.{ending}"

    # --- running -------------------------------------------------------------------------------------------------
    def run(self) -> bool:
        """Run what is missing; whether all is complete then."""
        self.directory.mkdir(parents=True, exist_ok=True)
        asyncio.run(self._run())
        return not self.missing()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        try:
            pending = [e for e in self.entries if not self.is_complete(e)]
            for e in self.entries:
                self._refuse_other_words(e)
            working: dict[asyncio.Task[None], Entry] = {}
            while True:
                while not self._stopping and len(working) < self._jobs and (entry := self._next(pending)) is not None:
                    pending.remove(entry)
                    working[asyncio.create_task(self._do(entry))] = entry
                if not working:
                    return
                done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    working.pop(task)
                    task.result()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _next(self, pending: Sequence[Entry]) -> Entry | None:
        """The first entry that what it stands on is there for."""
        rates = self.rates()
        return next((e for e in pending if (not e.searched or e.searched in rates)
                     and (not e.needs_teacher or (self.directory / MAKER / SUMMARY).is_file())), None)

    def _refuse_other_words(self, entry: Entry) -> None:
        file = self._beside(entry, "words.json")
        if not file.is_file() or entry.searched and entry.searched not in self.rates():
            return
        before, now = read_json(file), self.words(entry)
        if before != now:
            gone, new = (" ".join(sorted(set(a) - set(b))) for a, b in ((before, now), (now, before)))
            raise StudyError(f"{self.directory / entry.name} was made with {gone}, and now it would be {new}: a study does not "
                             f"mix the two. Give the same scale, or another --runs, or remove that run and {file.name}")

    def words(self, entry: Entry) -> list[str]:
        """All words of an entry's command that its result depends on; RUNS stands for the directory of the runs."""
        teacher = f"{RUNS}{self.teacher.relative_to(self.directory)}"
        evaluated = str(entry.part not in ("search", MAKE_TEACHER)).lower()
        common = [*self._words, f"seed={entry.seed}", f"evaluation.samples={self._scale.samples}",
                  f"evaluation.tasks={self._scale.tasks}", "generators.threads=1"]
        if not entry.trains:
            return [*common, *([f"model.path={teacher}"] if entry.method != BASE else [])]
        taught = [f"teacher.path={teacher}", "teacher.generators.threads=1"] if entry.needs_teacher else []
        larger = [f"model.path={RUNS}{LARGER}"] if entry.makes_teacher else []
        rate = [f"learner.lr={self.rates()[entry.searched]:g}"] if entry.searched else []
        return [*common, "learner.threads=1", f"steps={entry.steps}", "evaluation.before=false",
                f"evaluation.after={evaluated}", *taught, *larger, *entry.words, *rate]

    def _command(self, entry: Entry) -> list[str]:
        place = self.directory / entry.name
        script = ROOT / "launch" / ("rti.py" if entry.trains else "eval.py")
        if not script.is_file():
            raise StudyError(f"{script} is not there: a study needs the checkout of RTI, not an installed copy")
        records_of = ["records.trajectories=-1", "records.tensorboard=false", "records.report=false", "checkpoint.every=4",
                      "checkpoint.keep=1"]
        words = [word.replace(RUNS, f"{self.directory}/") for word in self.words(entry)]
        return [sys.executable, str(script), "--config", self._config, *words, f"name={entry.name}", f"run_dir={place}",
                *(records_of if entry.trains else [])]

    async def _do(self, entry: Entry) -> None:
        """One entry from its start to its outcome; a failure is noted and the others go on."""
        place = self.directory / entry.name
        await self._wait_for_others(place)
        if self._stopping or self.is_complete(entry):
            return
        write_json(self._beside(entry, "words.json"), self.words(entry))
        log, began = self._beside(entry, "log"), time.monotonic()
        self._said(f"{entry.name}: begins")
        if entry.makes_teacher and not (self.directory / LARGER / "config.json").is_file():
            await self._process([sys.executable, "-m", "rti.lab.grow", "--out", str(self.directory / LARGER)], log)
        code, out = await self._process(self._command(entry), log)
        if code == 0 and not self._stopping:
            self._keep(entry, out)
        if code == 0 and self.is_complete(entry):
            self._said(f"{entry.name}: complete, {time.monotonic() - began:.0f} s{self._told(entry)}")
        elif self._stopping:
            self._said(f"{entry.name}: stopped")
        else:
            self.failed.append(entry.name)
            self._said(f"{entry.name}: FAILED with exit code {code}; see {log}. The same command tries it again")

    async def _wait_for_others(self, place: Path) -> None:
        """A run that a killed study left behind ends by itself."""
        if who := holder(place):
            self._said(f"{place.name}: {who} has it in hand; waiting for its end")
        while holder(place) and not self._stopping:
            await asyncio.sleep(LOOK_S)

    async def _process(self, command: Sequence[str], log: Path) -> tuple[int, bytes]:
        """(exit code, standard output) of a process that logs its standard error to a file."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])}
        with log.open("ab") as errors:
            child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=errors,
                                                         env=environment, start_new_session=True)
            self._children.add(child)
            try:
                out, _ = await child.communicate()
            finally:
                self._children.discard(child)
            errors.write(out)
        return child.returncode, out

    def _keep(self, entry: Entry, out: bytes) -> None:
        """What a process that ended well does not put into place itself."""
        if not entry.trains:
            text = out.strip().splitlines()[-1]
            msgspec.json.decode(text)
            write_atomic(self.directory / entry.name / EVALUATION, text + b"\n")

    def _told(self, entry: Entry) -> str:
        outcome = self._outcome(entry)
        if outcome is None or entry.makes_teacher:
            return ""
        if entry.part == "search":
            return f", score {score(outcome):.3f}"
        return f", p@1 {100 * sum(outcome.passed.values()) / (outcome.samples * len(outcome.passed)):.1f} %"

    def _stop(self, number: int) -> None:
        """Once; launch/rti.py takes a second signal for the wish to end at once."""
        if self._stopping:
            return
        self._stopping = True
        self._said(f"{signal.Signals(number).name}: the runs save a checkpoint; the same command goes on")
        for child in self._children:
            child.send_signal(signal.SIGTERM)
