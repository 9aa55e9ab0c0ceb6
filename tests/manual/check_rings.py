#!/usr/bin/env python3
"""Ring attention against one rank: gradients, loss and updates of three steps, with and without overlap.

  check_rings.py --caravan build/ci/bin/caravan [--work /tmp/rings]

ring and striped over cp 2, 3 and 4, and both over cp 4 (exchange 2), of packed documents, alone and in pipelines of two stages. In
fp32 every tensor agrees with that of one rank to 1e-5 in the first step (5e-5 in the later ones, which begin with
parameters that differ by roundings). In bf16 the distance to one rank in fp32 is at most twice that of one rank in
bf16. Needs numpy."""

import argparse
import itertools
import pathlib
import sys

import dumps
import recipe_values
from recipe_runs import LATER, TOLERANCE, Runner, first_error


def recipe(texts, kind):
    """A model small enough for a run in a second, whose sequences of 48 tokens hold several documents."""
    keys = {"model.kind": kind, "model.layers": 4, "model.width": 32, "model.heads": 4, "model.context": 48,
            "data.text": str(texts / "lines.jsonl"), "data.pack": "documents", "data.tokenizer": {"train": 300},
            "train.steps": 3, "train.global_batch": 4, "train.eval_batches": 1, "optimizer.kind": "sgd",
            "optimizer.lr": 0.2, "optimizer.warmup_steps": 0, "optimizer.clip_norm": 1.0, "sample.tokens": 0}
    return keys | ({"model.kv_heads": 2} if kind == "llama" else {})


def fp32_case(many, one):
    """The worst tensor and its error; whether all steps are within their tolerance."""
    good, worst, name = not dumps.first_difference(many[0], one[0]), 0.0, ""
    for step, (a, b) in enumerate(zip(many, one)):
        at, error = dumps.worst(dumps.step_errors(a, b, many[0] if step else None, one[0]))
        good &= error <= (LATER if step else TOLERANCE)
        if not error <= worst:
            worst, name = error, f"step {step}: {at}"
    return good, f"{worst:.1e}  {name}"


def total_error(ours, theirs):
    """The distance of all gradients together, which a few roundings in a small tensor do not decide."""
    square = sum(float(((ours[name].astype(float) - b) ** 2).sum()) for name, b in theirs.items())
    return (square / sum(float((b.astype(float) ** 2).sum()) for b in theirs.values())) ** 0.5


def bf16_case(many, one, exact):
    """The ratio of two distances to fp32, of all ranks in bf16 and of one rank in bf16, in the first step."""
    ours, theirs = (total_error(each[0]["gradients"], exact[0]["gradients"]) for each in (many, one))
    floor = 0.02
    by_tensor = {name: error / max(other, 0.005) for (name, error), other in zip(
        dumps.tensor_errors(many[0]["gradients"], exact[0]["gradients"], floor).items(),
        dumps.tensor_errors(one[0]["gradients"], exact[0]["gradients"], floor).values())}
    name, worst = dumps.worst(by_tensor)
    text = f"{ours:.1e}, one rank {theirs:.1e}: {ours / theirs:.2f} times; {worst:.2f} times in {name}"
    return ours <= 2 * theirs, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/check_rings"))
    arguments = parser.parse_args()
    runner = Runner(arguments.caravan, arguments.work.resolve(), 120)
    texts = runner.work / "texts"
    recipe_values.write_texts(texts, runner.must)

    def dump(keys, ranks, folder):
        code, output, _, steps = runner.train(keys, ranks, runner.work / folder)
        if code != 0 or len(steps) != 3:
            print(f"{folder}: ended with {code}: {first_error(output)}", flush=True)
            return None
        return steps

    held = True
    for kind in ("gpt2", "llama"):
        base = recipe(texts, kind)
        one = {dtype: dump(base | {"precision.compute": dtype}, 1, f"{kind}_{dtype}_one") for dtype in ("fp32", "bf16")}
        if None in one.values():
            sys.exit("the run of one rank does not work")
        splits = [("ring", 2), ("ring", 3), ("ring", 4), ("both", 4), ("striped", 2), ("striped", 3), ("striped", 4)]
        for (split, cp), pp, overlap, dtype in itertools.product(splits, (1, 2), (True, False), ("fp32", "bf16")):
            keys = base | {"mesh.cp": cp, "context_parallel.kind": split}
            keys |= {"comm.overlap": overlap, "precision.compute": dtype}
            keys |= {"context_parallel.exchange": 2} if split == "both" else {}
            keys |= {"mesh.pp": pp, "pipeline.micro_batches": 2} if pp > 1 else {}
            name = f"{kind} {split} cp {cp} pp {pp} overlap {str(overlap).lower()} {dtype}"
            steps = dump(keys, cp * pp, name.replace(" ", "_"))
            if steps is None:
                held = False
                continue
            if dtype == "fp32":
                good, text = fp32_case(steps, one["fp32"])
            else:
                good, text = bf16_case(steps, one["bf16"], one["fp32"])
            held &= good
            print(f"{name:44} {'held' if good else 'NOT HELD':9} {text}", flush=True)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
