#!/usr/bin/env python3
"""Compares optimizer.kind = "muon" with torch.optim.Muon (torch 2.9 and later) on the gradients of a run.

  check_muon.py --caravan build/ci/bin/caravan

Trains small models on several layouts, and gives torch's optimizers the dumped gradients of each step: Muon for the
matrices of layers, AdamW for the rest. torch orthogonalizes in bf16, which moves elements by up to 20 % of their
change; here it does so in fp32, so that parameters agree to 1e-5 of their largest element."""

import argparse
import pathlib
import tempfile
import unittest.mock

import torch
from checks import Checks
from dumps import read_dump

STEPS, LR, DECAY = 4, 0.02, 0.1
MODEL = ["model.kind=llama", "model.width=32", "model.heads=4", "model.kv_heads=2", "model.layers=2",
         "model.context=16", "model.tie_embeddings=false", "train.global_batch=8", "train.micro_batch=2",
         "data.tokenizer={train = 300}"]
RUN = [f"train.steps={STEPS}", "train.eval_batches=1", "sample.tokens=0", "optimizer.kind=muon", f"optimizer.lr={LR}",
       "optimizer.schedule=constant", "optimizer.warmup_steps=0", "optimizer.clip_norm=0",
       f"optimizer.weight_decay={DECAY}"]
LAYOUTS = {"one process": [], "ddp on 2": ["mesh.dp=2"],
           "zero3 on 2": ["mesh.dp=2", "data_parallel.technique=zero3"],
           "zero1 on 2 x tp 2": ["mesh.dp=2", "mesh.tp=2", "data_parallel.technique=zero1"]}


def is_matrix(name, tensor):
    return tensor.dim() == 2 and "embed" not in name and "lm_head" not in name


def optimizers_of(values):
    matrices = [value for name, value in values.items() if is_matrix(name, value)]
    tables = [value for name, value in values.items() if value.dim() == 2 and not is_matrix(name, value)]
    vectors = [value for value in values.values() if value.dim() < 2]
    groups = [{"params": tables, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, momentum=0.95, nesterov=True, ns_steps=5,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.98), eps=1e-8)]


def largest_error(steps):
    """Of parameters after the last step, relative to the largest element of each."""
    values = {name: torch.tensor(value, requires_grad=True) for name, value in steps[0]["parameters"].items()}
    optimizers = optimizers_of(values)
    with unittest.mock.patch.object(torch.Tensor, "bfloat16", lambda x: x):
        for step in steps[:-1]:
            for name, value in values.items():
                value.grad = torch.tensor(step["gradients"][name])
            for optimizer in optimizers:
                optimizer.step()
    worst = 0.0
    for name, value in values.items():
        want = torch.tensor(steps[-1]["parameters"][name])
        worst = max(worst, ((value.detach() - want).abs().max() / want.abs().max()).item())
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default="build/ci/bin/caravan")
    checks = Checks(parser.parse_args().caravan)
    for name, keys in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            dump = pathlib.Path(folder) / "dump"
            words = [word for key in MODEL + RUN + keys + [f"checkpoint.dir={folder}/run"] for word in ("--set", key)]
            done = checks.run("train", *words, "--dump", dump, "--dump-steps", f"0-{STEPS - 1}")
            steps = read_dump(dump) if done is not None else []
            if not steps:
                checks.say(name, False)
                continue
            error = largest_error(steps)
            checks.say(f"{name}: error {error:.1e}:", error < 1e-5)
    raise SystemExit(checks.has_failed)


if __name__ == "__main__":
    main()
