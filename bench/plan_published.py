#!/usr/bin/env python3
"""What `caravan plan` predicts for recipes with the shapes of published data-parallel runs, beside what these took.

  plan_published.py FILE.csv [--caravan build/release/bin/caravan] [--match WORD] [--every N]

FILE.csv is a table of published runs (docs/plan.md). Those on one axis, of dp, with fused attention and no compiler
become recipes: the same model, batch, ZeRO stage and recomputation on the same preset. They are other programs, with
kernels of their own, so this is no test of a prediction. Prints each ratio of plan and run, and their median and ninth
decile, for contexts up to 4096 and longer ones: attention kernels differ most.
"""
import argparse
import csv
import pathlib
import statistics
import subprocess

import planned

ROOT = pathlib.Path(__file__).resolve().parent.parent


def is_data_parallel(row):
    return (all(row.get(axis) in ("", "1") for axis in ("tp", "pp", "cp")) and row.get("step_s") and row.get("num_gpus")
            and row.get("arch") in ("mpt", "gpt", "llama") and row.get("flash_attn") == "Y"
            and "compile" not in row["framework"])


def keys_of(row):
    is_llama = row["arch"] == "llama"
    zero = row["zero_stage"] or "0"
    keys = {"model.kind": "llama" if is_llama else "gpt2", "model.layers": row["layers"], "model.width": row["hidden"],
            "model.heads": row["heads"], "model.context": row["seq"], "model.vocabulary": row["vocab"],
            "model.tie_embeddings": "true" if row["tied_embeddings"] == "Y" else "false",
            "train.global_batch": row["global_batch"], "train.micro_batch": row["micro_batch"],
            "precision.compute": "bf16", "precision.gradients": "fp32" if "fp32" in row["precision"] else "bf16",
            "data_parallel.technique": "ddp" if zero == "0" else f"zero{zero}",
            "memory.recompute": row["recompute"] or "none"}
    if is_llama:
        keys |= {"model.kv_heads": row["kv_heads"], "model.hidden": row["ffn"]}
    return keys


def plan(caravan, row):
    """Seconds of a step, or why there are none."""
    ranks = int(row["num_gpus"])
    per_host = min(ranks, int(row["gpus_per_node"] or 8))
    words = [caravan, "plan", "--hardware", row["hw"].strip("?"), "--per-host", str(per_host),
             "--hosts", str(-(-ranks // per_host)), "--seconds", "0.001"]
    if ranks > per_host and row["inter_gbps_per_gpu"]:
        words += ["--link", row["inter_gbps_per_gpu"] + "GB"]
    for key, value in keys_of(row).items():
        words += ["--set", f"{key}={value}"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    found = planned.of_recipe(result.stdout)
    if not found:
        return None, ((result.stderr or result.stdout).strip().splitlines() or ["no output"])[-1]
    return found[0], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--caravan", default=str(ROOT / "build/release/bin/caravan"))
    parser.add_argument("--match", default="")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    with open(options.file, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if is_data_parallel(row) and options.match in row["target_id"]]
    ratios = {"context up to 4096": [], "longer": []}
    for row in rows[::options.every]:
        seconds, error = plan(options.caravan, row)
        head = f"{row['target_id']:20} {row['model']:14} {row['num_gpus']:>5} x {row['hw']:10} context {row['seq']:>6}"
        if seconds is None:
            print(head, error)
            continue
        ratio = seconds / float(row["step_s"])
        ratios["longer" if int(row["seq"]) > 4096 else "context up to 4096"].append(ratio)
        print(f"{head}  ran {float(row['step_s']):8.3f} s, plan {seconds:8.3f} s: {ratio:.3f}", flush=True)
    for name, own in ratios.items():
        if own:
            errors = sorted(100 * abs(ratio - 1) for ratio in own)
            ninth = errors[round(0.9 * (len(errors) - 1))]
            print(f"{name}: {len(own)} runs, plan / run {statistics.median(own):.3f} in the median; error: median "
                  f"{statistics.median(errors):.1f} %, ninth decile {ninth:.1f} %")


if __name__ == "__main__":
    main()
