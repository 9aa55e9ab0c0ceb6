#!/usr/bin/env python3
"""Times context parallelism: a step of one sequence on 2 ranks against one rank with one thread, and against 2 independent
runs of one rank at the same time on the same cores.

  context_parallel.py [--caravan build/release/bin/caravan] [--kinds ring,ulysses] [--dtypes fp32] [--context 4096]
                      [--layers 1] [--width 512] [--steps 4] [--repeat 5]

The three alternate --repeat times; each run counts with the median of its steps, the pair of runs with the slower one. Printed
are medians of ratios: the speed-up over one rank, and the share of what the 2 runs reach together (2 sequences in their step).
"""
import argparse
import os
import statistics

import machine
import one_rank


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default=str(one_rank.ROOT / "build/release/bin/caravan"))
    parser.add_argument("--kinds", default="ring,ulysses")
    parser.add_argument("--dtypes", default="fp32")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.setdefault("CARAVAN_HOME", str(one_rank.ROOT))
    one_rank.SIZES["long"] = (arguments.layers, arguments.width, arguments.width // 64, arguments.context, 512, 1,
                              arguments.steps)
    print(machine.describe(environment))

    def step(dtype, kind=None):
        more = {"train.global_batch": 1}
        if kind:
            more |= {"mesh.cp": 2, "context_parallel.kind": f'"{kind}"'}
        return one_rank.ours(arguments, "long", dtype, environment, 2 if kind else 1, more)

    for kind in arguments.kinds.split(","):
        for dtype in arguments.dtypes.split(","):
            rounds = [(step(dtype), step(dtype, kind), one_rank.at_the_same_time(lambda: step(dtype)))
                      for _ in range(arguments.repeat)]
            gains = [one / both for one, both, _ in rounds]
            shares = [pair / 2 / both for _, both, pair in rounds]
            print(f"{kind:7} {dtype}  {arguments.context} tokens  one rank {statistics.median(r[0] for r in rounds):7.1f} ms  "
                  f"2 ranks {statistics.median(r[1] for r in rounds):7.1f} ms  speed-up {one_rank.text_of(gains)}  "
                  f"of 2 runs apart {one_rank.text_of(shares)}", flush=True)


if __name__ == "__main__":
    main()
