#!/usr/bin/env python3
"""Compares optimizer.kind = "adafactor" with transformers.Adafactor on the gradients of a run.

  check_adafactor.py --caravan build/ci/bin/caravan

Trains small models on several layouts, and gives Adafactor of transformers the dumped gradients of each step.
Parameters agree to 1e-5 of their largest element."""

import argparse
import pathlib
import tempfile

import torch
from checks import Checks
from dumps import read_dump
from transformers.optimization import Adafactor

STEPS, LR, DECAY = 4, 0.02, 0.1
MODEL = ["model.kind=llama", "model.width=32", "model.heads=4", "model.kv_heads=2", "model.layers=2",
         "model.context=16", "model.tie_embeddings=false", "train.global_batch=8", "train.micro_batch=2",
         "data.tokenizer={train = 300}"]
RUN = [f"train.steps={STEPS}", "train.eval_batches=1", "sample.tokens=0", "optimizer.kind=adafactor",
       f"optimizer.lr={LR}", "optimizer.schedule=constant", "optimizer.warmup_steps=0", "optimizer.clip_norm=0",
       f"optimizer.weight_decay={DECAY}"]
LAYOUTS = {"one process": [], "ddp on 2": ["mesh.dp=2"],
           "zero3 on 2": ["mesh.dp=2", "data_parallel.technique=zero3"],
           "zero1 on 2 x tp 2": ["mesh.dp=2", "mesh.tp=2", "data_parallel.technique=zero1"],
           "pp 2": ["mesh.pp=2"]}
KINDS = {"plain": ([], {}),
         "other decay and threshold": (["optimizer.decay_exponent=0.5", "optimizer.clip_threshold=0.5",
                                        "optimizer.epsilon1=1e-8"],
                                       {"decay_rate": -0.5, "clip_threshold": 0.5, "eps": (1e-8, 1e-3)}),
         "momentum, scaled": (["optimizer.update_momentum=0.9", "optimizer.scale_by_parameter=true"],
                              {"beta1": 0.9, "scale_parameter": True})}


def adafactor_of(values, options):
    matrices = [value for value in values.values() if value.dim() == 2]
    vectors = [value for value in values.values() if value.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return Adafactor(groups, lr=LR, relative_step=False, warmup_init=False,
                     **{"scale_parameter": False, **options})


def largest_error(steps, options):
    """Of parameters after the last step, relative to the largest element of each."""
    values = {name: torch.tensor(value, requires_grad=True) for name, value in steps[0]["parameters"].items()}
    adafactor = adafactor_of(values, options)
    for step in steps[:-1]:
        for name, value in values.items():
            value.grad = torch.tensor(step["gradients"][name])
        adafactor.step()
    worst = 0.0
    for name, value in values.items():
        want = torch.tensor(steps[-1]["parameters"][name])
        worst = max(worst, ((value.detach() - want).abs().max() / want.abs().max()).item())
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default="build/ci/bin/caravan")
    checks = Checks(parser.parse_args().caravan)
    for layout, layout_keys in LAYOUTS.items():
        for kind, (kind_keys, options) in KINDS.items():
            name = f"{layout}, {kind}"
            with tempfile.TemporaryDirectory() as folder:
                dump = pathlib.Path(folder) / "dump"
                keys = MODEL + RUN + layout_keys + kind_keys + [f"checkpoint.dir={folder}/run"]
                words = [word for key in keys for word in ("--set", key)]
                done = checks.run("train", *words, "--dump", dump, "--dump-steps", f"0-{STEPS - 1}")
                steps = read_dump(dump) if done is not None else []
                if not steps:
                    checks.say(name, False)
                    continue
                error = largest_error(steps, options)
                checks.say(f"{name}: error {error:.1e}:", error < 1e-5)
    raise SystemExit(checks.has_failed)


if __name__ == "__main__":
    main()
