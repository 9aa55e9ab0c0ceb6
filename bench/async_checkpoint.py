#!/usr/bin/env python3
"""Measures the cost of a checkpoint: written by the training loop, or in the background (checkpoint.async).

  async_checkpoint.py [--caravan build/release/bin/caravan] [--ranks 2] [--rounds 3] [--set key=value]...

Prints, as medians over the saves of all rounds: `held up`, the time for which a save holds the loop up (save_ms of
train.log), and `in all`, the time that a run with saves takes more than one without, for each save. The threads that write
share the cores with training, so that the second is the price where no core is idle. GPT-2 of 124 M parameters on a
small context; the first save of a run, which allocates the copy, is left out of the first number.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine

STEPS = 16
EVERY = 4


def run(arguments, is_async, saves):
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        settings = ["model.layers=12", "model.width=768", "model.heads=12", "model.context=64", "model.vocabulary=50257",
                    'data.tokenizer="bytes"', f"train.steps={STEPS + 1}", f"train.global_batch={2 * arguments.ranks}",
                    "train.micro_batch=0", "train.eval_every=0", f"checkpoint.every={EVERY if saves else 0}",
                    "checkpoint.keep=1", "sample.tokens=0", "train.eval_batches=1", f"checkpoint.async={str(is_async).lower()}",
                    f'checkpoint.dir="{folder}/run"', *arguments.set]
        command = [arguments.caravan, "train", "--ranks", str(arguments.ranks), "--stop-after", str(STEPS)]
        for setting in settings:
            command += ["--set", setting]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.monotonic() - begin
        if done.returncode != 0:
            sys.exit(f"async_checkpoint: {done.stderr}")
        lines = [json.loads(line) for line in pathlib.Path(folder, "run/train.log").read_text().splitlines()]
        return seconds, [line.get("save_ms", 0) for line in lines if "step_ms" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default="build/release/bin/caravan")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where checkpoints go; default: the temporary folder")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    print(f"{machine.processor_class()}, {arguments.ranks} ranks, {STEPS // EVERY} saves a run")
    held = {True: [], False: []}
    total = {True: [], False: []}
    for _ in range(arguments.rounds):
        without, _ = run(arguments, False, saves=False)
        for is_async in (False, True):
            seconds, saves = run(arguments, is_async, saves=True)
            # A run without periodic saves has one at the end.
            total[is_async].append((seconds - without) * 1e3 / (STEPS // EVERY - 1))
            # The log line after a step has the time of its save; no line has that of the last one.
            held[is_async] += [sum(saves[at:at + EVERY]) for at in range(EVERY, STEPS, EVERY)][1:]
    for name, values in (("held up", held), ("in all", total)):
        sync, background = (statistics.median(values[key]) for key in (False, True))
        print(f"{name}: {sync:.0f} ms ({min(values[False]):.0f}..{max(values[False]):.0f}), in the background "
              f"{background:.0f} ms ({min(values[True]):.0f}..{max(values[True]):.0f}): {background / sync:.3f}")


if __name__ == "__main__":
    main()
