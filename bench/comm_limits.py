#!/usr/bin/env python3
"""Times Caravan's collectives with more ranks than cores, where ranks must sleep and the kernel's wake-ups set the limit.

  comm_limits.py [--ranks 8] [--calls 10000] [--runs 5] [--bar 60]

Starts --ranks ranks, each pinned to a core (ranks share cores), and times --calls all_reduces of 8 bytes and as many barriers
back to back. Prints the mean time of a call on the slowest rank in microseconds: median and spread over the runs. Exits
with 1 if a median exceeds --bar (60 us, for 8 ranks on 2 cores). Needs comm_block, as comm_peers.py does.
"""
import argparse
import os
import pathlib
import statistics
import sys

import machine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import blocks  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bar", type=float, default=60, help="microseconds a call")
    parser.add_argument("--program", type=pathlib.Path, default=blocks.ROOT / "build/release/bin/comm_block")
    arguments = parser.parse_args()
    if min(arguments.calls, arguments.runs) < 1 or arguments.ranks < 2:
        sys.exit("--calls, --runs: must be at least 1; --ranks: must be at least 2")
    if not arguments.program.exists():
        sys.exit(f"{arguments.program} not found: build it with cmake --preset release -DCARAVAN_BENCH=ON; ninja -C build/release comm_block")
    ours = blocks.Ours(arguments.program, arguments.ranks)
    held = True
    print(machine.describe())
    print(f"{arguments.ranks} ranks on {len(os.sched_getaffinity(0))} cores, {arguments.calls} calls a run")
    for name, what in (("all_reduce fp32 8 B", "all_reduce fp32 8 in arena"), ("barrier", "barrier fp32 0 out arena")):
        ours.check(what)
        means = sorted(ours.block(what, 100, 1, arguments.calls)[0] * 1e6 for _ in range(arguments.runs))
        median = statistics.median(means)
        held = held and median <= arguments.bar
        print(f"{name:<22}mean of a call {median:.2f} us ({means[0]:.2f}..{means[-1]:.2f} over {len(means)} runs), "
              f"bar {arguments.bar:g} us: {'held' if median <= arguments.bar else 'NOT held'}, {machine.processor_class()}")
    ours.close()
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
