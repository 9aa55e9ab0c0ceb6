#!/usr/bin/env python3
"""Predicts published runs, and compares with what was published.

  published.py FILE.csv [--caravan build/release/bin/caravan]

Runs `caravan plan --published FILE.csv`. Prints its predictions (target_id, step_s, mem_gb, fits), then, where the file
has answers in the columns step_s and mem_gb, the errors by source: median and ninth decile of the step time, beside
those of the constant fraction of the peak that fits the source best; of memory; and how well the predictions choose a
layout.
"""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--caravan", default=str(ROOT / "build/release/bin/caravan"))
    options = parser.parse_args()
    try:
        result = subprocess.run([options.caravan, "plan", "--published", options.file], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{options.caravan} cannot be run: {error.strerror}; build it, or name another with --caravan")
    print(result.stdout, end="")
    sys.stdout.flush()
    if result.returncode != 0:
        print(result.stderr, end="", file=sys.stderr)
        return result.returncode
    print(f"\n{result.stderr}" if result.stderr else "", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
