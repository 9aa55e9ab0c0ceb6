#!/usr/bin/env python3
"""Times a step of GPT-2 in two stages on 2 ranks with one thread each: against torch.distributed.pipelining; zero bubble against our
1F1B; and 1F1B against its limit: the work of two independent ranks at the same time, in stages as unequal as ours, plus the bubble.

  pipeline.py --python VENV/bin/python [--caravan build/release/bin/caravan] [--sizes floor,tiny,small,gpt2] [--schedules 1f1b,gpipe]
              [--micro 4,8] [--dtypes fp32] [--repeat 3]

The runs alternate --repeat times; each counts with the median of its steps. Printed are medians of ratios: ours to PyTorch's;
zb-h1 to our 1F1B; and work / (1 - bubble) / step, where the work is that of 2 runs of one rank, each with half of the micro-batches,
and the bubble that of `inspect --schedule`, which counts the FLOPs of each stage.
"""
import argparse
import os
import pathlib
import re
import statistics

import machine
import one_rank


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default=str(one_rank.ROOT / "build/release/bin/caravan"))
    parser.add_argument("--python", required=True, help="has torch; torchrun is beside it")
    parser.add_argument("--sizes", default="floor,tiny,small,gpt2")
    parser.add_argument("--schedules", default="1f1b,gpipe")
    parser.add_argument("--micro", default="4,8")
    parser.add_argument("--dtypes", default="fp32")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.setdefault("CARAVAN_HOME", str(one_rank.ROOT))
    print(machine.describe(environment))

    def peer(size, schedule, micro, batch):
        layers, width, heads, context, vocabulary, _, steps = one_rank.SIZES[size]
        command = [str(pathlib.Path(arguments.python).parent / "torchrun"), "--nproc-per-node", "2",
                   str(one_rank.ROOT / "bench/peers/pipeline_step.py")]
        command += map(str, (layers, width, heads, context, vocabulary, batch, steps, micro, schedule))
        return float(one_rank.run(command, environment).split()[-1])

    def ours(size, dtype, schedule, micro, batch):
        more = {"mesh.pp": 2, "train.global_batch": batch, "pipeline.micro_batches": micro,
                "pipeline.schedule": f'"{schedule}"'}
        return one_rank.ours(arguments, size, dtype, environment, 2, more)

    def apart(size, dtype, micro, batch):
        half = {"train.global_batch": batch // 2, "train.micro_batch": batch // micro}
        return one_rank.at_the_same_time(lambda: one_rank.ours(arguments, size, dtype, environment, 1, half))

    def bubble(size, micro, batch):
        more = {"mesh.pp": 2, "train.global_batch": batch, "pipeline.micro_batches": micro}
        command = [arguments.caravan, "inspect", "--schedule", "--ranks", "2"]
        for key, value in (one_rank.model_settings(size) | more).items():
            command += ["--set", f"{key}={value}"]
        return float(re.search(r"mean of the ranks +([0-9.]+) %", one_rank.run(command, environment)).group(1)) / 100

    for size in arguments.sizes.split(","):
        for dtype in arguments.dtypes.split(","):
            for micro in map(int, arguments.micro.split(",")):
                batch = max(2 * one_rank.SIZES[size][5], micro)
                for schedule in arguments.schedules.split(","):
                    rounds = [(ours(size, dtype, schedule, micro, batch), peer(size, schedule, micro, batch))
                              for _ in range(arguments.repeat)]
                    print(f"{size:6} {dtype} {schedule:6} m {micro}  ours {statistics.median(r[0] for r in rounds):8.1f} ms  "
                          f"pytorch {statistics.median(r[1] for r in rounds):8.1f} ms  "
                          f"ratio {one_rank.text_of([a / b for a, b in rounds])}", flush=True)
                rounds = [(ours(size, dtype, "zb-h1", micro, batch), ours(size, dtype, "1f1b", micro, batch),
                           apart(size, dtype, micro, batch)) for _ in range(arguments.repeat)]
                idle = bubble(size, micro, batch)
                limits = [work / (1 - idle) / step for _, step, work in rounds]
                print(f"{size:6} {dtype} zb-h1  m {micro}  to our 1f1b {one_rank.text_of([a / b for a, b, _ in rounds])}  "
                      f"1f1b of its limit (bubble {idle:.3f}) {one_rank.text_of(limits)}", flush=True)


if __name__ == "__main__":
    main()
