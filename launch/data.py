"""Builds and checks task sets: `python launch/data.py navigation --help`, `python launch/data.py tau2 --help`.

Thin: parses, and calls `run` of rti.envs.navigation.build or rti.envs.tau2.tasks.build."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":     # beside launch/rti.py, `import rti` would find that file instead of the package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rti.engines.base import EngineError
from rti.engines.endpoint import EndpointRefused
from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.envs.navigation import build
from rti.envs.navigation.taskset import TaskFileError
from rti.envs.navigation.tasks import DEFAULT_SEED, SIZES
from rti.envs.tau2.tasks import build as tau2
from rti.envs.tau2.tasks.files import TaskFileError as Tau2TaskFileError

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
none as a task of the base split does. Needs the extra tau2. Exit code 1: a check failed; 2: wrong usage, or no such data."""


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of tasks")
    return int(text)


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
    args = parser.parse_args(argv)
    if args.command == "tau2":
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


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        return (tau2 if args.command == "tau2" else build).run(args)
    except (build.CheckFailed, TaskFileError, tau2.CheckFailed, Tau2TaskFileError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except (EngineError, EndpointRefused, EnvironmentFault, FatalEnvironmentError, OSError, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
