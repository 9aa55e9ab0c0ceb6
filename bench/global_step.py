#!/usr/bin/env python3
"""Times a step of GPT-2 made of torch::nn layers under tensor parallelism on 2 ranks with one thread each, fp32: by global tensors,
beside the same layers with collectives by hand (bench/global_step.cpp, in turns inside one run), and beside PyTorch's DTensor on gloo.

  global_step.py --python VENV/bin/python [--build build/release] [--sizes tiny,small] [--optimizers adamw] [--ways hand,global]
                 [--repeat 3] [--without-peer]

Our runs and those of the peer alternate --repeat times. Needs a build with -DCARAVAN_BENCH=ON: global_step and caravan_app. `cpu` is
the processor time of rank 0, which says more than ms where other programs run.
"""
import argparse
import json
import os
import pathlib
import statistics

import machine
import one_rank

STEPS = {"floor": 60, "tiny": 12, "small": 4}
LIMITS = {("hand", "tiny"): 1.05, ("hand", "small"): 1.05, ("DTensor", "tiny"): 0.65, ("DTensor", "small"): 0.9}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(one_rank.ROOT / "build/release"))
    parser.add_argument("--python", help="has torch")
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--optimizers", default="adamw")
    parser.add_argument("--ways", default="hand,global")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--without-peer", action="store_true")
    arguments = parser.parse_args()
    if not arguments.python and not arguments.without_peer:
        parser.error("give --python or --without-peer")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    print(machine.describe(environment), f"load {os.getloadavg()[0]:.1f}", flush=True)

    def ours(size, optimizer):
        build = pathlib.Path(arguments.build)
        command = [build / "bin/caravan", "run", build / "bin/global_step", size, optimizer, STEPS[size], arguments.ways,
                   "--ranks", arguments.ranks]
        return json.loads(one_rank.run(list(map(str, command)), environment).strip().splitlines()[-1])

    def peer(size, optimizer):
        command = [arguments.python, "-m", "torch.distributed.run", "--nproc-per-node", arguments.ranks,
                   one_rank.ROOT / "bench/peers/dtensor_step.py", *one_rank.SIZES[size][:6], optimizer, STEPS[size]]
        return json.loads(one_rank.run(list(map(str, command)), environment).strip().splitlines()[-1])

    ways = arguments.ways.split(",")
    for size in arguments.sizes.split(","):
        for optimizer in arguments.optimizers.split(","):
            runs = [(ours(size, optimizer), None if arguments.without_peer else peer(size, optimizer))
                    for _ in range(arguments.repeat)]
            for way in ways:
                report(size, optimizer, way, ways, runs)


def report(size, optimizer, way, ways, runs):
    def to_hand(key):
        return one_rank.text_of([mine / hand for run, _ in runs for mine, hand in zip(run[key][way], run[key][ways[0]])])

    def limit(other):
        return f" (limit {LIMITS[other, size]})" if way != "hand" and (other, size) in LIMITS else ""

    all_ms = [each for run, _ in runs for each in run["ms"][way]]
    line = f"{size:5} {optimizer:5} {way:11} {one_rank.text_of(all_ms)} ms"
    if way != ways[0]:
        line += f"  to {ways[0]} {to_hand('ms')}{limit(ways[0])}, cpu {to_hand('cpu_ms')}"
    if runs[0][1]:
        def to_peer(key):
            return one_rank.text_of([statistics.median(run[key][way]) / statistics.median(peer[key]) for run, peer in runs])

        line += f"  to DTensor {to_peer('ms')}{limit('DTensor')}, cpu {to_peer('cpu_ms')}"
        if way == ways[-1]:
            line += f", which takes {one_rank.text_of([each for _, peer in runs for each in peer['ms']])} ms"
    print(line, flush=True)


if __name__ == "__main__":
    main()
