#!/usr/bin/env python3
"""Compares what `caravan train --dump DIR` wrote with an independent computation of the same step.

  check_dump.py DIR                    every DIR/step_N with Hugging Face transformers (PyTorch's autograd, fp32)
  check_dump.py DIR --against OTHER    with the dump of another run, such as one process

The error of a gradient is |a - b| / (|b| + 1e-6 max|g| sqrt(n)), norms over its n elements, max|g| over the model.
Exit code 1 if any error exceeds --tolerance (default 1e-5) or, for --against, if batch or parameters of step 0 differ
in a bit. Needs torch, safetensors and (without --against) transformers. Of the losses of experts it knows
moe.balance_loss with moe.balance = "sequence": moe.z_loss and moe.capacity must be 0.
"""
import argparse
import json
import math
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file


def read(step):
    tensors = {name: load_file(step / f"{name}.safetensors") for name in ("batch", "parameters", "gradients")}
    return tensors | {"metrics": json.loads((step / "metrics.json").read_text())}


def balance_loss(config, router_logits, rows):
    """Caravan's balance loss: the sum over layers of the mean over sequences. transformers counts all of them together."""
    loss = 0
    for scores in router_logits:
        probabilities = scores.softmax(-1).unflatten(0, (rows, -1))
        chosen = probabilities.topk(config.num_experts_per_tok, -1).indices
        shares = torch.nn.functional.one_hot(chosen, probabilities.shape[-1]).float().mean((1, 2))
        loss += probabilities.shape[-1] * (shares * probabilities.mean(1)).sum(-1).mean()
    return config.router_aux_loss_coef * loss


def of_documents(step, config, batch):
    """What the model is given of rows of several documents, which do not see each other."""
    if "document_ids" not in batch:
        return {}
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        sys.exit(f"{step}: documents of a model with a sliding window are not checked: train with data.pack = \"none\"")
    documents = batch["document_ids"]
    length = documents.shape[1]
    is_seen = (documents[:, :, None] == documents[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(is_seen.shape).masked_fill(~is_seen, torch.finfo(torch.float32).min)[:, None]
    return {"attention_mask": mask, "position_ids": batch["position_ids"]}


def reference(step, dump):
    """The same step by transformers: loss as the mean over the targets of the global batch."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(step)
    ids = dump["batch"]["input_ids"]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(step / "config.json", folder)
        shutil.copy(step / "parameters.safetensors", pathlib.Path(folder) / "model.safetensors")
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(info["missing_keys"]) - tied or info["unexpected_keys"] or info["mismatched_keys"]:
        sys.exit(f"{step}: names differ from transformers: {info}")
    model.train()  # dropout is 0 in the checked modules; others must not be ignored silently
    model.get_input_embeddings().padding_idx = None  # of which it would leave out the gradient
    has_experts = hasattr(config, "router_aux_loss_coef")
    inputs = {"input_ids": ids, "use_cache": False} | of_documents(step, config, dump["batch"])
    added = 0
    if has_experts:  # not by the whole model, whose own balance loss takes no mask of four dims
        output = model.model(**inputs, output_router_logits=True)
        logits = model.lm_head(output.last_hidden_state)
        added = balance_loss(config, output.router_logits, len(ids))
    else:
        logits = model(**inputs).logits
    labels = dump["batch"]["labels"].flatten()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100)
    (loss + added).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for name, parameter in model.named_parameters():
            parameter.copy_(gradients[name])
        model.save_pretrained(folder)  # names of files, as in a dump: in memory experts are fused
        gradients = load_file(pathlib.Path(folder) / "model.safetensors")
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
    good = all(error <= tolerance for error in errors.values())  # a NaN is an error
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
