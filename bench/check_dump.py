#!/usr/bin/env python3
"""Compares what `caravan train --dump DIR` wrote with an independent computation of the same step.

  check_dump.py DIR                    every DIR/step_N with Hugging Face transformers (PyTorch's autograd, fp32)
  check_dump.py DIR --against OTHER    with the dump of another run, such as one process

The error of a gradient is |a - b| / (|b| + 1e-6 max|g| sqrt(n)), norms over its n elements, max|g| over the model.
Exit code 1 if any error exceeds --tolerance (default 1e-5) or, for --against, if batch or parameters of step 0 differ
in a bit. Needs torch, safetensors and (without --against) transformers.
"""
import argparse
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file


def read(step):
    tensors = {name: load_file(step / f"{name}.safetensors") for name in ("batch", "parameters", "gradients")}
    return tensors | {"metrics": json.loads((step / "metrics.json").read_text())}


def reference(step, dump):
    """The same step by transformers: loss as the mean over the targets of the global batch."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(step)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float()
    missing, unexpected = model.load_state_dict(dump["parameters"], strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        sys.exit(f"{step}: names differ from transformers: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.train()  # dropout is 0 in what is checked here; what is not must not pass unnoticed
    logits = model(input_ids=dump["batch"]["input_ids"], use_cache=False).logits
    labels = dump["batch"]["labels"].flatten()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if name in dump["gradients"]}
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))
    return {"gradients": gradients, "metrics": {"loss": loss.item(), "grad_norm": norm}}


def compare(name, ours, theirs, tolerance):
    if ours["gradients"].keys() != theirs["gradients"].keys():
        sys.exit(f"{name}: not the same gradients: {ours['gradients'].keys() ^ theirs['gradients'].keys()}")
    largest = max(g.abs().max().item() for g in theirs["gradients"].values())
    errors = {}
    for key, b in theirs["gradients"].items():
        a = ours["gradients"][key]
        if a.shape != b.shape:
            sys.exit(f"{name}: {key} is {list(a.shape)}, not {list(b.shape)}")
        difference = (a.double() - b.double()).norm().item()
        errors[key] = difference / (b.double().norm().item() + 1e-6 * largest * math.sqrt(b.numel()))
    for key in ("loss", "grad_norm"):
        a, b = ours["metrics"][key], theirs["metrics"][key]
        errors[key] = abs(a - b) / abs(b)
    worst = max(errors, key=errors.get)
    good = all(error <= tolerance for error in errors.values())  # a NaN is not good
    print(f"{name}: {len(errors)} values, worst {errors[worst]:.2e} ({worst}), loss {errors['loss']:.2e}, "
          f"norm {errors['grad_norm']:.2e}  {'held' if good else 'NOT HELD'}")
    return good


def same_bits(name, ours, theirs):
    good = True
    for part in ("batch", "parameters"):
        different = [key for key in theirs[part] if not torch.equal(ours[part].get(key, torch.empty(0)), theirs[part][key])]
        if different:
            print(f"{name}: {part} differ: {different[:3]}  NOT HELD")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    steps = sorted(arguments.dir.glob("step_*"), key=lambda path: int(path.name[5:]))
    if not steps:
        sys.exit(f"{arguments.dir} holds no step_N")
    good = True
    for step in steps:
        ours = read(step)
        theirs = read(arguments.against / step.name) if arguments.against else reference(step, ours)
        good &= compare(str(step), ours, theirs, arguments.tolerance)
        if arguments.against and step.name == "step_0":
            good &= same_bits(str(step), ours, theirs)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
