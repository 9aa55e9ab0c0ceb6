#!/usr/bin/env python3
"""Chats against transformers: check_chat.py CARAVAN. Needs transformers.

Trains a random Llama on chats over 2 ranks and dumps a step. Its batch must be a piece of what transformers' tokenizer
and chat template make of the same chats, with targets in the assistant's messages alone, and its loss and gradients
those of transformers on that batch."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data/moby_dick.txt"
TEMPLATES = {
    "chatml": "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\n"
              "You are helpful.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
              "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama2": "{{ bos_token }}{% for message in messages %}\n{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
              "{{ raise_exception('roles must alternate') }}{% endif %}\n{% if message['role'] == 'user' %}"
              "{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}\n{% else %}{{ ' ' + message['content'] | trim + ' ' "
              "+ eos_token }}{% endif %}\n{% endfor %}",
}


def stream(tokenizer, chats):
    """Ids of all chats, and whether each is the assistant's."""
    ids, marks = [], []
    for messages in chats:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        spans = []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                before = tokenizer.apply_chat_template(messages[:i], tokenize=False, add_generation_prompt=True)
                spans.append((len(before), len(tokenizer.apply_chat_template(messages[:i + 1], tokenize=False))))
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids += encoded["input_ids"]
        marks += [any(b <= start < e for b, e in spans) for start, _ in encoded["offset_mapping"]]
    return ids, marks


def main():
    caravan_program = sys.argv[1]

    def caravan(*words):
        done = subprocess.run([caravan_program, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"caravan {words} ended with {done.returncode}:\n{done.stderr}")

    random.seed(1)
    words = TEXT.read_text().split()
    chats = []
    for _ in range(400):
        chats.append([])
        for _ in range(random.randint(1, 3)):
            for role in ("user", "assistant"):
                at = random.randrange(len(words))  # short, so that no row of 64 tokens is in two places
                chats[-1].append({"role": role, "content": " ".join(words[at:at + random.randint(1, 12)])})
    for name, template in TEMPLATES.items():
        work = pathlib.Path(tempfile.mkdtemp())
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=600, max_position_embeddings=64)).save_pretrained(work)
        caravan("tokenizer", "train", TEXT, "--vocabulary", 512, "--out", work / "tokenizer.json")
        added = json.loads((work / "tokenizer.json").read_text())
        for token in ("<|im_start|>", "<|im_end|>", "<s>"):
            added["added_tokens"].append({"id": max(t["id"] for t in added["added_tokens"]) + 512, "content": token,
                                          "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False})
        for i, token in enumerate(added["added_tokens"][-3:]):
            token["id"] = 512 + i
        (work / "tokenizer.json").write_text(json.dumps(added))
        (work / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>",
             "chat_template": template}))
        (work / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        sets = [f"train.init_from={work}", f"data.text={work}/chats.jsonl", "data.format=chat", "train.global_batch=8",
                "train.steps=1", "sample.tokens=0", "train.eval_batches=1", "model.context=64", "data.fill=stream",
                f"checkpoint.dir={work}/run"]
        caravan("train", "--ranks", 2, *[word for key in sets for word in ("--set", key)], "--dump", work / "dump",
                "--dump-steps", "0")
        step = work / "dump/step_0"
        batch = load_file(step / "batch.safetensors")
        ids, marks = stream(AutoTokenizer.from_pretrained(work), chats)
        text = "," + ",".join(map(str, ids)) + ","
        for row_ids, row_labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist()):
            at = text.find("," + ",".join(map(str, row_ids)) + ",")
            assert at >= 0, f"{name}: a row is no piece of transformers' tokens"
            first = text[:at].count(",")
            want = [ids[first + t + 1] if marks[first + t + 1] else -100 for t in range(64)]
            assert want == row_labels, f"{name}: other targets"
        model = AutoModelForCausalLM.from_pretrained(work)
        loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).logits.flatten(0, 1),
                                                 batch["labels"].flatten())
        loss.backward()
        ours = json.loads((step / "metrics.json").read_text())["loss"]
        gradients = load_file(step / "gradients.safetensors")
        worst = max(((gradients[key] - p.grad).norm() / p.grad.norm()).item()
                    for key, p in model.named_parameters() if key in gradients)
        print(f"{name}: {sum(label != -100 for label in batch['labels'].flatten().tolist())} of 512 targets, loss {ours:.6f}, "
              f"transformers {loss.item():.6f}, worst gradient {worst:.1e}")
        assert abs(ours - loss.item()) < 1e-5 and worst < 1e-5


if __name__ == "__main__":
    main()
