#!/usr/bin/env python3
"""AdamW on the host beside DeepSpeed's CPU Adam and PyTorch's fused AdamW, and beside the bandwidth of the memory.

  optimizer_step.py [--program build/release/bin/optimizer_step] [--python PYTHON] [--millions 100] [--threads 1]
                    [--rounds 7]
  optimizer_step.py --kinds [--width 512] [--layers 4] [--threads 1] [--rounds 7]

PYTHON has torch, and deepspeed if that is to be compared. The programs step in turn, in one run; each is idle while
another steps. Bytes of a step: gradients, values and two moments are read, all but the gradients written: 28 a
parameter in fp32.

With --kinds: AdamW, Adafactor and Muon of this library, on parameters shaped like those of a recipe's llama, by one
rank, and by two that shard them. The processor's load before it is printed: other programs slow it down.
"""
import argparse
import os
import statistics
import subprocess
import sys

import machine

PEER = """
import sys, time, torch
kind, count, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
weight = torch.nn.Parameter(torch.randn(count // 1024, 1024) * 0.02)
weight.grad = torch.full_like(weight, 1e-3)
if kind == "deepspeed":
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([weight], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, adamw_mode=True)
else:
    optimizer = torch.optim.AdamW([weight], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
optimizer.step()
print("ready", flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    optimizer.step()
    print(f"{time.perf_counter() - begin:.6f}", flush=True)
"""


class Program:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        self.process.wait()
        sys.exit(f"optimizer_step: {' '.join(command[:2])} .. ended before its first step")

    def time(self, line="step"):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def time_kinds(arguments):
    print(f"{machine.describe()}, {arguments.threads} threads a rank, width {arguments.width}, {arguments.layers} "
          f"layers, median of {arguments.rounds} rounds, load before it {os.getloadavg()[0]:.1f}")
    for ranks in (1, 2):
        print("1 rank" if ranks == 1 else f"{ranks} ranks, each with a shard (zero3)", flush=True)
        words = [ranks, arguments.threads, arguments.width, arguments.layers, arguments.rounds]
        subprocess.run([arguments.program, "--kinds", *map(str, words)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/optimizer_step")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", nargs="*", default=["torch", "deepspeed"])
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.kinds:
        time_kinds(arguments)
        return
    count = arguments.millions * 1_000_000 // 1024 * 1024
    ours = Program([arguments.program, str(arguments.millions), str(arguments.threads)])
    peers = {kind: Program([arguments.python, "-c", PEER, kind, str(count), str(arguments.threads)])
             for kind in arguments.peers}
    calls = {"memory": lambda: ours.time("copy"), "caravan": ours.time, **{k: p.time for k, p in peers.items()}}
    times = {name: [] for name in calls}
    for name, call in calls.items():  # the first touches its pages
        call()
    for _ in range(arguments.rounds):
        for name, call in calls.items():
            times[name].append(call())
    print(f"{machine.describe()}, {arguments.threads} threads, {count / 1e6:.0f} M parameters, median of "
          f"{arguments.rounds} rounds")
    best = statistics.median(times["memory"])
    for name, all_times in times.items():
        middle = statistics.median(all_times)
        print(f"{name:10} {middle:.3f} s ({min(all_times):.3f} to {max(all_times):.3f}), "
              f"{28 * count / middle / 1e9:.1f} GB/s, {best / middle:.2f} of the memory's")


if __name__ == "__main__":
    main()
