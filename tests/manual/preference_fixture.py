"""Makes the fixture of the losses of preferences: a tiny Llama and its reference model, with what TRL's DPOTrainer computes.

    python tests/manual/preference_fixture.py       (needs torch, transformers 5, trl, datasets, safetensors)

tests/nn/fixtures/preference.safetensors holds, under Hugging Face names, `parameter.*`, `reference.*` (parameters of the
reference model), `ids` and `labels` (already shifted, -100 = no target) of pairs, chosen and rejected sequence after one
another, `log_probs` of the sequences under both models, and for each loss `NAME.loss`, `NAME.gradient.*`; `rewards` are
those of all sequences. Its metadata has the config.json. Computed in fp64, kept in fp32. TRL's loss, rewards and
gradients must agree. It has no label smoothing: `smoothed` is compared with its loss of both orders.
"""

import json
import pathlib
import tempfile

import torch
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from trl import DPOConfig, DPOTrainer

BETA = 0.3
SMOOTHING = 0.2
PROMPTS = [[3, 4, 5], [6, 7], [8, 2, 9, 10]]
CHOSEN = [[11, 12, 1], [13, 1], [5, 6, 7, 1]]
REJECTED = [[14, 1], [3, 15, 16, 2, 1], [17, 18, 1]]


def rms_norm_in_own_dtype(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


LlamaRMSNorm.forward = rms_norm_in_own_dtype


def model_of(seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=2, hidden_size=12, num_attention_heads=3, num_key_value_heads=1, intermediate_size=13,
        max_position_embeddings=12, vocab_size=19, tie_word_embeddings=False, rms_norm_eps=1e-5, bos_token_id=0,
        eos_token_id=1, pad_token_id=0, attn_implementation="sdpa")).double()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_scale = key.endswith("weight") and parameter.dim() == 1
            parameter.copy_((torch.randn(parameter.shape) * 0.3 + is_scale).float())  # exact in fp32
    return model


def batch():
    sequences = [(prompt, answer) for prompt, *pair in zip(PROMPTS, CHOSEN, REJECTED) for answer in pair]
    length = max(len(prompt) + len(answer) for prompt, answer in sequences) - 1
    ids = torch.zeros(len(sequences), length, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(sequences):
        tokens = torch.tensor(prompt + answer)
        ids[row, :len(tokens) - 1] = tokens[:-1]
        labels[row, len(prompt) - 1:len(tokens) - 1] = tokens[len(prompt):]
    return ids, labels


def log_probs(model, ids, labels):
    scores = torch.log_softmax(model(input_ids=ids).logits, -1)
    picked = scores.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (picked * (labels != -100)).sum(1)


def loss_of(kind, own, reference, labels):
    counts = (labels != -100).sum(1)
    ratios = own - reference
    if kind == "ipo":
        means = ratios / counts
        return ((means[0::2] - means[1::2] - 1 / (2 * BETA)) ** 2).mean()
    margin = BETA * (ratios[0::2] - ratios[1::2])
    smoothing = SMOOTHING if kind == "smoothed" else 0
    log_sigmoid = torch.nn.functional.logsigmoid
    return (-(1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin)).mean()


def trl_of(loss_type, model, reference, swaps=False):
    """Loss, rewards and gradients of TRL."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(19)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1", unk_token="w2")
    text = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    with tempfile.TemporaryDirectory() as folder:
        arguments = DPOConfig(output_dir=folder, beta=BETA, loss_type=[loss_type], report_to="none", use_cpu=True,
                              bf16=False, fp16=False, gradient_checkpointing=False)
        trainer = DPOTrainer(model=model, ref_model=reference, args=arguments, train_dataset=Dataset.from_list(text),
                             processing_class=tokenizer)
    pair = (REJECTED, CHOSEN) if swaps else (CHOSEN, REJECTED)
    examples = [{"prompt_ids": p, "chosen_ids": c, "rejected_ids": r} for p, c, r in zip(PROMPTS, *pair)]
    model.zero_grad()
    model.train()
    loss = trainer._compute_loss(model, trainer.data_collator(examples), return_outputs=False)
    loss.backward()
    metrics = {key: value[-1] for key, value in trainer._metrics["train"].items()}
    return loss.detach(), metrics, {key: parameter.grad.clone() for key, parameter in model.named_parameters()}


def agree(ours, theirs, what):
    distance = (ours - theirs).norm() / theirs.norm().clamp(min=1e-3)
    assert distance < 1e-5, f"{what}: {distance}"


def main():
    model, reference = model_of(1), model_of(2)
    with torch.no_grad():  # near the model, so that losses are neither 0 nor linear
        for own, other in zip(reference.parameters(), model.parameters()):
            own.copy_((other + 0.2 * (own - other)).float())
    ids, labels = batch()
    with torch.no_grad():
        reference_log_probs = log_probs(reference, ids, labels)
        rewards = BETA * (log_probs(model, ids, labels) - reference_log_probs)
        both = torch.stack([log_probs(model, ids, labels), reference_log_probs])
    tensors = {"ids": ids, "labels": labels, "log_probs": both, "rewards": rewards}
    for prefix, of in (("parameter.", model), ("reference.", reference)):
        tensors |= {prefix + key: parameter.detach().clone() for key, parameter in of.named_parameters()}
    for kind in ("dpo", "smoothed", "ipo"):
        model.zero_grad()
        loss = loss_of(kind, log_probs(model, ids, labels), reference_log_probs, labels)
        loss.backward()
        gradients = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
        tensors[kind + ".loss"] = loss.detach()
        tensors |= {f"{kind}.gradient.{key}": value for key, value in gradients.items()}
        their_loss, metrics, theirs = trl_of("ipo" if kind == "ipo" else "sigmoid", model, reference)
        if kind == "smoothed":
            turned_loss, _, turned = trl_of("sigmoid", model, reference, swaps=True)
            their_loss = (1 - SMOOTHING) * their_loss + SMOOTHING * turned_loss
            theirs = {key: (1 - SMOOTHING) * theirs[key] + SMOOTHING * turned[key] for key in theirs}
        agree(loss.detach(), their_loss, f"loss {kind}")
        for key, value in gradients.items():
            agree(value, theirs[key], f"gradient {kind} {key}")
        chosen, rejected = rewards[0::2], rewards[1::2]
        for name, value in (("chosen", chosen), ("rejected", rejected), ("margins", chosen - rejected),
                            ("accuracies", (chosen > rejected).double())):
            agree(value.mean(), torch.tensor(metrics["rewards/" + name], dtype=torch.float64), name)
        print(f"{kind}: loss {loss.item():.6f}, as TRL's; rewards {[round(r, 4) for r in rewards.tolist()]}")
    tensors = {key: (value if value.dtype == torch.int64 else value.float()).contiguous()
               for key, value in tensors.items()}
    model.config.architectures = [type(model).__name__]
    config = model.config.to_diff_dict()
    config.pop("dtype", None)
    to = pathlib.Path(__file__).parent.parent / "nn" / "fixtures" / "preference.safetensors"
    save_file(tensors, to, metadata={"config": json.dumps(config, sort_keys=True)})


main()
