#!/usr/bin/env python3
"""Peak resident memory of each rank of a training run, libraries included, for the sizes of one_rank.py.

  peak_memory.py [--caravan build/release/bin/caravan] [--ranks 2] [--sizes tiny,gpt2] [--dtypes fp32,bf16]
                 [--set key=value]...

Reads VmHWM of the processes of the ranks while they run. Memory that ranks share counts for each that has touched it.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import machine
import one_rank


def peak_of(process):
    """MiB; 0 if the process has ended."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]) / 1024 if "VmHWM" in fields else 0


def children_of(process):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def measure(arguments, size, dtype):
    layers, width, heads, context, vocabulary, batch, steps = one_rank.SIZES[size]
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"model.layers={layers}", f"model.width={width}", f"model.heads={heads}", f"model.context={context}",
                    f"model.vocabulary={vocabulary}", 'data.tokenizer="bytes"', f"train.steps={steps + 2}",
                    f"train.global_batch={batch * arguments.ranks}", "train.eval_every=0", "checkpoint.every=0",
                    "sample.tokens=0", "train.eval_batches=1", "comm.threads_per_rank=1",
                    f'precision.compute="{dtype}"', f'checkpoint.dir="{folder}/run"', *arguments.set]
        command = [arguments.caravan, "train", "--ranks", str(arguments.ranks)]
        for setting in settings:
            command += ["--set", setting]
        peaks = {}
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None:
            for child in children_of(run.pid) if arguments.ranks > 1 else [run.pid]:  # a single rank is the launcher itself
                peaks[child] = max(peaks.get(child, 0), peak_of(child))
            time.sleep(0.02)
        if run.returncode != 0:
            sys.exit(f"peak_memory: {' '.join(command)} failed")
        return sorted(peaks.values())[-arguments.ranks:]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default=str(root / "build/release/bin/caravan"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="tiny,gpt2")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    os.chdir(root)
    for size in arguments.sizes.split(","):
        for dtype in arguments.dtypes.split(","):
            peaks = measure(arguments, size, dtype)
            print(f"{size:6} {dtype:5} " + "  ".join(f"{peak:7.0f} MiB" for peak in peaks) +
                  f"  {machine.processor_class()}", flush=True)


if __name__ == "__main__":
    main()
