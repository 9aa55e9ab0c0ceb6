#!/usr/bin/env python3
"""Whether the layout that `caravan plan` recommends is the fastest one: all are trained, on this machine.

  plan_choice.py [--caravan build/release/bin/caravan] [--layouts 30] [--steps 6] [--seed 1] [--match WORD] [--csv FILE]

For each pair of a model and a number of ranks: the machine is measured, plan searches, and the layouts that it prints
(at most ten) and a seeded sample of other legal ones are trained. Each takes the median of its steps without the first
two. Then the recommended one and the five fastest are trained twice more, in turn, and the medians of all their steps
are compared. Prints how much slower the recommended layout is than the fastest, its place, and the rank correlation of
predicted and measured times of plan's layouts. Run it on an idle machine.
"""
import argparse
import csv
import itertools
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile

import machine
from plan_accuracy import (DEEP, EXPERTS, LARGE, LLAMA, SMALL, STEPS_ALONE, WIDE, log_of, run, sets, step_seconds)
from planned import number

PAIRS = [("small", SMALL, 1), ("wide", WIDE, 2), ("deep", DEEP, 2), ("llama", LLAMA, 2), ("experts", EXPERTS, 2),
         ("large", LARGE, 2)]


def degrees(total, count):
    """All ways to write `total` as a product of `count` numbers."""
    if count == 1:
        return [(total,)]
    return [(one, *rest) for one in range(1, total + 1) if total % one == 0 for rest in degrees(total // one, count - 1)]


def sample(ranks, rows, has_experts, seed):
    """Key lists in a random order. Some are not legal."""
    found = []
    techniques = ("ddp", "zero1", "zero2", "zero3", "param_server")
    for (dp, tp, cp, pp, ep), technique, recompute in itertools.product(degrees(ranks, 5), techniques, ("none", "full")):
        if (ep > 1 and not has_experts) or (technique != "ddp" and dp * ep * cp == 1):
            continue
        base = [f"mesh.{axis}={degree}" for axis, degree in (("tp", tp), ("cp", cp), ("pp", pp), ("ep", ep))]
        base += [f"data_parallel.technique={technique}", f"memory.recompute={recompute}"]
        of_rank = rows // (dp * ep)
        parts = [size for size in (1, 2, 3, 4, 6, 8, 12, 24) if size <= of_rank and of_rank % size == 0]
        for part in parts:
            if pp == 1:
                found.append([*base, f"train.micro_batch={part}"])
                continue
            for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"):
                found.append([*base, f"pipeline.schedule={schedule}", f"pipeline.micro_batches={of_rank // part}"])
    random.Random(seed).shuffle(found)
    return found


class Trainer:
    def __init__(self, caravan, ranks, steps, folder):
        self.caravan, self.ranks, self.steps, self.folder, self.runs = caravan, ranks, steps, folder, 0

    def train(self, recipe, keys):
        """Seconds of each step, or why there are none."""
        self.runs += 1
        run_folder = f"{self.folder}/run{self.ranks}_{self.runs}"
        words = [self.caravan, "train", *([recipe] if recipe else []), "--ranks", self.ranks]
        trained = run([*words, *sets([*keys, *STEPS_ALONE, f"train.steps={self.steps}", f"checkpoint.dir={run_folder}"])])
        if trained.returncode:
            return None, (trained.stderr or trained.stdout).strip().splitlines()[0]
        return step_seconds(log_of(run_folder)), ""


def median(layout):
    return statistics.median(layout["times"])


def ranks_of(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0] * len(values)
    for place, index in enumerate(order):
        places[index] = place
    return places


def spearman(one, other):
    if len(one) < 3:
        return float("nan")
    return statistics.correlation(ranks_of(one), ranks_of(other))


def measure(name, model, ranks, arguments, caravan, folder):
    hardware, rows_folder = f"{folder}/hardware.toml", f"{folder}/rows"
    measured = run([caravan, "doctor", "--hardware", hardware, "--ranks", ranks])
    if measured.returncode:
        sys.exit(measured.stderr)
    plan = run([caravan, "plan", "--hardware", hardware, "--ranks", ranks, "--write-rows", rows_folder,
                *sets(model)])
    if plan.returncode:
        sys.exit(plan.stderr or plan.stdout)
    table = re.findall(r"^ +\d+ +([0-9.]+ m?s) +\S+ +\S+% +.*?  (dp .*|pp .*|tp .*|cp .*|ep .*)$", plan.stdout, re.M)
    layouts = [{"text": text, "recipe": f"{rows_folder}/{row}.toml", "keys": [], "predicted": number(seconds)}
               for row, (seconds, text) in enumerate(table, 1)]
    if not layouts:
        sys.exit(plan.stdout)
    trainer = Trainer(caravan, ranks, arguments.steps, folder)
    known = list(layouts)
    layouts = []
    rows = int(next(key for key in model if key.startswith("train.global_batch")).split("=")[1])
    others = iter(sample(ranks, rows, any(key.startswith("moe.") for key in model), arguments.seed))
    while len(layouts) < arguments.layouts:
        if known:
            one = known.pop(0)
        else:
            keys = next(others, None)
            if keys is None:
                break
            one = {"text": " ".join(keys), "recipe": "", "keys": [*model, *keys], "predicted": None}
        one["times"], why = trainer.train(one["recipe"], one["keys"])
        if one["times"] is None:
            if one["recipe"]:
                print(f"  {one['text']}: {why}")
            continue
        layouts.append(one)
    best = layouts[0]
    again = [best, *[one for one in sorted(layouts, key=median) if one is not best][:5]]
    for _ in range(2):
        for one in again:
            one["times"] += trainer.train(one["recipe"], one["keys"])[0] or []
    fastest = min(again, key=median)
    ordered = sorted(layouts, key=median)
    predicted = [one for one in layouts if one["predicted"]]
    print(f"{name}, {ranks} ranks: {len(layouts)} layouts, {1e3 * median(fastest):.1f} to {1e3 * median(ordered[-1]):.1f} ms; "
          f"recommended {1e3 * median(best):.1f} ms (predicted {1e3 * best['predicted']:.1f}), "
          f"{median(best) / median(fastest):.3f} of the fastest, place {ordered.index(best) + 1}; rank correlation of plan's "
          f"{spearman([one['predicted'] for one in predicted], [median(one) for one in predicted]):.2f}")
    for one in ordered[:6]:
        foreseen = f", predicted {1e3 * one['predicted']:.1f}" if one["predicted"] else ""
        print(f"    {1e3 * median(one):8.1f} ms ({1e3 * min(one['times']):.1f} to {1e3 * max(one['times']):.1f})"
              f"{foreseen}  {one['text']}", flush=True)
    return [(name, ranks, one["text"], one["predicted"] or "", median(one)) for one in ordered]



def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default="build/release/bin/caravan")
    parser.add_argument("--layouts", type=int, default=30)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--match", default="")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    caravan = str(pathlib.Path(arguments.caravan).resolve())
    os.environ.setdefault("CARAVAN_HOME", str(pathlib.Path(__file__).resolve().parent.parent))
    print(machine.describe(), flush=True)
    table = [("model", "ranks", "layout", "predicted_s", "measured_s")]
    for name, model, ranks in PAIRS:
        if arguments.match not in f"{name} {ranks}":
            continue
        with tempfile.TemporaryDirectory() as folder:
            table += measure(name, model, ranks, arguments, caravan, folder)
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(table)


if __name__ == "__main__":
    main()
