"""Train: python launch/rti.py --config lab.yaml [algo=grpo] [key=value ...] [--resume auto|never|PATH]"""

import argparse
import sys
from pathlib import Path

# This file bears the package's name: were its own directory on the path, `import rti` would find it instead of the package.
sys.path[0] = str(Path(__file__).resolve().parents[1])

HELP_RESUME = """auto (default): go on with the run in the run directory from its newest whole checkpoint, or begin one where
there is none; a changed configuration is refused unless the key is changeable (docs/configuration.md). never: begin anew; an
earlier run in the directory is moved aside to NAME.1, NAME.2, ... PATH: go on from this checkpoint of the run (later steps
are dropped from its records), or with the run of this directory."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="launch/rti.py", description="Train a policy with Rollout-Time Intervention.",
                                     epilog="Set RTI_DEBUG=1 to see stack traces and what the actors print.")
    parser.add_argument("--config", required=True, metavar="NAME.yaml", help="a path, or a name in configs/")
    parser.add_argument("--resume", default="auto", metavar="auto|never|PATH", help=HELP_RESUME)
    parser.add_argument("--dry-run", action="store_true",
                        help="check the configuration, plan which actor goes on which GPU (section hardware), and exit")
    parser.add_argument("--print-config", action="store_true",
                        help="print the configuration as it would be used, with the place that each value comes from, and exit")
    parser.add_argument("words", nargs="*", metavar="key=value", help="configuration keys, e.g. algo=grpo learner.lr=1e-4")
    args = parser.parse_intermixed_args()

    from rti.actors.launching import dry_run, prepare
    from rti.commands import guarded
    from rti.config.load import dump, load_with_origins

    def work() -> int:
        config, origins = load_with_origins(args.config, args.words)
        if args.print_config:
            print(dump(config, origins), end="")
            return 0
        if args.dry_run:
            print(dry_run(config))
            return 0
        prepare(config.ray)     # before Ray is imported
        from rti.actors.training import train
        return train(config, args.resume)

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
