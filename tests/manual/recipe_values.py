"""The keys of a recipe with values to draw, where each is used, and the texts that random recipes train on."""

import functools
import gzip
import json
import pathlib
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARALLEL = ("mesh.", "data_parallel.", "tensor_parallel.", "context_parallel.", "pipeline.", "comm.", "memory.",
            "train.micro_batch", "checkpoint.", "sample.", "log.")

# Keys whose values are drawn without regard to the others, with the chance that a recipe has the key.
VALUES = {
    "model.norm_epsilon": (0.1, [1e-5, 1e-3]), "model.rope_theta": (0.2, [100.0, 10000.0]),
    "model.qkv_bias": (0.3, [True, False]), "model.tie_embeddings": (0.5, [True, False]),
    "model.dropout": (0.35, [0.0, 0.1, 0.5]), "moe.gates": (0.5, ["softmax", "sigmoid"]),
    "moe.normalize": (0.4, [True, False]), "moe.shared": (0.4, [0, 12, 24]), "moe.shared_gate": (0.6, [True, False]),
    "moe.capacity": (0.25, [0.0, 0.75, 1.5]), "moe.balance_loss": (0.5, [0.0, 0.01, 0.5]),
    "moe.balance": (0.5, ["sequence", "batch"]), "moe.z_loss": (0.4, [0.0, 0.01]),
    "lora.targets": (0.7, [["query", "value"], ["*"], ["mlp.*"], ["attention.*", "blocks.0.mlp.up"], "output"]),
    "lora.experts": (0.4, [True, False]), "lora.alpha": (0.5, [4.0, 16.0]), "lora.rslora": (0.3, [True, False]),
    "lora.dropout": (0.3, [0.0, 0.2]),
    "lora.dora": (0.4, [True, False]), "lora.keep_frozen": (0.5, [True, False]),
    "lora.modules_to_save": (0.3, [[], ["embedding", "head"]]),
    "data.positions": (0.5, ["restart", "continue"]), "data.validation_fraction": (0.2, [0.1, 0.3]),
    "train.seed": (0.5, [0, 1, 77]), "train.eval_every": (0.5, [0, 1, 2]), "train.log_every": (0.2, [1, 2]),
    "optimizer.kind": (1, ["sgd"] * 4 + ["adamw", "lion"]), "optimizer.lr": (1, [0.05, 0.1, 0.3]),
    "optimizer.schedule": (0.6, ["constant", "cosine", "linear", "constant_then_decay", "inverse_square_root",
                                 "polynomial", "cosine_with_restarts"]),
    "optimizer.warmup_steps": (1, [0, 0, 1, 2]), "optimizer.final_lr_fraction": (0.3, [0.0, 0.5, 1.0]),
    "optimizer.decay_fraction": (0.5, [0.2, 0.7]), "optimizer.weight_decay": (0.5, [0.0, 0.1, 0.5]),
    "optimizer.skip_spikes": (0.3, [0.0, 0.5, 4.0]),
    "optimizer.groups": (0.4, [[], [{"parameters": ["*.bias"], "lr_factor": 0.5}],
                               [{"parameters": ["embedding.*"], "lr_factor": 0.1, "weight_decay": 0.0},
                                {"parameters": ["*"], "weight_decay": 0.2}]]),
    "optimizer.power": (0.5, [0.5, 2.0]), "optimizer.timescale": (0.5, [0, 3]),
    "optimizer.cycles": (0.5, [1, 2]), "optimizer.cycle_growth": (0.5, [1.0, 2.0]),
    "optimizer.clip_norm": (0.7, [0.0, 0.1, 1.0]), "optimizer.beta1": (0.4, [0.5, 0.9]),
    "optimizer.beta2": (0.4, [0.9, 0.99]), "optimizer.epsilon": (0.6, [1e-3, 1e-8]),
    "optimizer.momentum": (0.4, [0.0, 0.5, 0.9]),
    "precision.compute": (0.5, ["fp32"] * 2 + ["bf16", "bf16", "fp16"]),
    "precision.gradients": (0.25, ["fp32", "bf16"]),
    "precision.reduce": (0.3, ["auto", "fp32", "bf16", "fp16"]), "precision.loss_scale": (0.5, ["dynamic", 1, 256.0]),
    "comm.backend": (0.65, ["auto", "thread", "shm", "gloo", "mpi", "shm+gloo", "shm+mpi", "hierarchical"]),
    "comm.timeout_s": (0.3, [20.0, 30]), "comm.threads_per_rank": (0.3, [0, 1, 2]), "comm.check": (0.4, [True, False]),
    "comm.overlap": (0.6, [True, False]), "data_parallel.bucket_bytes": (0.6, [1, 512, 4096, 1 << 20]),
    "data_parallel.units": (0.3, [["blocks.*.mlp"], ["blocks.0.attention"], ["blocks.*.attention", "blocks.*.mlp"]]),
    "data_parallel.reshard_after_forward": (0.5, [True, False]), "data_parallel.prefetch": (0.6, [0, 1, 2]),
    "data_parallel.accumulate": (0.6, ["sharded", "full"]), "data_parallel.share": (0.6, ["auto", "on", "off"]),
    "data_parallel.hook_rank": (0.6, [1, 4, 64]), "data_parallel.hook_fraction": (0.7, [0.01, 0.5, 1.0]),
    "data_parallel.staleness": (0.6, [0, 1, 3]), "data_parallel.drain": (0.6, [1, 2, 50]),
    "tensor_parallel.sequence": (0.5, [True, False]), "pipeline.cut": (0.6, ["flops", "layers", "measured", "list"]),
    "pipeline.drain": (0.7, [1, 2, 50]),
    "tiling.tiles": (0.4, [2, 3, 5]), "tiling.modules": (0.5, [["*"], ["head"], ["blocks.*.mlp.*", "embedding.token"]]),
    "offload.optimizer": (0.3, ["none", "host", "disk"]), "offload.parameters": (0.3, ["none", "host", "disk"]),
    "offload.gradients": (0.3, ["none", "host", "disk"]), "offload.activations": (0.3, ["none", "host", "disk"]),
    "offload.prefetch": (0.3, [0, 1, 3]),
    # Not by chance: checkpoints and evaluations, which runs to compare with do without, then change results.
    "offload.delayed_update": (0, [True]), "offload.delay_after": (0, [0, 2]),
    "memory.recompute": (0.5, ["none", "selective", "full", "stage", ["blocks.0"], ["blocks.*.mlp"]]),
    "log.csv": (0.2, [True, False]), "log.tensorboard": (0.2, [True, False]), "checkpoint.every": (0.5, [0, 1, 2]),
    "checkpoint.keep": (0.3, [0, 1, 2]), "checkpoint.async": (0.3, [True, False]),
    "checkpoint.keep_best": (0.3, [True, False]), "sample.prompt": (0.3, ["Call me", "W"]),
    "sample.tokens": (1, [0, 0, 3]), "sample.every": (0.5, [0, 1, 2]), "sample.temperature": (0.3, [0.0, 0.7]),
    "sample.top_k": (0.3, [0, 5]), "sample.top_p": (0.3, [0.5, 1.0]), "data.skip_bad_lines": (0.2, [True, False]),
}
# Keys that the sizes below decide, with the values that should each be drawn.
STRUCTURE = {
    "model.kind": ["gpt2", "llama"], "data.format": ["text", "chat"], "data.streaming": [True, False],
    "data.pack": ["none", "documents"], "data.fill": ["stream", "best_fit"],
    "tensor_parallel.kind": ["1d", "2d", "2.5d", "3d"],
    "context_parallel.kind": ["ring", "ulysses", "both", "striped"],
    "data_parallel.technique": ["ddp", "zero1", "zero2", "zero3", "hsdp", "param_server", "replicas"],
    "data_parallel.hook": ["none", "powersgd", "topk"],
    "data_parallel.mode": ["sync", "async", "bounded"],
    "pipeline.schedule": ["1f1b", "gpipe", "naive", "interleaved", "zb-h1", "zb-h2", "zb-v", "pipedream",
                          "pipedream-2bw"],
}


@functools.cache
def defaults():
    """Every key of a recipe with its default: the default recipe lists them, some of them commented out."""
    section, keys = "", {}
    for line in (ROOT / "recipes/default.toml").read_text().splitlines():
        head = line.lstrip("# ").split("=")[0].strip()
        if line.startswith("["):
            section = line[1:line.index("]")]
        elif section and "=" in line and head.isidentifier():
            keys[f"{section}.{head}"] = tomllib.loads(line.lstrip("# "))[head]
    return keys


def all_keys():
    return list(defaults())


def default(key):
    return defaults()[key]


def is_used(key, recipe):
    """Whether the key has an effect together with the others. Otherwise it is refused."""
    get = recipe.get
    technique = get("data_parallel.technique", "ddp")
    is_async = get("data_parallel.mode", "sync") != "sync"
    gathered = technique != "ddp" and not is_async
    windows = get("pipeline.schedule", "1f1b").startswith("pipedream")
    experts = get("moe.experts", 0) > 0
    targets = get("lora.targets", ["query", "value"])
    adapts_experts = experts and get("lora.experts", True) and ("*" in targets or "mlp.*" in targets)
    conditions = {
        "model.rope_theta": get("model.kind") == "llama", "model.qkv_bias": get("model.kind") == "llama",
        "moe.shared_gate": experts and get("moe.shared", 0) > 0,
        "moe.balance": experts and get("moe.balance_loss", 0.01) > 0, "data.positions": get("data.pack") == "documents",
        "data.validation_fraction": "data.validation" not in recipe,
        "optimizer.final_lr_fraction": get("optimizer.schedule", "linear") not in ("constant",
                                                                                   "inverse_square_root"),
        "optimizer.power": get("optimizer.schedule") == "polynomial",
        "optimizer.timescale": get("optimizer.schedule") == "inverse_square_root",
        "optimizer.cycles": get("optimizer.schedule") == "cosine_with_restarts",
        "optimizer.cycle_growth": get("optimizer.schedule") == "cosine_with_restarts",
        "optimizer.decay_fraction": get("optimizer.schedule") == "constant_then_decay",
        "optimizer.momentum": get("optimizer.kind") == "sgd",
        "precision.loss_scale": get("precision.compute") == "fp16",
        "comm.overlap": get("mesh.tp", 1) > 1 or get("mesh.cp", 1) > 1,
        "data_parallel.units": technique != "ddp", "data_parallel.prefetch": gathered,
        "data_parallel.reshard_after_forward": technique in ("zero3", "hsdp"),
        "lora.keep_frozen": technique in ("zero3", "hsdp") and get("offload.parameters", "none") == "none",
        "lora.dora": (get("tensor_parallel.kind", "1d") == "1d" and get("tiling.tiles", 1) == 1
                      and not adapts_experts),
        "lora.dropout": not adapts_experts, "lora.experts": experts and targets != ["mlp.*"],
        "data_parallel.accumulate": gathered and technique != "zero1",
        "data_parallel.share": gathered and technique != "replicas",
        "data_parallel.hook_rank": get("data_parallel.hook") == "powersgd",
        "data_parallel.hook_fraction": get("data_parallel.hook") == "topk",
        "data_parallel.staleness": get("data_parallel.mode") == "bounded", "data_parallel.drain": is_async,
        "tensor_parallel.sequence": get("mesh.tp", 1) > 1 and get("tensor_parallel.kind", "1d") == "1d",
        "pipeline.cut": get("mesh.pp", 1) > 1, "pipeline.drain": windows, "sample.every": get("sample.tokens") != 0,
    }
    if key.startswith("moe.") and not experts or key.startswith("lora.") and get("lora.rank", 0) == 0:
        return False
    if key in ("optimizer.beta1", "optimizer.beta2"):
        return get("optimizer.kind") in ("adamw", "lion")
    if key == "optimizer.epsilon":
        return get("optimizer.kind") == "adamw"
    return conditions.get(key, True)


def write_texts(folder, caravan):
    """The texts, tokenizer, template and tables of recipes. `caravan` runs the program with the words it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = (ROOT / "data/moby_dick.txt").read_text()[:90_000]
    parts = [part.strip() for part in whole.split("\n\n") if part.strip()]
    third = len(parts) // 3
    (folder / "text.txt").write_text("\n\n".join(parts[:third]))
    (folder / "more.txt").write_text("\n\n".join(parts[third:2 * third]))
    (folder / "texts").mkdir(exist_ok=True)
    for number, begin in enumerate(range(0, third, third // 3)):
        (folder / f"texts/part_{number}.txt").write_text("\n\n".join(parts[begin:begin + third // 3]))
    lines = [json.dumps({"text": part, "meta": {"body": part[::-1]}}) for part in parts]
    (folder / "lines.jsonl").write_text("\n".join(lines))
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[third:]).encode(), mtime=0))
    (folder / "bad.jsonl").write_text("\n".join(lines[:third] + ['{"other": 1}', "no JSON"] + lines[third:2 * third]))
    chats = [{"messages": [{"role": "user", "content": ask[:40]}, {"role": "assistant", "content": reply[:60]}]}
             for ask, reply in zip(parts[::2], parts[1::2])]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    (folder / "template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}")
    if not (folder / "tokenizer.json").exists():
        caravan("tokenizer", "train", folder / "text.txt", "--vocabulary", 300, "--out", folder / "tokenizer.json")
    write_algorithms(folder)


# Algorithms of collectives, without "direct", which small messages of few ranks use anyway.
ALGORITHMS = {
    "ring": {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "broadcast": "chain",
             "reduce": "binomial"},
    "doubling": {"all_reduce": "recursive_doubling", "all_gather": "recursive_doubling", "broadcast": "binomial"},
    "rabenseifner": {"all_reduce": "rabenseifner"},
}


def write_algorithms(folder):
    """A file for comm.algorithms for each of ALGORITHMS."""
    for name, chosen in ALGORITHMS.items():
        verbs = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
        rules = [{"verb": verb, "algorithm": chosen.get(verb, "direct")} for verb in verbs]
        for rule in rules:
            rule |= {"segment_bytes": 4096} if rule["algorithm"] == "chain" else {}
        (folder / f"{name}.json").write_text(json.dumps({"format": "caravan selection table 1", "rules": rules}))


def pipeline_table(folder, ranks, micro_batches):
    """A file with a custom schedule: all forward passes, then all backward passes, those of weights at the end."""
    path = folder / f"table_{ranks}_{micro_batches}.txt"
    kinds = ("F", "B") if micro_batches % 2 else ("F", "B", "W")
    path.write_text("\n".join(f"rank {r}: " + " ".join(f"{kind}{r}.{m}" for kind in kinds for m in range(micro_batches))
                              for r in range(ranks)) + "\n")
    return str(path)


def to_toml(keys):
    """The recipe file of these keys."""
    def value(of):
        if isinstance(of, dict):
            return "{" + ", ".join(f"{name} = {value(each)}" for name, each in of.items()) + "}"
        if isinstance(of, list):
            return "[" + ", ".join(map(value, of)) + "]"
        return json.dumps(of)

    sections = {}
    for key, of in keys.items():
        if "." not in key:  # how the case is run
            continue
        section, name = key.split(".")
        sections.setdefault(section, []).append(f"{name} = {value(of)}")
    text = "\n\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items()) + "\n"
    tomllib.loads(text)
    return text


def without_parallelism(keys, more=()):
    """The same recipe for one rank: without the keys that say how a step is computed."""
    return {key: value for key, value in keys.items() if not key.startswith(PARALLEL + tuple(more))}
