"""Builds and checks task sets: `python launch/data.py navigation --help`. Thin: parses, calls rti.envs.navigation.build."""

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

EPILOG = """\
examples:
  python launch/data.py navigation                                 the lab set: 600 train and 150 test three-stop trips
  python launch/data.py navigation --split full --out tasks/full   3 to 9 waypoints between start and end
  python launch/data.py navigation --split full --out tasks/full --check
  python launch/data.py navigation --split full --endpoint http://127.0.0.1:8000/v1 --model NAME --key-env LLM_KEY

Every task is checked before anything is written: its reference solution must score 1 in the environment over HTTP, its query
must name its stops, and no name may be in train and in test. Exit code 1: a check failed; 2: wrong usage or a dead endpoint."""


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
    args = parser.parse_args(argv)
    if bool(args.endpoint) != bool(args.model):
        nav.error("--endpoint and --model go together")
    if args.endpoint and args.split == "lab":
        nav.error("the lab set has template queries only; mend: leave --endpoint out or add --split full")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        return build.run(args)
    except (build.CheckFailed, TaskFileError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except (EngineError, EndpointRefused, EnvironmentFault, FatalEnvironmentError, OSError, ValueError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
