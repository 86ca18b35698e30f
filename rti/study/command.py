"""What launch/study.py does: plan, run what is missing, read, write the folder; or only list, write, or check."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Sequence

from safetensors import safe_open

from rti.chat import load_chat_format
from rti.config.load import load
from rti.config.schema import Config
from rti.envs import load_task_set
from rti.pretrained import resolve
from rti.report.tokens import TokenTexts
from rti.run.files import write_atomic
from rti.run.lock import DirectoryLock
from rti.study import claims, page, plots, records
from rti.study.plan import Scale, Shape, plan
from rti.study.records import Study
from rti.study.runner import Runner

STUDY, PAGE = "study.json", "README.md"


@dataclass(frozen=True)
class Order:
    """A study as it was asked for. `words`: configuration keys that every run gets; `steps` and rates are the plan's."""

    scale: Scale
    config: str = "lab.yaml"
    words: tuple[str, ...] = ()
    runs: Path = Path("runs/study")
    out: Path = Path("docs/study")
    jobs: int = 1


def conduct(order: Order) -> int:
    """Run what is missing, write the folder; 0 where the study is complete."""
    config = _config(order)
    order.runs.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock(order.runs)
    try:
        runner = make_runner(order, config)
        complete = runner.run()
        _write(order, config, runner)
    finally:
        lock.release()
    if not complete:
        print(f"{len(runner.missing())} entries are not complete; the same command goes on")
    return 0 if complete else 1


def report(order: Order) -> int:
    """Write the folder anew from the runs that are complete."""
    config = _config(order)
    _write(order, config, make_runner(order, config))
    return 0


def show(order: Order) -> int:
    """Print the plan and what of it is complete."""
    runner = make_runner(order, _config(order))
    missing = set(runner.missing())
    for entry in runner.entries:
        steps = f"{entry.steps} steps" if entry.steps else ""
        print(f"{'' if entry.name in missing else 'complete':<10}{entry.part:<14}{entry.name:<24}{steps:<10}"
              f"{' '.join(entry.words)}")
    return 0


def check(out: Path) -> int:
    """Print the claims' verdicts; 0 where the study is complete, whatever they are."""
    study = records.read(out / STUDY)
    verdicts = claims.check(study)
    print(claims.listed(verdicts))
    false = [v.key for v in verdicts if v.holds is False]
    print(f"\n{sum(v.holds is True for v in verdicts)} true, {len(false)} false{': ' + ', '.join(false) if false else ''}")
    if study.missing:
        print(f"The study is not complete: {', '.join(study.missing)}")
    return 1 if study.missing else 0


def _words(order: Order) -> tuple[str, ...]:
    return *order.scale.words, *order.words


def _config(order: Order) -> Config:
    return load(order.config, _words(order))


def make_runner(order: Order, config: Config) -> Runner:
    shape = Shape(config.rollout.group_size, config.rollout.groups_per_step)
    return Runner(order.scale, plan(order.scale, shape), order.runs, order.config, _words(order), jobs=order.jobs,
                  said=lambda line: print(line, flush=True))


def _write(order: Order, config: Config, runner: Runner) -> None:
    study = gather(order, config, runner)
    order.out.mkdir(parents=True, exist_ok=True)
    records.write(order.out / STUDY, study)
    made = plots.draw_all(study, order.out, _pieces(config, runner))
    write_atomic(order.out / PAGE, page.text(study, made).encode())
    print(f"written: {order.out}", flush=True)


def gather(order: Order, config: Config, runner: Runner) -> Study:
    """study.json out of the complete entries."""
    tasks = load_task_set(config.env, config.seed).test[:order.scale.tasks or None]
    policies = {"policy": Path(resolve(config.model.path)), "teacher": runner.teacher}
    return Study(
        scale=asdict(order.scale), rollouts_per_step=[config.rollout.group_size, config.rollout.groups_per_step],
        classes={task.id: task.cls for task in tasks}, rates=runner.rates(),
        scores={a: {str(r): s for r, s in of.items()} for a, of in runner.scores().items()},
        outcomes=runner.outcomes(), missing=runner.missing(),
        parameters={name: parameters(path) for name, path in policies.items() if path.is_dir()})


def parameters(policy: Path) -> int:
    """How many numbers the weights of a Hugging Face directory hold."""
    count = 0
    for file in sorted(policy.glob("*.safetensors")):
        with safe_open(file, framework="np") as weights:
            for key in weights.keys():
                count += math.prod(weights.get_slice(key).get_shape())
    return count


def _pieces(config: Config, runner: Runner) -> Sequence[plots.Piece]:
    """The tokens of a rescued rollout out of RTI's first run that has one."""
    texts = TokenTexts(load_chat_format(config.model.chat, config.model.path).decode)
    for outcome in runner.outcomes():
        if outcome.part == "methods" and outcome.method == "rti":
            if pieces := plots.rescued_pieces(runner.directory / outcome.name, texts):
                return pieces
    return []
