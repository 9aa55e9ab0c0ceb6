#!/usr/bin/env python3
"""What `caravan plan` predicts beside what `caravan train` takes, on this machine, for many recipes.

  plan_accuracy.py [--caravan build/release/bin/caravan] [--ranks 1 2] [--large] [--steps 10] [--match WORD]
                   [--csv FILE]

First measures the machine (caravan doctor --hardware). Then, for each recipe, predicts a step, and trains it: the median
of its steps without the first two. Memory is the measured peak of rank 0's tensors beside the prediction. Prints each
recipe and, for each number of ranks, the median and the ninth decile of the error of the time, and the range of
predicted / measured memory. No recipe was used to fit anything but the machine. Run it on an idle machine. More ranks
than cores share them. --large: other recipes, each with at least 1 GB of tensors in all ranks.
"""
import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import machine
import planned

SMALL = ["train.global_batch=24", "data.tokenizer=bytes"]
WIDE = ["model.layers=2", "model.width=1024", "model.heads=16", "model.context=256", "train.global_batch=8",
        "data.tokenizer=bytes"]
DEEP = ["model.layers=8", "model.width=512", "model.heads=8", "model.context=256", "train.global_batch=8",
        "data.tokenizer=bytes"]
LARGE = ["model.layers=6", "model.width=1024", "model.heads=16", "model.context=128", "train.global_batch=8",
         "data.tokenizer=bytes"]
LLAMA = ["model.kind=llama", "model.width=256", "model.heads=8", "train.global_batch=24", "data.tokenizer=bytes"]
EXPERTS = ["moe.experts=4", "model.kind=llama", "train.global_batch=24", "data.tokenizer=bytes"]
LORA = ["lora.rank=8", "model.width=384", "model.heads=6", "train.global_batch=24", "data.tokenizer=bytes"]

# 76 M parameters: 1.2 GB of parameters, gradients and moments, beside activations and sums.
GIGA = ["model.layers=6", "model.width=1024", "model.heads=16", "model.context=128", "train.global_batch=8",
        "data.tokenizer=bytes"]
BASES = {"small": SMALL, "wide": WIDE, "deep": DEEP, "large": LARGE, "llama": LLAMA, "experts": EXPERTS, "lora": LORA,
         "giga": GIGA, "giga llama": [*GIGA, "model.kind=llama"], "giga words": [*GIGA[1:], "model.layers=3"],
         "giga experts": [*GIGA[1:], "model.kind=llama", "model.layers=2", "moe.experts=4"]}
BASES["giga words"].remove("data.tokenizer=bytes")  # a vocabulary of 50257


def large_recipes(ranks):
    found = []

    def add(base, *more, rows=2):
        keys = list(more)
        if not any(key.startswith("pipeline.micro") for key in more):
            keys.append(f"train.micro_batch={rows}")
        found.append((" ".join((base, *more)), BASES[base] + keys))

    if ranks == 1:
        for base in ("giga", "giga llama", "giga words", "giga experts"):
            add(base, rows=4)
        add("giga", rows=1)
        add("giga", "memory.recompute=full", rows=8)
        add("giga llama", "precision.compute=bf16", rows=8)
        add("giga", "optimizer.kind=sgd", "optimizer.momentum=0.9")
        return found
    for technique in ("ddp", "zero1", "zero2", "zero3"):
        add("giga", f"data_parallel.technique={technique}")
    add("giga llama", "data_parallel.technique=zero3")
    add("giga words", "data_parallel.technique=ddp")
    add("giga experts", "data_parallel.technique=zero1")
    add("giga words", "mesh.tp=2", rows=4)
    add("giga", "mesh.tp=2", rows=8)
    add("giga llama", "mesh.cp=2", "model.dropout=0")
    add("giga experts", "mesh.ep=2")
    add("giga", "mesh.pp=2", "pipeline.micro_batches=4")
    add("giga llama", "mesh.pp=2", "pipeline.micro_batches=8", "pipeline.schedule=zb-v")
    return found


def recipes(ranks):
    """(name, keys)"""
    rows = {"small": 24, "wide": 8, "deep": 8, "large": 8, "llama": 24, "experts": 24, "lora": 24}
    found = []

    def add(base, *more, cut=2):
        keys = list(more)
        if not any(key.startswith(("train.micro_batch", "pipeline.micro")) for key in more):
            keys.append(f"train.micro_batch={max(1, rows[base] // ranks // cut)}")
        found.append((" ".join((base, *more)), BASES[base] + keys))

    if ranks == 1:
        for base in rows:
            add(base)
            add(base, cut=1)
            add(base, "memory.recompute=full")
        for base in ("small", "wide", "deep", "llama"):
            add(base, "precision.compute=bf16")
        add("small", "optimizer.kind=sgd")
        add("deep", "offload.optimizer=host", "offload.gradients=host")
        return found
    for base in rows:
        for technique in ("ddp", "zero1", "zero3"):
            add(base, f"data_parallel.technique={technique}")
    for base in ("small", "wide", "deep", "large", "llama"):
        add(base, "mesh.tp=2")
    for base in ("wide", "llama") if ranks == 4 else ():
        add(base, "mesh.tp=4")
        add(base, "mesh.tp=2", "mesh.pp=2", "pipeline.micro_batches=4")
    for base in ("small", "deep", "llama"):
        add(base, "mesh.cp=2", "model.dropout=0")
        add(base, "mesh.pp=2", "pipeline.micro_batches=4")
    add("deep", "mesh.pp=2", "pipeline.schedule=zb-h1", "pipeline.micro_batches=4")
    add("wide", "data_parallel.technique=zero2", "precision.compute=bf16")
    add("small", "data_parallel.technique=param_server")
    return found


# Nothing but steps.
STEPS_ALONE = ["sample.tokens=0", "train.eval_every=0", "train.eval_batches=1", "checkpoint.every=0"]


def run(words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def sets(keys):
    return [word for key in keys for word in ("--set", key)]


def log_of(folder):
    return [json.loads(line) for line in (pathlib.Path(folder) / "train.log").read_text().splitlines()]


def step_seconds(log):
    """Of the steps without the first two, which allocate."""
    return [line["step_ms"] * 1e-3 for line in log if "step_ms" in line][2:]


def measure(caravan, hardware, keys, ranks, steps, folder):
    plan = run([caravan, "plan", "--hardware", hardware, "--ranks", ranks, "--seconds", "0.001", *sets(keys)])
    found = planned.of_recipe(plan.stdout)
    if not found:
        return None, (plan.stderr or plan.stdout).strip().splitlines()[-1]
    trained = run([caravan, "train", "--ranks", ranks,
                   *sets([*keys, *STEPS_ALONE, f"checkpoint.dir={folder}", f"train.steps={steps}"])])
    if trained.returncode:
        return None, trained.stderr.strip().splitlines()[0]
    lines = log_of(folder)
    taken = step_seconds(lines)
    peak = max(line.get("peak_memory_bytes", 0) for line in lines)
    foreseen = max(line.get("predicted_memory_bytes", 0) for line in lines)  # plan prints the same, rounded
    if any(key.startswith("mesh.ep") for key in keys):  # but for ranks that share experts, which have unequal loads
        foreseen = found[1]
    return (found[0], statistics.median(taken), foreseen, peak), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default="build/release/bin/caravan")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--match", default="")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    caravan = str(pathlib.Path(arguments.caravan).resolve())
    os.environ.setdefault("CARAVAN_HOME", str(pathlib.Path(__file__).resolve().parent.parent))
    print(machine.describe())
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            hardware = f"{folder}/hardware{ranks}.toml"
            measured = run([caravan, "doctor", "--hardware", hardware, "--ranks", ranks])
            if measured.returncode:
                sys.exit(measured.stderr)
            errors, memory = [], []
            for index, (name, keys) in enumerate((large_recipes if arguments.large else recipes)(ranks)):
                if arguments.match not in name:
                    continue
                result, why = measure(caravan, hardware, keys, ranks, arguments.steps, f"{folder}/run{ranks}_{index}")
                if result is None:
                    print(f"  {ranks} ranks  {name}: {why}")
                    continue
                predicted, taken, bytes_, peak = result
                errors.append(abs(predicted / taken - 1))
                memory.append(bytes_ / peak)
                table.append((ranks, name, predicted, taken, bytes_, peak))
                print(f"  {ranks} ranks  {1e3 * predicted:8.1f} ms predicted {1e3 * taken:8.1f} measured {predicted / taken:6.2f}"
                      f"   memory {bytes_ / peak:.3f}   {name}", flush=True)
            if errors:
                errors.sort()
                print(f"{ranks} ranks: {len(errors)} recipes, error of the time: median {100 * statistics.median(errors):.1f} %, "
                      f"ninth decile {100 * errors[int(0.9 * (len(errors) - 1))]:.1f} %; memory predicted / measured "
                      f"{min(memory):.3f} to {max(memory):.3f}")
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("ranks", "recipe", "predicted_s", "measured_s", "predicted_bytes", "bytes"), *table])


if __name__ == "__main__":
    main()
