#!/usr/bin/env python3
"""Proves recipes over all techniques and the shipped ones, and shows the paths of execution that each proof took.

  paths_of_recipes.py --caravan build/ci/bin/caravan            for each recipe: holds, and the paths
  paths_of_recipes.py --caravan build/ci/bin/caravan --plant    plants a factor in each path: must be noticed each time

`caravan prove` fails, naming the path, if a step of the recipe takes one that its proof does not. With --plant the
result of one path at a time is multiplied by 1.01, or by 1.2 where only bf16 takes it: the proof must then fail and
name a tensor, the loss or the norm. --only WORD takes the recipes whose name has that word."""

import argparse
import math
import pathlib
import re
import sys

import recipe_values
from recipe_runs import Runner, first_error, mpi_launcher

BASE = ("model.layers=4 model.width=32 model.heads=4 model.context=32 model.vocabulary=300 train.global_batch=8 "
        "train.steps=3 data.tokenizer=bytes optimizer.kind=sgd")
LLAMA = "model.kind=llama model.kv_heads=2"
THREE = "mesh.dp=3 train.global_batch=12"
PACKED = "data.pack=documents data.tokenizer={train=300}"
DDP, ZERO2, ZERO3, HSDP = (f"mesh.dp=2 data_parallel.technique={name}" for name in ("ddp", "zero2", "zero3", "hsdp"))
RING, BOTH = "mesh.cp=2", "mesh.cp=4 context_parallel.kind=both context_parallel.exchange=2"
OLD = "optimizer.clip_norm=0 model.tie_embeddings=false"
PP = "mesh.pp=2 pipeline.micro_batches=4"

RECIPES = {
    "ddp gpt2": DDP,
    "ddp llama dropout accumulation": f"{DDP} {LLAMA} model.dropout=0.1 train.micro_batch=2",
    "ddp small buckets": f"{DDP} data_parallel.bucket_bytes=512 model.tie_embeddings=false",
    "ddp bf16": f"{DDP} precision.compute=bf16 precision.gradients=bf16",
    "ddp fp16": f"{DDP} {LLAMA} precision.compute=fp16",
    "ddp reduced in bf16": f"{DDP} precision.reduce=bf16",
    "ddp powersgd": f"{DDP} data_parallel.hook=powersgd comm.threads_per_rank=1",
    "ddp topk": f"{DDP} data_parallel.hook=topk",
    "zero1": "mesh.dp=2 data_parallel.technique=zero1",
    "zero2 full accumulation": f"{ZERO2} data_parallel.accumulate=full train.micro_batch=2",
    "zero3 units": f"{ZERO3} data_parallel.prefetch=2 data_parallel.units=['blocks.*.mlp']",
    "zero3 without sharing": f"{ZERO3} data_parallel.share=off data_parallel.reshard_after_forward=false {LLAMA}",
    "zero3 recompute full bf16": f"{ZERO3} {LLAMA} memory.recompute=full precision.compute=bf16",
    "hsdp powersgd": f"{HSDP} mesh.dp=4 data_parallel.shard=2 data_parallel.hook=powersgd comm.threads_per_rank=1",
    "param_server": "mesh.dp=2 data_parallel.technique=param_server data_parallel.servers=1",
    "param_server bounded": "mesh.dp=2 data_parallel.technique=param_server data_parallel.mode=bounded",
    "replicas": "mesh.dp=2 data_parallel.technique=replicas comm.backend=thread",
    "tp 1d": "mesh.tp=2",
    "tp sequence bf16": f"mesh.tp=2 tensor_parallel.sequence=true {LLAMA} precision.compute=bf16 model.dropout=0.1",
    "tp 1d shared heads": f"mesh.tp=4 {LLAMA} comm.overlap=false",
    "tp 2d": f"mesh.tp=4 tensor_parallel.kind=2d {LLAMA} model.hidden=64",
    "tp 2.5d": "mesh.tp=8 tensor_parallel.kind=2.5d tensor_parallel.depth=2 comm.overlap=false",
    "tp 3d": f"mesh.tp=8 tensor_parallel.kind=3d {LLAMA} model.hidden=64",
    "ring": RING,
    "ring packed dropout": f"{RING} {PACKED} model.dropout=0.1 {LLAMA}",
    "ring 3 without overlap": "mesh.cp=3 model.context=36 comm.overlap=false",
    "striped packed": f"{RING} context_parallel.kind=striped {PACKED} {LLAMA}",
    "ulysses": f"{RING} context_parallel.kind=ulysses {LLAMA} {PACKED}",
    "both": f"{BOTH} {PACKED}",
    "both bf16 pipeline": f"{BOTH} {PP} precision.compute=bf16 pipeline.schedule=zb-h1",
    "experts sequence": f"mesh.ep=2 moe.experts=4 {LLAMA}",
    "experts batch": "mesh.ep=2 moe.experts=4 moe.balance=batch moe.shared=24 moe.shared_gate=true",
    "experts tp capacity": "mesh.ep=2 mesh.tp=2 moe.experts=4 moe.capacity=1.25 comm.threads_per_rank=1",
    "gpipe": f"{PP} pipeline.schedule=gpipe",
    "1f1b zero3 dropout": f"{PP} pipeline.schedule=1f1b {ZERO3} model.dropout=0.1",
    "naive zero2": f"{PP} pipeline.schedule=naive {ZERO2} {LLAMA}",
    "interleaved": f"{PP} pipeline.schedule=interleaved pipeline.stages_per_rank=2 memory.recompute=stage",
    "zb-h1 tp": f"{PP} pipeline.schedule=zb-h1 mesh.tp=2 memory.recompute=selective model.dropout=0.1",
    "zb-h2 ring": f"{PP} pipeline.schedule=zb-h2 {RING}",
    "zb-v adapters": f"{PP} pipeline.schedule=zb-v lora.rank=4 {LLAMA}",
    "adapters with magnitudes": f"mesh.tp=2 lora.rank=4 lora.dora=true lora.dropout=0.1 lora.targets=['*'] {LLAMA}",
    "adapters zero3": f"{ZERO3} lora.rank=4 lora.targets=['*'] {PACKED}",
    "gloo ddp": f"{DDP} comm.backend=gloo",
    "gloo zero3 tp": f"{ZERO3} mesh.tp=2 tensor_parallel.sequence=true comm.backend=gloo",
    "gloo experts": f"mesh.ep=2 moe.experts=4 {LLAMA} comm.backend=gloo",
    "gloo ring pipeline": f"{RING} {PP} comm.backend=gloo",
    "gloo table of rings": f"{ZERO3} mesh.tp=2 {THREE} comm.backend=gloo comm.algorithms=ring.json",
    "gloo table of rings ddp": f"{DDP} {PP} {THREE} comm.backend=gloo comm.algorithms=ring.json",
    "gloo table of doubling": f"{ZERO3} {THREE} comm.backend=gloo comm.algorithms=doubling.json",
    "gloo table of doubling 2d": "mesh.tp=4 tensor_parallel.kind=2d comm.backend=gloo comm.algorithms=doubling.json",
    "gloo table of rings 2d": "mesh.tp=4 tensor_parallel.kind=2d comm.backend=gloo comm.algorithms=ring.json",
    "gloo rabenseifner": f"{DDP} {THREE} comm.backend=gloo comm.algorithms=rabenseifner.json",
    "hierarchical ddp": f"{DDP} comm.backend=hierarchical",
    "shm+mpi zero3 tp": f"{ZERO3} mesh.tp=2 comm.backend=shm+mpi",
    "mpi zero3": f"{ZERO3} comm.backend=mpi",
    "mpi ulysses": f"{RING} context_parallel.kind=ulysses comm.backend=mpi",
    "pipedream": f"{PP} pipeline.schedule=pipedream pipeline.micro_batches=1 {OLD}",
    "pipedream-2bw": f"{PP} pipeline.schedule=pipedream-2bw {OLD}",
}
COUNTERS = ("schedule:", "first bucket", "later bucket", "gradients ", "cross-entropy over a split vocabulary")
REFUSED = ("pipedream", "pipedream-2bw")  # old weights, which a single process never uses


def recipes():
    """Names, and the words of the command line."""
    for name, keys in RECIPES.items():
        values = dict(word.split("=", 1) for word in (BASE + " " + keys).split())  # a later key replaces an earlier one
        yield name, [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    for path in sorted((recipe_values.ROOT / "recipes").glob("*.toml")):
        yield path.name, [str(path)]


def paths_of(output, head):
    """{name: count} of the line that begins with `head`."""
    found = re.search(rf"^{head}: (.*)$", output, re.M)
    parts = [part.strip().rsplit(" ", 1) for part in found.group(1).split(",")] if found else []
    return {name: int(count) for name, count in parts}


def prove(runner, words):
    """Exit code and output. Ranks over MPI are started by its own launcher."""
    ranks = math.prod(int(word.split("=")[1]) for word in words if word.startswith("mesh."))
    mpi = any(word in ("comm.backend=mpi", "comm.backend=shm+mpi") for word in words)
    return runner.run(["prove", *words], mpi_launcher(ranks) if mpi else [])


def table(runner, only):
    """Proves every recipe. Returns whether all hold."""
    good = True
    for name, words in recipes():
        if only not in name:
            continue
        code, output = prove(runner, words)
        own, proof = paths_of(output, "own paths"), paths_of(output, "paths")
        missing = own.keys() - proof.keys()
        expected = code == 2 if name in REFUSED else code == 0 and own and proof and not missing
        good &= bool(expected)
        verdict = {0: "holds", 2: "refused", None: "NOT DONE"}.get(code, "FAILS")
        print(f"{name:32} {verdict:8} {'' if expected else '** '}{'' if code == 0 else first_error(output)}")
        if own:
            print(f"    run     {', '.join(f'{path} {count}' for path, count in own.items())}")
            print(f"    proof   {', '.join(f'{path} {count}' for path, count in proof.items())}")
            print(f"    missing {', '.join(sorted(missing)) or 'none'}")
        sys.stdout.flush()
    return good


def is_counter(path):
    """Whether a path has no result of floating point that a factor could change."""
    return path.startswith(COUNTERS) or any(dtype in path for dtype in ("int64", "uint8", "int32", "boolean"))


def plant(runner, only, often):
    """Plants a factor in each path of the proofs, in one recipe or in all. Returns whether each was noticed."""
    caught, unnoticed = set(), []
    for name, words in recipes():
        if only not in name or name in REFUSED:
            continue
        for path in paths_of(prove(runner, words)[1], "paths"):
            if is_counter(path) or path in caught and not often:
                continue
            factor = 1.2 if "bf16" in path or "bf16" in name else 1.01
            code, output = prove(runner, [*words, "--plant", f"{path}={factor}"])
            error = first_error(output)
            names_tensor = re.match(r"\[prove\] .*(gradient|update|loss|norm)", error) and "is taken" not in error
            good = code == 6 and bool(names_tensor)
            if good:
                caught.add(path)
            else:
                unnoticed.append(f"{path} ({name})")
            verdict = "caught" if good else f"NOT CAUGHT ({code})"
            print(f"{path:44} {factor:<5} {verdict}  {name}: {error[:150]}", flush=True)
    print(f"\n{len(caught)} paths caught; not caught: {'; '.join(unnoticed) or 'none'}")
    return not unnoticed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", required=True)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--often", action="store_true", help="with --plant: in every recipe that takes the path")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/paths_of_recipes"))
    parser.add_argument("--timeout", type=float, default=300)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    runner = Runner(arguments.caravan, arguments.work.resolve(), arguments.timeout)
    recipe_values.write_algorithms(runner.work)
    if arguments.plant:
        good = plant(runner, arguments.only, arguments.often)
    else:
        good = table(runner, arguments.only)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
