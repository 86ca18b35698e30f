"""The lab study: python launch/study.py [--scale hour|day] [--jobs N] [field=value ...]; --check, --report, --list"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])      # see launch/rti.py

EPILOG = """Fields of a scale, e.g. `budget=2304 seeds=0,1,2,3,4 parts=methods,ablations`: docs/lab.md."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="launch/study.py", epilog=EPILOG, description="Every method on the lab's task under "
                                     "one budget: runs what is missing, and writes tables, plots and verdicts.")
    parser.add_argument("--scale", default="hour", metavar="hour|day", help="how large (default: hour; docs/lab.md)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1; a run keeps a core busy)")
    parser.add_argument("--config", default="lab.yaml", metavar="NAME.yaml", help="what is trained on what (default lab.yaml)")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="a configuration key of every run")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), metavar="PATH", help="default runs/study")
    parser.add_argument("--out", type=Path, default=Path("docs/study"), metavar="PATH", help="default docs/study")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only print which claims hold; exit code 0 where it is complete")
    what.add_argument("--report", action="store_true", help="only write the folder anew from the runs that are there")
    what.add_argument("--list", action="store_true", help="only print the plan, and what of it is complete")
    parser.add_argument("fields", nargs="*", metavar="field=value", help="fields of the scale")
    args = parser.parse_intermixed_args()

    from rti.commands import guarded

    def work() -> int:
        from rti.study import command
        from rti.study.plan import scale_of
        if args.check:
            return command.check(args.out)
        order = command.Order(scale=scale_of(args.scale, args.fields), config=args.config, words=tuple(args.set),
                              runs=args.runs, out=args.out, jobs=args.jobs)
        return (command.report if args.report else command.show if args.list else command.conduct)(order)

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
