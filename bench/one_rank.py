#!/usr/bin/env python3
"""Compares a training step of one rank with PyTorch's: GPT-2 of four sizes, AdamW.

  one_rank.py --caravan build/release/bin/caravan [--python PYTHON] [--sizes tiny,small,gpt2] [--dtypes fp32,bf16]
              [--repeat 3] [--steps N] [--threads 1] [--force avx2] [--products "tiles"] [--ours-only]

PyTorch: eager, scaled_dot_product_attention, fused AdamW; bf16 is autocast. Caravan: `caravan train` with the same sizes. The
two alternate --repeat times; each run counts with the median of its steps. `--force avx2` limits both to AVX2. Each line ends
with the processor class: compare figures of one class only.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent

# layers, width, heads, context, vocabulary, sequences, steps
SIZES = {"floor": (4, 128, 4, 8, 512, 1, 60), "tiny": (4, 128, 4, 128, 512, 16, 20),
         "small": (6, 384, 6, 256, 4096, 4, 8), "gpt2": (12, 768, 12, 512, 50304, 1, 4)}
WARM_UP = 2

# Settings of a run that does nothing but steps.
STEPS_ALONE = {"train.eval_every": 0, "train.eval_batches": 1, "checkpoint.every": 0, "sample.tokens": 0,
               "comm.threads_per_rank": 1}


def torch_steps(name, dtype):
    """Runs in a separate process and prints the milliseconds of each step."""
    import torch
    import torch.nn.functional as F
    sys.path.insert(0, str(ROOT / "tests/python"))
    import gpt

    size = gpt.Size(*SIZES[name][:-1])
    steps = SIZES[name][-1]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = gpt.make(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times = []
    for _ in range(WARM_UP + steps):
        ids = torch.randint(0, size.vocabulary, (size.batch, size.context + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(ids[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps(times[WARM_UP:]))


def run(command, environment):
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stdout[-500:]}{result.stderr[-2000:]}")
    return result.stdout


def at_the_same_time(step):
    """The slower of two independent runs on the same cores."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return max(pool.map(lambda _: step(), range(2)))


def text_of(ratios):
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def peer(arguments, size, dtype, environment):
    command = [arguments.python, str(pathlib.Path(__file__).resolve()), "--torch", size, dtype, "--steps",
               str(SIZES[size][-1])]
    return statistics.median(json.loads(run(command, environment)))


def model_settings(size):
    layers, width, heads, context, vocabulary, _, _ = SIZES[size]
    return {"model.layers": layers, "model.width": width, "model.heads": heads, "model.context": context,
            "model.vocabulary": vocabulary, "data.tokenizer": '"bytes"'}


def run_settings(size, dtype, ranks=1):
    batch, steps = SIZES[size][-2:]
    return model_settings(size) | STEPS_ALONE | {"train.global_batch": batch * ranks, "train.steps": steps + WARM_UP,
                                                 "optimizer.clip_norm": 0, "precision.compute": f'"{dtype}"'}


def median_step(caravan, settings, environment, ranks=1, recipe=None):
    """In ms."""
    with tempfile.TemporaryDirectory() as folder:
        command = [caravan, "train", *([recipe] if recipe else []), "--ranks", str(ranks)]
        for key, value in (settings | {"checkpoint.dir": f'"{folder}/run"'}).items():
            command += ["--set", f"{key}={value}"]
        run(command, environment)
        lines = [json.loads(line) for line in open(f"{folder}/run/train.log")]
    return statistics.median(line["step_ms"] for line in lines if line.get("step_ms") is not None
                             and line.get("step", 0) > WARM_UP)


def ours(arguments, size, dtype, environment, ranks=1, more=None):
    """The median step in ms. `more`: further settings of the recipe."""
    return median_step(arguments.caravan, run_settings(size, dtype, ranks) | (more or {}), environment, ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--caravan", default=str(ROOT / "build/release/bin/caravan"))
    parser.add_argument("--python", default=sys.executable, help="has torch")
    parser.add_argument("--sizes", default="tiny,small,gpt2")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, help="timed steps a run instead of the size's own")
    parser.add_argument("--threads", type=int, default=1, help="of both sides")
    parser.add_argument("--force", choices=list(machine.FORCED), help="instruction set for both sides")
    parser.add_argument("--ours-only", action="store_true", help="without PyTorch: caravan's dtypes beside each other")
    parser.add_argument("--products", help="CARAVAN_PRODUCTS of our side")
    arguments = parser.parse_args()
    if arguments.steps:
        SIZES.update({size: (*values[:-1], arguments.steps) for size, values in SIZES.items()})
    if arguments.torch:
        return torch_steps(*arguments.torch)
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads), **machine.FORCED.get(arguments.force, {}))
    environment.setdefault("CARAVAN_HOME", str(ROOT))
    threads = {"comm.threads_per_rank": arguments.threads}
    own = dict(environment, **({"CARAVAN_PRODUCTS": arguments.products} if arguments.products else {}))
    print(machine.describe(environment))
    kind = machine.processor_class(environment)
    dtypes = arguments.dtypes.split(",")
    for size in arguments.sizes.split(","):
        if arguments.ours_only:
            rounds = [[ours(arguments, size, dtype, own, more=threads) for dtype in dtypes] for _ in range(arguments.repeat)]
            for dtype, mine in zip(dtypes, zip(*rounds)):
                ratios = [one / first[0] for one, first in zip(mine, rounds)]
                print(f"{size:5} {dtype}  caravan {statistics.median(mine):8.1f} ms  of {dtypes[0]} "
                      f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})  {kind}", flush=True)
            continue
        for dtype in dtypes:
            pairs = [(peer(arguments, size, dtype, environment), ours(arguments, size, dtype, own, more=threads))
                     for _ in range(arguments.repeat)]
            ratios = [mine / theirs for theirs, mine in pairs]
            theirs, mine = (statistics.median(column) for column in zip(*pairs))
            print(f"{size:5} {dtype}  caravan {mine:8.1f} ms  pytorch {theirs:8.1f} ms  ratio "
                  f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})  {kind}", flush=True)


if __name__ == "__main__":
    main()
