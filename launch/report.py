"""Report: python launch/report.py RUN_DIR [RUN_B ...] [--out PATH]"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])      # see launch/rti.py


def main() -> int:
    parser = argparse.ArgumentParser(prog="launch/report.py",
                                     description="Write a run, or several side by side, as one HTML page.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="a run's directory, e.g. runs/lab")
    parser.add_argument("--out", type=Path, metavar="PATH", help="default: report.html in the first run's directory")
    parser.add_argument("--megabytes", type=float, default=25.0, metavar="N",
                        help="stored trajectories in the page, the newest steps first (default: 25)")
    args = parser.parse_args()

    from rti.commands import guarded
    from rti.report.page import write

    def work() -> int:
        print(write(args.runs, args.out, megabytes=args.megabytes))
        return 0

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
