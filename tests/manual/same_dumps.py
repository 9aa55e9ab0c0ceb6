#!/usr/bin/env python3
"""Trains recipes over all techniques with two builds of the program and compares what they write, byte for byte.

  same_dumps.py --before OLD/bin/caravan --after build/ci/bin/caravan

The gradients and losses of the steps 0 and 1 (--dump) must be equal. A pipeline without a flush has no gradient of a
step, and servers without a barrier are deterministic with one worker alone: of these the checkpoint after 6 steps is
compared. --only WORD takes the recipes whose name has that word."""

import argparse
import math
import pathlib
import shutil
import subprocess
import sys

from paths_of_recipes import BASE, DDP, HSDP, LLAMA, PP, RECIPES, ZERO2, ZERO3
from recipe_runs import mpi_launcher

MORE = {
    "adamw ddp cosine": f"{DDP} optimizer.kind=adamw optimizer.schedule=cosine",
    "adamw zero1": "mesh.dp=2 data_parallel.technique=zero1 optimizer.kind=adamw optimizer.beta2=0.9",
    "momentum constant": f"{DDP} optimizer.momentum=0.9 optimizer.schedule=constant",
    "adamw zero3 decay": f"{ZERO3} optimizer.kind=adamw optimizer.schedule=constant_then_decay",
    "hsdp full": f"{HSDP} mesh.dp=4 data_parallel.shard=2 data_parallel.accumulate=full train.micro_batch=1",
    "zero2 reduced in bf16": f"{ZERO2} precision.reduce=bf16 {LLAMA}",
    "servers shared": "mesh.dp=3 train.global_batch=12 data_parallel.technique=param_server data_parallel.share=on",
    "one worker async": "mesh.dp=1 data_parallel.technique=param_server data_parallel.mode=async",
    "pipeline hsdp": f"{PP} {HSDP} mesh.dp=4 data_parallel.shard=2 train.global_batch=16",
    "experts batch llama": f"mesh.ep=2 moe.experts=4 moe.balance=batch {LLAMA}",
    "experts tp llama": f"mesh.ep=2 mesh.tp=2 moe.experts=4 moe.capacity=1.25 comm.threads_per_rank=1 {LLAMA}",
    "two servers full": "mesh.dp=3 train.global_batch=12 data_parallel.technique=param_server data_parallel.servers=2 "
                        "data_parallel.accumulate=full train.micro_batch=2",
    "tp zero1 recompute": "mesh.tp=2 mesh.dp=2 data_parallel.technique=zero1 memory.recompute=['blocks.0']",
}
# No two runs of the first are alike; tables of algorithms are files of another program; transformers has no GPT-2 with
# experts, whose names a dump would have.
LEFT_OUT = ("param_server bounded", "gloo table", "gloo rabenseifner", "experts batch", "experts tp capacity")
WITHOUT_DUMP = ("pipedream", "pipedream-2bw")


def words_of(keys):
    values = dict(word.split("=", 1) for word in (BASE + " " + keys).split())
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def run(program, words, out, dumps):
    """Exit code and last lines; what it wrote is in out/kept."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    ranks = math.prod(int(word.split("=")[1]) for word in words if word.startswith("mesh."))
    launcher = mpi_launcher(ranks) if any("mpi" in word for word in words if word.startswith("comm.backend")) else []
    command = [*launcher, program, "train", *words, "--set", f"checkpoint.dir={out / 'run'}", "--set", "sample.tokens=0",
               "--set", "train.eval_batches=1", "--set", f"train.steps={2 if dumps else 6}"]
    if dumps:
        command += ["--dump", str(out / "kept"), "--dump-steps", "0,1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not dumps and done.returncode == 0:
        (out / "kept").mkdir()
        for file in (out / "run" / "step_000006").glob("*.safetensors"):
            shutil.copy(file, out / "kept")
    return done.returncode, done.stdout[-400:] + done.stderr[-400:]


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--work", default="/tmp/same_dumps", type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    counts = {"equal": 0, "DIFFERENT": 0, "NOT RUN": 0}
    for name, keys in {**RECIPES, **MORE}.items():
        if arguments.only not in name or name in RECIPES and name.startswith(LEFT_OUT):
            continue
        dumps = name not in WITHOUT_DUMP
        words = words_of(keys)
        codes = []
        for which, program in (("before", arguments.before), ("after", arguments.after)):
            code, tail = run(program, words, arguments.work / which, dumps)
            codes.append(code)
            if code != 0:
                print(f"    {which}: {tail}")
        verdict = "NOT RUN"
        if codes == [0, 0]:
            before, after = (files(arguments.work / which / "kept") for which in ("before", "after"))
            verdict = "equal" if before and before == after else "DIFFERENT"
            for file in before.keys() | after.keys():
                if before.get(file) != after.get(file):
                    print(f"    {file}")
        counts[verdict] += 1
        print(f"{name:36} {verdict}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 0 if counts["DIFFERENT"] == counts["NOT RUN"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
