#!/usr/bin/env python3
"""Makes the fixtures of tests/formats/peft_model_test.cpp: tiny models with adapters of PEFT, their logits and gradients.

    python tests/manual/peft_fixtures.py [NAME ..]    (needs torch, transformers 5, peft, safetensors)

Each tests/nn/fixtures/peft_NAME.safetensors holds `base.*` under Hugging Face names, `adapter.*` under the names of
PEFT's file, `gradient.*` (of the loss) under the same, `logits`, `loss`, `ids` and `labels`; its metadata holds the
config.json and the adapter_config.json. Computed in fp64, kept in fp32. The gradients of an embedding and a head that
are one table are both the sum of the two that PEFT has, whose copies are separate."""

import json
import pathlib
import sys
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "nn/fixtures"


class Norm(torch.nn.Module):
    """transformers computes RMSNorm in fp32."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def route(self, x):
    """transformers computes gates in fp32."""
    scores = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    gates, chosen = torch.topk(torch.softmax(scores, -1), self.top_k, dim=-1)
    return scores, gates / gates.sum(dim=-1, keepdim=True), chosen


def llama(tied=False, model=LlamaForCausalLM, config=LlamaConfig, **others):
    model = model(config(
        num_hidden_layers=2, hidden_size=12, num_attention_heads=2, num_key_value_heads=1, intermediate_size=14,
        max_position_embeddings=9, vocab_size=19, tie_word_embeddings=tied, rms_norm_eps=1e-5, rope_theta=500.0,
        attn_implementation="sdpa", **others))
    for layer in model.model.layers:
        layer.input_layernorm = Norm(layer.input_layernorm)
        layer.post_attention_layernorm = Norm(layer.post_attention_layernorm)
    model.model.norm = Norm(model.model.norm)
    return model


def mixtral():
    model = llama(False, MixtralForCausalLM, MixtralConfig, num_local_experts=4, num_experts_per_tok=2,
                  router_aux_loss_coef=0.0, experts_implementation="eager")
    for layer in model.model.layers:
        type(layer.mlp.gate).forward = route
    return model


def gpt2():
    return GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_embd=12, n_head=2, n_inner=14, n_positions=9, vocab_size=19, tie_word_embeddings=True, attn_pdrop=0,
        embd_pdrop=0, resid_pdrop=0, bos_token_id=1, eos_token_id=1, attn_implementation="eager"))


def file_name(name):
    name = name.replace(".default", "").replace(".modules_to_save", "")
    return name.removesuffix(".weight") if name.endswith("lora_magnitude_vector.weight") else name


def make(name, model, seed, **settings):
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        return
    torch.manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_scale = key.endswith("weight") and parameter.dim() == 1
            parameter.copy_((torch.randn(parameter.shape) * 0.3 + is_scale).float())  # exact in fp32
    tied = model.config.tie_word_embeddings
    with tempfile.TemporaryDirectory() as folder:  # in memory experts are fused
        model.save_pretrained(folder)
        base = load_file(pathlib.Path(folder) / "model.safetensors")
    config = model.config.to_diff_dict() | {"architectures": [type(model).__name__], "tie_word_embeddings": tied}
    config.pop("dtype", None)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)).double().train()
    trained = {file_name(key): p for key, p in adapted.named_parameters() if p.requires_grad}
    with torch.no_grad():
        saved = None
        for key, parameter in trained.items():
            noise = torch.randn(parameter.shape) * 0.2
            parameter.copy_((noise if "lora_A" in key or "lora_B" in key else parameter + noise).float())
            if tied and parameter.shape[0] == 19:  # the copies of one table
                saved = parameter.clone() if saved is None else parameter.copy_(saved)
    ids, labels = torch.randint(0, 19, (2, 7)), torch.randint(0, 19, (2, 7))
    labels[0, 2] = -100
    logits = adapted(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = {key: parameter.grad.clone() for key, parameter in trained.items()}
    tables = [key for key, parameter in trained.items() if tied and parameter.shape[0] == 19]
    for key in tables:
        gradients[key] = sum(trained[other].grad for other in tables)
    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(folder)
        settings = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
        adapters = load_file(pathlib.Path(folder) / "adapter_model.safetensors")
    assert adapters.keys() == gradients.keys(), adapters.keys() ^ gradients.keys()
    tensors = {"ids": ids, "labels": labels, "logits": logits.detach(), "loss": loss.detach()}
    for kind, values in (("base.", base), ("adapter.", adapters), ("gradient.", gradients)):
        tensors |= {kind + key: value for key, value in values.items()}
    tensors = {key: (t if t.dtype == torch.int64 else t.float()).contiguous() for key, t in tensors.items()}
    for key in ("auto_mapping", "base_model_name_or_path", "revision"):
        settings.pop(key, None)
    save_file(tensors, FOLDER / f"peft_{name}.safetensors",
              metadata={"config": json.dumps(config, sort_keys=True), "adapter": json.dumps(settings, sort_keys=True)})


ATTENTION = ["q_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

make("rslora", llama(), 1, r=3, lora_alpha=5, use_rslora=True, target_modules=ATTENTION + ["down_proj"])
make("dora", llama(), 2, r=3, lora_alpha=5, use_dora=True, target_modules=ATTENTION + ["k_proj"] + MLP)
make("dora_gpt2", gpt2(), 3, r=3, lora_alpha=5, use_dora=True, fan_in_fan_out=True,
     target_modules=["c_attn", "c_proj", "c_fc"])
make("saved", llama(), 4, r=3, lora_alpha=5, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
make("saved_tied", llama(tied=True), 5, r=3, lora_alpha=5, target_modules=["q_proj"],
     modules_to_save=["embed_tokens", "lm_head"])
make("all", llama(), 6, r=3, lora_alpha=5, use_rslora=True, use_dora=True, target_modules=ATTENTION + MLP,
     modules_to_save=["embed_tokens", "lm_head"])
make("experts", mixtral(), 7, r=3, lora_alpha=5, target_modules=ATTENTION,
     target_parameters=["gate_up_proj", "down_proj"])
make("experts_down", mixtral(), 8, r=3, lora_alpha=5, use_rslora=True, target_modules=[],
     target_parameters=["model.layers.1.mlp.experts.down_proj"])
make("experts_doubled", mixtral(), 9, r=3, lora_alpha=5, target_modules=["q_proj", "w1", "w2", "w3"])
