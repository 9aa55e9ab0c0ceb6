"""Draws random recipes of tiny models, of any key, for 2 to 8 ranks (random_recipes.py, random_resumes.py).

Sizes are drawn so that most recipes fit together; a part of them gets a key at random that may not."""

import random

from recipe_values import ALGORITHMS, STRUCTURE, VALUES, is_used, pipeline_table


class Draw:
    """One random recipe: `keys`, by name, and the number of `ranks`."""

    def __init__(self, rng: random.Random, folder, splits=None):
        self.rng, self.folder, self.keys = rng, folder, {}
        self.ranks = rng.choices([2, 3, 4, 5, 6, 7, 8], [25, 8, 30, 2, 10, 2, 23])[0]
        self.draw_mesh()
        self.draw_model()
        self.draw_batch()
        self.draw_data_parallel()
        self.draw_data()
        for key, (chance, values) in VALUES.items():
            if rng.random() < chance and is_used(key, self.keys):
                self.keys[key] = rng.choice(values)
        self.mend()
        if rng.random() < 0.04:  # one that may contradict the others
            key = rng.choice(sorted(VALUES.keys() | STRUCTURE.keys()))
            self.keys[key] = rng.choice(STRUCTURE[key] if key in STRUCTURE else VALUES[key][1])

    def maybe(self, chance):
        return self.rng.random() < chance

    def draw_mesh(self):
        """Gives each prime factor of the ranks to an axis."""
        rng, size = self.rng, {axis: 1 for axis in ("dp", "tp", "cp", "pp", "ep")}
        left = self.ranks
        if self.ranks in (4, 8) and self.maybe(0.25):
            size["tp"], left = rng.choice([4, self.ranks]), 1
            size[rng.choice(["dp", "cp", "pp"])] *= self.ranks // size["tp"]
        for prime in (2, 3, 5, 7):
            while left % prime == 0:
                size[rng.choices(list(size), [4, 2, 3, 3, 1])[0]] *= prime
                left //= prime
        if self.maybe(0.15):  # data parallelism alone
            size = {axis: self.ranks if axis == "dp" else 1 for axis in size}
        self.size = size
        for axis, count in size.items():
            if count > 1 and axis != "dp" or self.maybe(0.3):
                self.keys[f"mesh.{axis}"] = count
        if self.keys.get("mesh.dp") == size["dp"] and self.maybe(0.2):
            self.keys["mesh.dp"] = 0
        tp, cp, kinds = size["tp"], size["cp"], ["1d"]
        kinds += ["2d"] * 2 * (tp == 4) + ["2.5d"] * (tp in (4, 8)) + ["3d"] * 3 * (tp == 8)
        self.tensor = rng.choice(kinds) if size["ep"] == 1 else "1d"
        self.depth = 2 if tp == 8 else 1
        if tp > 1 and (self.tensor != "1d" or self.maybe(0.3)):
            self.keys["tensor_parallel.kind"] = self.tensor
        if self.tensor == "2.5d" and tp > 1:
            self.keys["tensor_parallel.depth"] = self.depth
        self.side = tp if self.tensor == "1d" else 2
        self.ulysses = 1
        if cp > 1:
            kind = rng.choice(["ring", "ulysses", "striped"] + ["both"] * 2 * (cp in (4, 6, 8)))
            self.ulysses = cp if kind == "ulysses" else rng.choice([2, cp // 2]) if kind == "both" else 1
            if kind != "ring" or self.maybe(0.5):
                self.keys["context_parallel.kind"] = kind
            if kind == "both":
                self.keys["context_parallel.exchange"] = self.ulysses

    def draw_model(self):
        rng, keys = self.rng, self.keys
        heads = self.side * self.ulysses
        heads *= rng.choice([1, 2]) if heads < 4 else 1
        heads = 2 * heads if heads < 2 else heads
        llama = self.maybe(0.5)
        keys["model.kind"] = "llama" if llama else "gpt2"
        keys["model.heads"] = heads
        keys["model.width"] = heads * rng.choice([each for each in (2, 4, 6, 8, 12) if 16 <= heads * each <= 48] or [4])
        if llama and self.maybe(0.5):
            keys["model.kv_heads"] = rng.choice([n for n in range(heads + 1) if n == 0 or heads % n == 0])
            if self.tensor != "1d" and keys["model.kv_heads"] % 2:
                keys["model.kv_heads"] = 0
        if self.tensor == "3d" and keys["model.width"] % 4:
            keys["model.width"] *= 2
        schedule = self.draw_schedule()
        stages = self.size["pp"] * self.chunks
        keys["model.layers"] = max(stages, rng.choice([1, 2, 3, 4]))
        if self.maybe(0.5) or llama and self.tensor != "1d":
            keys["model.hidden"] = rng.choice([32, 48] if self.tensor != "1d" else [24, 33, 48])
        pieces = self.size["cp"] * (2 if self.ulysses < self.size["cp"] else 1) * self.size["tp"]
        keys["model.context"] = pieces * max(1, rng.choice([8, 16, 24, 32]) // pieces)
        if self.maybe(0.2):
            keys["model.vocabulary"] = rng.choice([512, 521])
        if self.size["ep"] > 1 or self.maybe(0.12) and self.tensor == "1d":
            keys["moe.experts"] = self.size["ep"] * self.size["tp"] * rng.choice([1, 2])
            keys["moe.top_k"] = rng.randint(1, min(3, keys["moe.experts"]))
            keys.setdefault("model.hidden", 24)
        if self.maybe(0.15):
            keys["lora.rank"] = 4 if self.tensor == "3d" else rng.choice([2, 4])
        if schedule.startswith("pipedream"):
            keys |= {"optimizer.clip_norm": 0.0, "model.tie_embeddings": False}

    def draw_schedule(self):
        self.chunks, pp = 1, self.size["pp"]
        if pp == 1:
            return ""
        whole = all(self.size[axis] == 1 for axis in ("tp", "cp", "ep"))
        names = [name for name in STRUCTURE["pipeline.schedule"] if whole or not name.startswith("pipedream")]
        schedule = self.rng.choice(names + ["table"])
        self.micro_batches = self.rng.choice([1, 2, 3, 4, 5])
        if schedule == "interleaved":
            self.chunks, self.micro_batches = self.rng.choice([2, 2, 3]), pp * self.rng.choice([1, 2])
        if schedule == "zb-v":
            self.chunks = 2
        if schedule == "pipedream":
            self.micro_batches = 1
        if schedule == "pipedream-2bw":
            self.micro_batches += pp
        if self.chunks > 1 and (self.chunks > 2 or self.maybe(0.5)):
            self.keys["pipeline.stages_per_rank"] = self.chunks
        if schedule != "1f1b" or self.maybe(0.5):
            table = schedule == "table" and pipeline_table(self.folder, pp, self.micro_batches)
            self.keys["pipeline.schedule"] = table or schedule
        return schedule

    def draw_batch(self):
        tensor_rows = {"1d": 1, "2d": 2, "2.5d": 2 * self.depth, "3d": 4}[self.tensor] if self.size["tp"] > 1 else 1
        micro = tensor_rows * self.size["ep"] * self.rng.choice([1, 1, 2])
        count = self.micro_batches if self.size["pp"] > 1 else self.rng.choice([1, 1, 2, 3])
        self.keys["train.global_batch"] = micro * count * self.size["dp"]
        choice = self.rng.choice(["number", "number", "count", "auto", "all"])
        if choice == "count" and self.size["pp"] > 1:
            self.keys["pipeline.micro_batches"] = count
        elif choice == "number" or self.size["pp"] > 1 and "pipeline.schedule" in self.keys:
            self.keys["train.micro_batch"] = micro
        elif choice != "count":
            self.keys["train.micro_batch"] = {"auto": "auto", "all": 0}[choice]

    def draw_data_parallel(self):
        rng, keys, dp = self.rng, self.keys, self.size["dp"]
        alone = dp == self.ranks
        names = ["ddp"] * 3 + ["zero1", "zero2", "zero3", "zero3", "param_server"]
        names += ["param_server", "replicas"] * alone
        names += ["hsdp"] * 2 * (dp in (4, 6, 8))
        windows = keys.get("pipeline.schedule", "").startswith("pipedream")
        technique = "ddp" if windows else rng.choice(names)
        if technique != "ddp" or self.maybe(0.3):
            keys["data_parallel.technique"] = technique
        if technique == "hsdp":
            keys["data_parallel.shard"] = rng.choice([k for k in range(2, dp) if dp % k == 0])
        if technique == "param_server":
            if alone and self.maybe(0.8):
                keys["data_parallel.mode"] = rng.choice(STRUCTURE["data_parallel.mode"])
            if self.maybe(0.6):
                keys["data_parallel.servers"] = rng.choice(["all", rng.randint(1, dp)])
        if not windows and self.maybe(0.3):
            residual = ["powersgd", "topk"] * 2 * (technique in ("ddp", "hsdp"))
            keys["data_parallel.hook"] = rng.choice(["none"] + residual)

    def draw_data(self):
        rng, keys, at = self.rng, self.keys, self.folder
        tokenizer = rng.choice([{"train": 300}, {"train": 300}, "bytes", str(at / "tokenizer.json")])
        kind = rng.choice(["text", "texts", "folder", "pattern", "lines", "field", "bad", "packed", "sources", "chat"])
        if kind == "chat":
            tokenizer = str(at / "tokenizer.json")
            keys |= {"data.format": "chat", "data.chat_template": str(at / "template.jinja")}
        text = {"text": "text.txt", "texts": ["text.txt", "more.txt"], "folder": "texts", "pattern": "texts/*.txt",
                "lines": "lines.jsonl", "field": "lines.jsonl", "bad": "bad.jsonl", "packed": "packed.jsonl.gz",
                "chat": "chats.jsonl"}.get(kind)
        if kind == "sources":
            keys["data.sources"] = [{"path": str(at / "text.txt"), "weight": rng.choice([1, 3.5])},
                                    {"path": str(at / "lines.jsonl"), "weight": 2}]
        else:
            keys["data.text"] = [str(at / each) for each in text] if isinstance(text, list) else str(at / text)
        if kind == "field":
            keys["data.field"] = "meta.body"
        if kind != "chat" and (kind == "packed" or self.maybe(0.3)):
            keys["data.validation"] = str(at / ("lines.jsonl" if kind == "field" else "more.txt"))
        if kind != "chat" and self.maybe(0.3):
            keys["data.streaming"] = self.maybe(0.8)
        if self.maybe(0.4):
            keys["data.pack"] = rng.choice(["documents", "documents", "none"])
            tokenizer = {"train": 300} if tokenizer == "bytes" else tokenizer
        if self.maybe(0.3):
            keys["data.fill"] = rng.choice(["stream", "best_fit"])
            tokenizer = {"train": 300} if tokenizer == "bytes" else tokenizer
        keys["data.tokenizer"] = tokenizer
        keys["train.eval_batches"] = rng.choice([1, 1, 2, 0] if kind == "chat" else [1, 2])
        keys["train.steps"] = 3
        keys["init"] = self.maybe(0.08)
        keys["adapter"] = keys["init"] and "lora.rank" in keys and "moe.experts" not in keys and self.maybe(0.6)
        if kind == "bad":
            keys["data.skip_bad_lines"] = True

    def mend(self):
        """Resolves conflicts that would otherwise be drawn too often."""
        keys, rng = self.keys, self.rng
        windows = keys.get("pipeline.schedule", "").startswith("pipedream")
        asynchronous = keys.get("data_parallel.mode", "sync") != "sync"
        hook = keys.get("data_parallel.hook")
        if str(keys.get("data.text")).endswith("bad.jsonl"):
            keys["data.skip_bad_lines"] = True
        if windows:
            keys |= {"optimizer.clip_norm": 0.0, "model.tie_embeddings": False}
            keys.pop("moe.balance", None)
        if windows or asynchronous or hook in ("powersgd", "topk"):
            for key in ("precision.gradients", "precision.reduce", "precision.loss_scale"):
                keys.pop(key, None)
            if keys.get("precision.compute") == "fp16":
                keys["precision.compute"] = "bf16"
        if asynchronous and self.maybe(0.5):
            keys.pop("data_parallel.hook", None)
        if asynchronous:
            keys.pop("moe.balance", None)
        if keys.get("moe.balance") == "batch":
            keys.pop("moe.capacity", None)
        if keys.get("memory.recompute") == "stage" and self.size["pp"] == 1:
            keys["memory.recompute"] = "full"
        technique = keys.get("data_parallel.technique")
        if technique == "replicas":
            keys["comm.backend"] = "thread"
        if keys.get("data_parallel.share") == "on" and keys.get("comm.backend") not in (None, "auto", "shm", "thread"):
            keys["comm.backend"] = "shm"
        if keys.get("comm.backend") in ("gloo", "mpi") and self.maybe(0.5):
            keys["comm.algorithms"] = str(self.folder / f"{rng.choice(sorted(ALGORITHMS))}.json")
        if hook == "powersgd" or "moe.experts" in keys and self.size["tp"] > 1:
            keys["comm.threads_per_rank"] = 1
        if keys["optimizer.kind"] == "adamw":
            keys["optimizer.lr"] = rng.choice([1e-3, 1e-2])
        if keys.get("pipeline.cut") == "list":
            stages = self.size["pp"] * self.chunks
            counts = [1] * stages
            for _ in range(keys["model.layers"] - stages):
                counts[rng.randrange(stages)] += 1
            keys["pipeline.cut"] = counts
        if "optimizer.decay_fraction" in keys or "optimizer.final_lr_fraction" in keys:
            keys.setdefault("optimizer.schedule", "linear")
