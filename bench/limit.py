#!/usr/bin/env python3
"""How far a training step is from what the processor could do, and where the rest goes. One thread a rank.

  limit.py [--build build/release] [--sizes tiny,small,gpt2] [--dtypes fp32,bf16] [--force avx2] [--repeat 3]
           [--arrangements one,ddp,zero3,tp,pp,cp]
  limit.py --recipe FILE [--set KEY=VALUE ..] [--repeat 3]      # one rank

The limit: the FLOPs of all products of the step, also those of attention, whose masked keys do not count (its backward has
five: it computes the scores again), at the best rate that any product of the step, or one of 1024 x 1024 x 1024, reaches in
this run. Attainable: each product at the best rate of its own shape in any layout, and the bytes of everything else at the
bandwidth for as many. Kernels are those of a rehearsal. Rates, steps and profiles alternate --repeat times; printed are
medians, and the least and the most. A step counts with the median of its run, as `caravan train` logs it.

The table is of the median profiled step: the time of each kind of operation, its own limit, and how much it takes above it, in
ms and of all that is above. A kind without products has the time of its bytes as its own limit, which is none of the step.
Products of the loss are in the forward, also those of its gradient. What no operator takes is "between operators", and what
comes before the first of them "outside".

The limit of 2 ranks is that of two independent runs: half of the FLOPs of their batch, at the rate of the slower of two
programs that measure at the same time.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import tempfile

import machine
import one_rank

KINDS = [("products", r"^(addmm_?|mm|bmm|baddbmm_?|matmul|linear|_addmm_activation|mv|dot)$"),
         ("attention", r"^attention|scaled_dot_product|^_?softmax|masked_fill|rope"), ("loss", r"cross_entropy|log_softmax|nll_loss"),
         ("activation", r"gelu|silu|swiglu|sigmoid|dropout"), ("norm", r"layer_norm|rms_norm"),
         ("embedding", r"embedding|index_select|index_copy|arange"), ("norm of gradients", r"grad_norm"),
         ("optimizer", r"adamw|sgd|muon|lion|adafactor"), ("additions", r"^(add|sum|mul|div|sub)_?$"),
         ("copies", r"copy|^to$|contiguous|clone|^cat$|zero|fill|^ones|reshape|repeat"),
         ("allocation", r"^empty|^new_empty|^resize_")]
PASSES = {"recompute": "backward", "weight": "backward", "optimizer": "update", "start": "update"}

RECIPE_STEPS = 8

DTYPES = ["fp32", "bf16", "fp16"]  # of precision.compute
USUAL_SIZES, USUAL_DTYPES = ["tiny", "small", "gpt2"], ["fp32", "bf16"]

# What runs, and the targets that build it.
PROGRAMS = ["caravan", "caravan-rank", "limit_rates", "limit_profile"]
TARGETS = "caravan_app caravan_rank limit_rates limit_profile"

# Settings of 2 ranks, and the least batch.
ARRANGEMENTS = {"ddp": ({}, 2), "zero3": ({"data_parallel.technique": '"zero3"'}, 2), "tp": ({"mesh.tp": 2}, 1),
                "pp": ({"mesh.pp": 2, "pipeline.micro_batches": 4}, 4), "cp": ({"mesh.cp": 2}, 1)}


def place(event, what):
    """The kind of an operation, and the part of the step that it belongs to."""
    if what.startswith("after "):
        return "between operators", PASSES.get(event, event)
    kind = next((kind for kind, names in KINDS if re.search(names, what)), "other operators")
    part = "update" if kind in ("optimizer", "norm of gradients") else PASSES.get(event, event)
    return kind, part


class Bench:
    """The programs, with the settings of one run."""

    def __init__(self, arguments, environment, settings):
        self.folder = pathlib.Path(arguments.build) / "bin"
        self.recipe, self.environment, self.settings = arguments.recipe, environment, settings

    def program(self, name, settings):
        command = [str(self.folder / name), self.recipe, *(f"{key}={value}" for key, value in settings.items())]
        return one_rank.run(command, self.environment).splitlines()

    def rates(self):
        return Rates(json.loads(self.program("limit_rates", self.settings)[0]))

    def two_rates(self):
        """Of two programs at the same time: the slower."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return min(pool.map(lambda _: self.rates(), range(2)), key=lambda rates: rates.best)

    def step(self, ranks=1, more=None):
        return one_rank.median_step(str(self.folder / "caravan"), self.settings | (more or {}), self.environment, ranks,
                                    self.recipe)

    def profiles(self):
        with tempfile.TemporaryDirectory() as folder:
            more = {"train.steps": int(self.settings["train.steps"]) + 1, "checkpoint.dir": f'"{folder}/run"'}
            lines = self.program("limit_profile", self.settings | more)
        return [json.loads(line) for line in lines][one_rank.WARM_UP:-1]  # the last is followed by an evaluation


class Rates:
    """The kernels of a step and the rates of one run; times in ms."""

    def __init__(self, measured):
        self.kernels, self.memory = measured["kernels"], measured["memory"]
        self.fastest = max(measured["products"], key=lambda product: product["rate"])
        self.best = self.fastest["rate"]
        self.limit = sum(each["count"] * each["flops"] for each in self.kernels) / self.best * 1e3
        self.attainable = sum(each["count"] * self.own_seconds(each) for each in self.kernels) * 1e3

    @staticmethod
    def own_seconds(kernel):
        return (kernel["flops"] or kernel["bytes"]) / kernel["rate"]

    def limits_of_kinds(self):
        limits = collections.Counter()
        for each in self.kernels:
            seconds = each["flops"] / self.best if each["flops"] else self.own_seconds(each)
            limits[place(each["event"], each["what"])] += each["count"] * seconds * 1e3
        return limits

    def __str__(self):
        memory = ", ".join(f"{each['rate'] / 1e9:.0f} for {each['bytes'] / 2**20:.1f} MiB" for each in self.memory)
        return f"{self.best / 1e9:.1f} GFLOP/s ({self.fastest['shape']}), GB/s: {memory}"


def spread(values):
    return f"{statistics.median(values):.1f} ms ({min(values):.1f} to {max(values):.1f})"


def table(rates, profiles):
    """Of the median step, by what is above the limit."""
    step = sorted(profiles, key=lambda profile: profile["ms"])[len(profiles) // 2]
    taken, limits = collections.Counter(), rates.limits_of_kinds()
    for each in step["times"]:
        taken[place(each["event"], each["what"])] += each["ms"]
    taken["outside", ""] = step["ms"] - sum(taken.values())
    least = step["ms"] / 1000  # rows with less are one
    rows = [(*at, ms, limits[at]) for at, ms in taken.items() if max(ms, limits[at]) >= least]
    rest = [(ms, limits[at]) for at, ms in taken.items() if max(ms, limits[at]) < least]
    rows.append(("the rest", "", sum(ms for ms, _ in rest), sum(limit for _, limit in rest)))
    print(f"  profiled step {step['ms']:.1f} ms, {step['page_faults']} page faults")
    print(f"  {'':18} {'':9} {'ms':>9} {'of step':>8} {'limit':>9} {'above':>9}  of what is above")
    # Bytes are no part of the limit of a step.
    above = step["ms"] - rates.limit
    for kind, part, ms, limit in sorted(rows, key=lambda row: row[3] - row[2]):
        over = ms - (limit if kind in ("products", "attention") else 0)
        print(f"  {kind:18} {part:9} {ms:9.2f} {ms / step['ms']:8.1%} {limit:9.2f} {ms - limit:9.2f}  {over / above:6.1%}")


def one(name, bench, repeat):
    rounds = [(bench.rates(), bench.step(), bench.profiles()) for _ in range(repeat)]
    all_rates, steps, _ = zip(*rounds)
    print(f"{name}  step {spread(steps)}  limit {spread([rates.limit for rates in all_rates])}  step / limit "
          f"{one_rank.text_of([step / rates.limit for rates, step, _ in rounds])}\n"
          f"  attainable {spread([rates.attainable for rates in all_rates])}  step / attainable "
          f"{one_rank.text_of([step / rates.attainable for rates, step, _ in rounds])}")
    middle = sorted(all_rates, key=lambda rates: rates.limit)[repeat // 2]
    print(f"  {middle}")
    table(middle, [profile for _, _, profiles in rounds for profile in profiles])


def two(name, bench, arrangements, repeat):
    batch = bench.settings["train.global_batch"]  # of two ranks
    batches = {kind: max(batch, ARRANGEMENTS[kind][1]) for kind in arrangements}
    rounds = []
    for _ in range(repeat):
        rates = bench.two_rates()
        rounds.append({kind: (bench.step(2, ARRANGEMENTS[kind][0] | {"train.global_batch": batches[kind]}),
                              rates.limit / 2 * batches[kind] / batch) for kind in arrangements})
    for kind in arrangements:
        steps, limits = zip(*(each[kind] for each in rounds))
        ratios = [step / limit for step, limit in zip(steps, limits)]
        print(f"{name}  2 ranks, {kind:5} step {spread(steps)}  limit {spread(limits)}  step / limit "
              f"{one_rank.text_of(ratios)}", flush=True)


def some_of(names):
    """The type of an argument that is a list of names with commas between them."""
    def parse(text):
        chosen = text.split(",")
        wrong = [repr(name) for name in chosen if name not in names]
        if wrong:
            raise argparse.ArgumentTypeError(f"invalid choice: {', '.join(wrong)} (choose from {', '.join(names)})")
        return chosen
    return parse


def check(parser, arguments):
    """Ends with a message if what the arguments ask for cannot run."""
    if arguments.repeat < 1:
        parser.error(f"--repeat {arguments.repeat}: at least 1")
    if arguments.set and not arguments.recipe:
        parser.error("--set is for a recipe: add --recipe FILE, such as recipes/default.toml")
    for name in ("sizes", "dtypes", "arrangements"):
        if arguments.recipe and getattr(arguments, name) is not None:
            parser.error(f"--{name} is not for a recipe, which runs on one rank: use --set, such as "
                         "--set model.width=256 or --set 'precision.compute=\"bf16\"'")
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals:
            parser.error(f"--set {text}: not KEY=VALUE")
        if key == "checkpoint.dir":
            parser.error("--set checkpoint.dir: the runs have folders of their own, which are deleted")
        if key == "train.steps" and not (value.isdecimal() and int(value) > one_rank.WARM_UP):
            parser.error(f"--set {text}: not a number above {one_rank.WARM_UP}, the steps before the first that counts")
    for program in PROGRAMS:
        if not (pathlib.Path(arguments.build) / "bin" / program).is_file():
            parser.error(f"--build {arguments.build}: has no bin/{program}; configure it with -DCARAVAN_BENCH=ON, then "
                         f"ninja -C {arguments.build} {TARGETS}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(one_rank.ROOT / "build/release"), help="configured with -DCARAVAN_BENCH=ON")
    kinds = ["one", *ARRANGEMENTS]
    parser.add_argument("--sizes", type=some_of(list(one_rank.SIZES)), help=f"default: {','.join(USUAL_SIZES)}")
    parser.add_argument("--dtypes", type=some_of(DTYPES), help=f"default: {','.join(USUAL_DTYPES)}")
    parser.add_argument("--arrangements", type=some_of(kinds), help=f"default: {','.join(kinds)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--force", choices=list(machine.FORCED), help="instruction set")
    parser.add_argument("--recipe", default="", help="instead of sizes and dtypes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    arguments = parser.parse_args()
    check(parser, arguments)
    environment = dict(os.environ, OMP_NUM_THREADS="1", **machine.FORCED.get(arguments.force, {}))
    environment.setdefault("CARAVAN_HOME", str(one_rank.ROOT))
    print(machine.describe(environment))
    if arguments.recipe:
        steps = one_rank.STEPS_ALONE | {"train.steps": RECIPE_STEPS + one_rank.WARM_UP}
        own = dict(text.split("=", 1) for text in arguments.set)
        one(pathlib.Path(arguments.recipe).stem, Bench(arguments, environment, steps | own), arguments.repeat)
        return
    arrangements = arguments.arrangements or kinds
    for size in arguments.sizes or USUAL_SIZES:
        for dtype in arguments.dtypes or USUAL_DTYPES:
            name = f"{size:5} {dtype}"
            if "one" in arrangements:
                one(name, Bench(arguments, environment, one_rank.run_settings(size, dtype)), arguments.repeat)
            pairs = [kind for kind in arrangements if kind != "one"]
            if pairs:
                two(name, Bench(arguments, environment, one_rank.run_settings(size, dtype, 2)), pairs, arguments.repeat)


if __name__ == "__main__":
    main()
