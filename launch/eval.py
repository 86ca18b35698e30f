"""Evaluate: python launch/eval.py --config lab.yaml [--checkpoint PATH] [--samples 4] [--profile] [key=value ...]"""

import argparse
import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])      # see launch/rti.py


def main() -> int:
    parser = argparse.ArgumentParser(prog="launch/eval.py", description="pass@k and pass^k of a policy on the test tasks.",
                                     epilog="The table goes to standard error, one JSON object to standard output.")
    parser.add_argument("--config", required=True, metavar="NAME.yaml", help="a path, or a name in configs/")
    parser.add_argument("--checkpoint", default="", metavar="PATH",
                        help="a Hugging Face directory, a checkpoint, or a run's directory; default: the configured model")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="samples a task; default: evaluation.samples")
    parser.add_argument("--profile", action="store_true",
                        help="also write how often each task was passed: <run_dir>-evaluation/profile.json")
    parser.add_argument("words", nargs="*", metavar="key=value", help="configuration keys")
    args = parser.parse_intermixed_args()

    from rti.actors.launching import prepare
    from rti.commands import guarded
    from rti.config.load import load
    from rti.evaluation import table

    def work() -> int:
        config = load(args.config, args.words)
        prepare(config.ray)     # before Ray is imported
        from rti.actors.evaluation import evaluate
        result = evaluate(config, args.checkpoint, args.samples, args.profile)
        print(table({"evaluation": result}), file=sys.stderr)
        print(json.dumps(result))
        return 0

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
