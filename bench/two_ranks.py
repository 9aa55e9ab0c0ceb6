#!/usr/bin/env python3
"""Measures the cost of data parallelism: a step of 2 ranks against 2 independent runs of one rank at the same time on the same cores.

  two_ranks.py [--caravan build/release/bin/caravan] [--against OTHER] [--sizes tiny,small] [--dtypes fp32,bf16] [--repeat 5]

The two alternate --repeat times; each run counts with the median of its steps, the pair of runs with the slower one.
--against OTHER: instead, one rank of this program against one rank of another build of it, as before and after a change.
"""
import argparse
import os

import machine
import one_rank


def ratio_of(pairs):
    return one_rank.text_of([mine / theirs for mine, theirs in pairs])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default=str(one_rank.ROOT / "build/release/bin/caravan"))
    parser.add_argument("--against")
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.setdefault("CARAVAN_HOME", str(one_rank.ROOT))
    print(machine.describe(environment))
    kind = machine.processor_class(environment)

    def step(program, size, dtype, ranks=1):
        return one_rank.ours(argparse.Namespace(caravan=program), size, dtype, environment, ranks)

    def apart(size, dtype):
        return one_rank.at_the_same_time(lambda: step(arguments.caravan, size, dtype))

    for size in arguments.sizes.split(","):
        for dtype in arguments.dtypes.split(","):
            if arguments.against:
                pairs = [(step(arguments.caravan, size, dtype), step(arguments.against, size, dtype))
                         for _ in range(arguments.repeat)]
                print(f"{size:5} {dtype}  one rank, this to the other build {ratio_of(pairs)}  {kind}", flush=True)
                continue
            pairs = [(step(arguments.caravan, size, dtype, 2), apart(size, dtype)) for _ in range(arguments.repeat)]
            print(f"{size:5} {dtype}  2 ranks to 2 runs apart {ratio_of(pairs)}  {kind}", flush=True)


if __name__ == "__main__":
    main()
