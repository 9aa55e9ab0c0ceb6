#!/usr/bin/env python3
"""Adapters against PEFT: needs peft and transformers. check_lora.py CARAVAN [--smollm2 [FOLDER]]

Trains adapters of a random GPT-2 and a random Llama on 2 ranks, then compares logits of PEFT's model with those of the
merged export, gradients of a dumped step with autograd's, and takes PEFT's own adapters in. --smollm2: of a model of
the size of SmolLM2-135M, or of the one in FOLDER."""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data/moby_dick.txt"


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def check(name, value, bound):
    print(f"  {name}: {value:.2e} {'holds' if value <= bound else 'DOES NOT HOLD'} ({bound:.0e})")
    if value > bound:
        sys.exit(1)


# Keys of our recipe, and settings of PEFT's LoraConfig.
KINDS = {
    "plain": ([], {}),
    "rslora": (["lora.rslora=true"], {"use_rslora": True}),
    "dora": (["lora.dora=true"], {"use_dora": True}),
}


def configs(size):
    if size is not None:
        yield "smollm2", LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                     num_key_value_heads=3, vocab_size=49152, rope_theta=100000, tie_word_embeddings=True,
                                     max_position_embeddings=2048), ["q_proj", "v_proj"], ["query", "value"]
        return
    yield "gpt2", GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=512, resid_pdrop=0, embd_pdrop=0,
                             attn_pdrop=0), ["c_attn", "c_fc"], ["query", "value", "up"]
    yield "llama", LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                               num_key_value_heads=2, vocab_size=512, max_position_embeddings=64), \
        ["q_proj", "v_proj", "down_proj"], ["query", "value", "mlp.down"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("caravan")
    parser.add_argument("--smollm2", nargs="?", const="", default=None)
    arguments = parser.parse_args()

    def caravan(*words):
        done = subprocess.run([arguments.caravan, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"caravan {words} ended with {done.returncode}:\n{done.stderr}")

    for kind, (name, config, theirs, ours) in itertools.product(KINDS, list(configs(arguments.smollm2))):
        keys, settings = KINDS[kind]
        print(name, kind)
        work = pathlib.Path(tempfile.mkdtemp())
        base = work / name
        if arguments.smollm2:
            base = pathlib.Path(arguments.smollm2)
        else:
            torch.manual_seed(1)
            AutoModelForCausalLM.from_config(config).save_pretrained(base)
            caravan("tokenizer", "train", TEXT, "--vocabulary", 512, "--out", base / "tokenizer.json")
        run, dump = work / f"{name}-run", work / f"{name}-dump"
        sets = [f"train.init_from={base}", "lora.rank=4", "lora.alpha=8", f"lora.targets={ours}", f"data.text={TEXT}",
                "train.global_batch=4", "sample.tokens=0", "train.eval_batches=1", "model.context=64", "optimizer.lr=1e-2", *keys]
        common = [word for key in sets for word in ("--set", key)]
        caravan("train", "--ranks", 2, *common, "--set", "train.steps=3", "--set", f"checkpoint.dir={run}",
                "--dump", dump, "--dump-steps", "2")
        caravan("export", run, "--adapter", "--base", base)
        caravan("export", run)
        ids = torch.arange(128).view(2, 64) * 3 % 512
        with torch.no_grad():
            peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run / "adapter")
            merged = AutoModelForCausalLM.from_pretrained(run / "huggingface")
            plain = AutoModelForCausalLM.from_pretrained(base)(ids).logits
            want = merged(ids).logits
            assert relative(want, plain) > 1e-4, "the adapters do nothing"
            check("logits of PEFT and of the merged export", relative(peft(ids).logits, want), 1e-5)

        # The gradients of the last step, computed from the parameters before it.
        step = dump / "step_2"
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run / "adapter", is_trainable=True)
        before = load_file(step / "parameters.safetensors")
        parameters = {in_file(n): p for n, p in model.named_parameters()}
        for key, value in before.items():
            if "lora_" in key:
                parameters[key].data.copy_(value)
        batch = load_file(step / "batch.safetensors")
        logits = model(batch["input_ids"]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        gradients = load_file(step / "gradients.safetensors")
        assert gradients.keys() == {key for key in before if "lora_" in key}
        worst = max(relative(gradients[key], wanted(parameters[key].grad, gradients[key])) for key in gradients)
        check("gradients", worst, 1e-5)

        own = get_peft_model(AutoModelForCausalLM.from_pretrained(base),
                             LoraConfig(r=6, lora_alpha=9, target_modules=theirs, task_type="CAUSAL_LM", **settings))
        for key, value in own.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(value, std=0.02)
        own.save_pretrained(work / f"{name}-own")
        taken = work / f"{name}-taken"
        sets = [key for key in sets if key not in keys]
        sets[1:4] = [f"lora.adapter={work / f'{name}-own'}", "optimizer.lr=0", "train.steps=1"]
        caravan("train", "--ranks", 2, *[word for key in sets if key != "optimizer.lr=1e-2" for word in ("--set", key)],
                "--set", f"checkpoint.dir={taken}")
        caravan("export", taken)
        caravan("import", base, "--adapter", work / f"{name}-own", "--out", work / f"{name}-imported")
        caravan("export", work / f"{name}-imported")
        with torch.no_grad():
            want = own(ids).logits
            for folder in (taken, work / f"{name}-imported"):
                got = AutoModelForCausalLM.from_pretrained(folder / "huggingface")(ids).logits
                check(f"PEFT's adapters in {folder.name}", relative(got, want), 1e-5)


def in_file(name):
    name = name.replace(".default", "")
    return name.removesuffix(".weight") if name.endswith("lora_magnitude_vector.weight") else name


def wanted(gradient, like):
    """Without the blocks outside of the diagonal, which separate adapters of query, key and value do not have."""
    return torch.where(like == 0, torch.zeros_like(gradient), gradient)


if __name__ == "__main__":
    main()
