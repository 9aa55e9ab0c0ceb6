#!/usr/bin/env python3
"""Measures communication hooks, and reductions in 16 bits, on the default data: bytes that a rank sends in a step, and the
validation loss beside that of ddp.

  hooks.py [--caravan build/release/bin/caravan] [--ranks 2] [--steps 400] [--hooks none,bf16,fp16,powersgd,topk]
           [--set key=value]...
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import machine


def train(arguments, hook):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        key = "precision.reduce" if hook in ("bf16", "fp16") else "data_parallel.hook"
        settings = [f"{key}={hook}", f"train.steps={arguments.steps}", f"checkpoint.dir={run}",
                    "train.eval_every=0", "sample.tokens=0", "checkpoint.every=0", *arguments.set]
        command = [arguments.caravan, "train", "--ranks", str(arguments.ranks)]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"hooks: {hook} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
        return [json.loads(line) for line in (run / "train.log").read_text().splitlines()]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default=str(root / "build/release/bin/caravan"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hooks", default="none,bf16,fp16,powersgd,topk")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    os.chdir(root)
    print(f"{machine.processor_class()}, {arguments.ranks} ranks, {arguments.steps} steps")
    print(f"{'hook':10} {'bytes sent':>12} {'validation loss':>16} {'median step':>12}")
    for hook in arguments.hooks.split(","):
        log = train(arguments, hook)
        steps = sorted(line["step_ms"] for line in log[2:])
        print(f"{hook:10} {log[-2]['bytes_sent']:12} {log[-1]['val_loss']:16.4f} {steps[len(steps) // 2]:9.1f} ms",
              flush=True)


if __name__ == "__main__":
    main()
