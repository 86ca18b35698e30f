"""Builds and checks task sets: `python launch/data.py navigation --help`, and so for tau2 and claw-eval.

Thin: parses, and calls `run` of rti.envs.navigation.build, rti.envs.tau2.tasks.build or rti.envs.claw_eval.commands."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path

if __name__ == "__main__":     # beside launch/rti.py, `import rti` would find that file instead of the package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rti.commands import guarded
from rti.engines.base import EngineError
from rti.engines.endpoint import EndpointRefused
from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.envs.claw_eval import commands as claw_eval
from rti.envs.navigation import build
from rti.envs.navigation.tasks import DEFAULT_SEED, SIZES
from rti.envs.task_files import CheckFailed, TaskFileError
from rti.envs.tau2.tasks import build as tau2

EPILOG = """\
examples:
  python launch/data.py navigation                                 the lab set: 600 train and 150 test three-stop trips
  python launch/data.py navigation --split full --out tasks/full   3 to 9 waypoints between start and end
  python launch/data.py navigation --split full --out tasks/full --check
  python launch/data.py navigation --split full --endpoint http://127.0.0.1:8000/v1 --model NAME --key-env LLM_KEY

Every task is checked before anything is written: its reference solution must score 1 in the environment over HTTP, its query
must name its stops, and no name may be in train and in test. Exit code 1: a check failed; 2: wrong usage or a dead endpoint."""

TAU2_EPILOG = """\
examples:
  python launch/data.py tau2 --domain retail                       563 tasks into build/tau2-retail.jsonl
  python launch/data.py tau2 --domain airline --out air.jsonl --seed 7 --count 100
  python launch/data.py tau2 --domain telecom                      checks the 2,171 tasks that telecom trains on
  python launch/data.py tau2 --domain retail --check FILE          checks a file, or the folder of AReaL-tau2-data

The official evaluator judges every task: its reference must score 1, doing nothing 0; no two change the database alike, and
none as a task of the base split does. Takes up to three minutes of one core. Needs the extra tau2. Exit code 1: a check failed,
or a task file cannot be read; 2: wrong usage, or no such data."""

CLAW_EVAL_EPILOG = """\
examples:
  python launch/data.py claw-eval synthesize --families all --variants 8 --out build/claw-eval
  python launch/data.py claw-eval select --profile runs/run-evaluation/profile.json --max-pass 1/3
  python launch/data.py claw-eval list --home PATH                 the official tasks, and why some cannot run here

synthesize checks every task before it writes any: its reference scores at least 0.99, it agrees with its own grader, doing
nothing or everything does not pass, and no two are alike. select keeps the tasks that a policy seldom passes, from what
launch/eval.py --profile measured. Exit code 1: a check failed or nothing is left; 2: wrong usage, or no such checkout."""


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of tasks")
    return int(text)


def share(text: str) -> Fraction:
    try:
        found = Fraction(text)
    except (ValueError, ZeroDivisionError):
        found = Fraction(-1)
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no share; mend: give one from 0 to 1, such as 1/3 or 0.25")
    return found


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build and check task sets.")
    commands = parser.add_subparsers(dest="command", required=True)
    nav = commands.add_parser("navigation", help="trips over the shipped gazetteer", epilog=EPILOG,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    nav.add_argument("--split", choices=("lab", "full"), default="lab", help="which set (default: lab)")
    nav.add_argument("--out", type=Path, help="directory of the set (default: build/navigation-SPLIT)")
    nav.add_argument("--seed", type=int, default=DEFAULT_SEED,
                     help=f"seed of the draw (default: {DEFAULT_SEED}, which gives the sets that go by the names lab and full)")
    nav.add_argument("--train", type=count, default=SIZES["train"], help="train tasks (default: %(default)s)")
    nav.add_argument("--test", type=count, default=SIZES["test"], help="test tasks (default: %(default)s)")
    nav.add_argument("--check", action="store_true", help="build nothing; check the set that is in --out")
    nav.add_argument("--endpoint", default="", metavar="URL",
                     help="OpenAI-compatible service that writes the queries of --split full")
    nav.add_argument("--model", default="", metavar="NAME", help="its model")
    nav.add_argument("--key-env", default="", metavar="VAR", help="environment variable that holds its key")
    _tau2(commands)
    _claw_eval(commands)
    args = parser.parse_args(argv)
    if args.command != "navigation":
        return args
    if bool(args.endpoint) != bool(args.model):
        nav.error("--endpoint and --model go together")
    if args.endpoint and args.split == "lab":
        nav.error("the lab set has template queries only; mend: leave --endpoint out or add --split full")
    return args


def _tau2(commands: argparse._SubParsersAction) -> None:
    made = commands.add_parser("tau2", help="training tasks of τ²-Bench over its databases", epilog=TAU2_EPILOG,
                               formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--domain", choices=("retail", "airline", "telecom"), required=True)
    made.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: build/tau2-DOMAIN.jsonl)")
    made.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0, the set that training uses by itself)")
    made.add_argument("--count", type=count, default=0, help="tasks (default: 563 for retail, 271 for airline)")
    made.add_argument("--check", nargs="?", const="auto", default="", metavar="FILE",
                      help="write nothing; check FILE, or what training uses by itself")
    made.add_argument("--data-dir", default="", metavar="DIR", help="official data to use (default: the installed package's)")


def _claw_eval(commands: argparse._SubParsersAction) -> None:
    made = commands.add_parser("claw-eval", help="office tasks of the own families; the official ones", epilog=CLAW_EVAL_EPILOG,
                               formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = made.add_subparsers(dest="action", required=True)
    synthesize = actions.add_parser("synthesize", help="make tasks of the own families, and check each")
    synthesize.add_argument("--families", default="all", metavar="NAMES",
                            help="all, or names with commas between (default: all)")
    synthesize.add_argument("--variants", type=count, default=8,
                            help="tasks of each family in train, and as many others in test (default: 8)")
    synthesize.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0, the set used by itself)")
    synthesize.add_argument("--out", type=Path, default=claw_eval.OUT, metavar="DIR", help="directory of the set (%(default)s)")
    listed = actions.add_parser("list", help="the official text-only tasks, and what keeps some from running here")
    listed.add_argument("--home", default="", metavar="DIR", help="the official checkout (default: CLAW_EVAL_HOME)")
    select = actions.add_parser("select", help="the tasks of a set that a policy seldom passes")
    select.add_argument("--profile", type=Path, required=True, metavar="FILE", help="what launch/eval.py --profile wrote")
    select.add_argument("--max-pass", type=share, default=Fraction(1, 3), metavar="SHARE",
                        help="most of a task's rollouts that may have passed (default: %(default)s)")
    select.add_argument("--tasks", default="families", metavar="DIR",
                        help="the set that was profiled, as env.claw_eval.tasks names it (default: families)")
    select.add_argument("--out", type=Path, default=claw_eval.HARD, metavar="DIR",
                        help="directory of the selection (%(default)s)")


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        return {"navigation": build, "tau2": tau2, "claw-eval": claw_eval}[args.command].run(args)
    except (CheckFailed, TaskFileError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except (EngineError, EndpointRefused, EnvironmentFault, FatalEnvironmentError, OSError, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded(main))
