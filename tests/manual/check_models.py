#!/usr/bin/env python3
"""Architectures against transformers: check_models.py CARAVAN [NAME ..] (needs torch, transformers 5)

Saves a random model of each family, with its settings, as a Hugging Face folder; then compares, with transformers, 32
tokens of `generate --temperature 0` on 1 rank and, where the options are known, split over 2 and 4, and the logits of
`import` followed by `export`."""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from checks import Checks

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "tests/data/fixtures/llama3.json"
PROMPT = "Call me Ishmael. Some years ago"
MIXED = ["sliding_attention", "full_attention"]
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=0.5, high_freq_factor=2.0,
              original_max_position_embeddings=16)
LONGROPE = dict(rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.5, 2.0], long_factor=[1.5, 3.0, 4.0],
                original_max_position_embeddings=16)


def families():
    sizes = dict(num_hidden_layers=4, hidden_size=48, num_attention_heads=4, intermediate_size=56,
                 max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)

    def of(kind, config=None, **settings):
        return getattr(transformers, config or kind + "Config")(**(sizes | settings))

    grouped = dict(num_key_value_heads=2)
    yield "gpt2", transformers.GPT2Config(n_layer=4, n_embd=48, n_head=4, n_positions=64, bos_token_id=None,
                                          eos_token_id=None)
    yield "llama", of("Llama", rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True, head_dim=16, **grouped)
    yield "mistral", of("Mistral", sliding_window=7, head_dim=16, **grouped)
    yield "qwen2", of("Qwen2", use_sliding_window=True, sliding_window=7, max_window_layers=2, **grouped)
    yield "qwen3", of("Qwen3", head_dim=16, **grouped)
    yield "mixtral", of("Mixtral", num_local_experts=4, **grouped)
    yield "qwen2_moe", of("Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
                          shared_expert_intermediate_size=28, **grouped)
    yield "qwen3_moe", of("Qwen3Moe", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
                          norm_topk_prob=True, mlp_only_layers=[1], **grouped)
    yield "gemma", of("Gemma", head_dim=16, **grouped)
    yield "gemma2", of("Gemma2", head_dim=16, query_pre_attn_scalar=20, sliding_window=7, attn_logit_softcapping=2.0,
                       final_logit_softcapping=3.0, attn_implementation="eager", **grouped)
    yield "gemma3_text", of("Gemma3", "Gemma3TextConfig", head_dim=16, query_pre_attn_scalar=20, sliding_window=7,
                            layer_types=MIXED * 2, **grouped)
    yield "phi3", of("Phi3", rope_parameters=LONGROPE | dict(partial_rotary_factor=0.5), sliding_window=7,
                     original_max_position_embeddings=16, **grouped)
    yield "smollm3", of("SmolLM3", **grouped)
    yield "olmo2", of("Olmo2", num_key_value_heads=4)
    yield "gpt_neox", of("GPTNeoX", rope_parameters=dict(rope_type="default", rope_theta=500.0,
                                                         partial_rotary_factor=0.5))
    yield "opt", of("OPT", ffn_dim=56, dropout=0.0, word_embed_proj_dim=48)
    yield "bloom", transformers.BloomConfig(n_layer=4, n_head=4, hidden_size=48, seq_length=64, bos_token_id=None,
                                            eos_token_id=None)
    yield "falcon", of("Falcon", ffn_hidden_size=56, multi_query=True)


def watch_routers(model):
    """The margins, of each call, of a chosen expert's score over the next one's."""
    margins = []

    def watch(module, inputs, outputs):
        ordered = outputs[0].sort(dim=-1, descending=True).values
        if module.top_k < ordered.shape[-1]:
            margins.append((ordered[:, module.top_k - 1] - ordered[:, module.top_k]).min().item())

    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(watch)
    return margins


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("caravan")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--splits", nargs="*", default=[], help='options of generate, such as "--ranks 2 --tp 2"')
    arguments = parser.parse_args()
    checks = Checks(arguments.caravan)

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    ids = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=True).input_ids
    work = pathlib.Path(tempfile.mkdtemp())
    for name, config in families():
        if arguments.names and name not in arguments.names:
            continue
        config.vocab_size = (len(tokenizer) + 7) // 8 * 8
        model = AutoModelForCausalLM.from_config(config).eval()
        margins = watch_routers(model)
        for seed in range(7, 99):
            margins.clear()
            torch.manual_seed(seed)
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    is_scale = key.endswith("weight") and parameter.dim() == 1 and "Gemma" not in type(model).__name__
                    parameter.copy_(torch.randn(parameter.shape) * 0.3 + is_scale)
                wanted = model.generate(ids, max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0)
                logits = model(ids).logits
            if min(margins, default=1) > 1e-3:  # rounding must not choose other experts
                break
        folder = work / name
        model.save_pretrained(folder)
        shutil.copy(TOKENIZER, folder / "tokenizer.json")
        text = tokenizer.decode(wanted[0, ids.shape[1]:], skip_special_tokens=True)
        for split in ["", *arguments.splits]:
            line = checks.run("generate", folder, "--prompt", PROMPT, "--tokens", 32, "--temperature", 0, "--json",
                           *split.split())
            got = None if line is None else json.loads(line)["text"]
            checks.say(f"{name}: 32 tokens {split}", got == text)
            if got != text:
                print(f"  {got!r}\n  {text!r}")
        run, back = work / f"{name}_run", work / f"{name}_back"
        if checks.run("import", folder, "--out", run) is None or checks.run("export", run, "--out", back) is None:
            checks.say(f"{name}: export", False)
            continue
        attention = "eager" if name == "gemma2" else None
        with torch.no_grad():
            again = AutoModelForCausalLM.from_pretrained(back, attn_implementation=attention).eval()(ids).logits
        error = ((again - logits).norm() / logits.norm()).item()
        checks.say(f"{name}: logits after import and export, {error:.1e},", error < 1e-5)
    sys.exit(checks.has_failed)


if __name__ == "__main__":
    main()
