#!/usr/bin/env python3
"""Steps of PyTorch on one accelerator beside what `caravan plan` predicts for the same model.

  plan_device.py --measure OUT.json                    on the machine with the device: torch is all it needs
  plan_device.py OUT.json [--caravan build/release/bin/caravan] --hardware h100-80

Each model is written with torch.nn as users write it: linear layers, fused attention, a loss over all logits in fp32,
weights and activations in bf16, AdamW on weights in fp32. A step is micro-batches forward and backward and one update;
its time is the median of ten after three. The planner rehearses the steps of this library: what differs is chunks of
the loss, and that Python launches kernels more slowly than C++, which counts where they are short.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import planned

# name: keys of a recipe
MODELS = {
    "gpt 355 M": dict(kind="gpt2", layers=24, width=1024, heads=16, hidden=4096, context=1024, vocabulary=50304, micro=16,
                      rows=32),
    "llama 1.1 B": dict(kind="llama", layers=16, width=2048, heads=16, hidden=5632, context=2048, vocabulary=32000, micro=8,
                        rows=16),
    "llama 1.1 B recomputed": dict(kind="llama", layers=16, width=2048, heads=16, hidden=5632, context=2048,
                                   vocabulary=32000, micro=8, rows=16, recompute=True),
    "llama 2 layers of 8192": dict(kind="llama", layers=2, width=8192, heads=64, hidden=28672, context=4096,
                                   vocabulary=32000, micro=1, rows=2),
    "llama 6 layers of 4096": dict(kind="llama", layers=6, width=4096, heads=32, hidden=11008, context=2048,
                                   vocabulary=32000, micro=4, rows=16),
    "gpt small batch": dict(kind="gpt2", layers=12, width=768, heads=12, hidden=3072, context=512, vocabulary=50304, micro=2,
                            rows=4),
    "gpt small": dict(kind="gpt2", layers=12, width=768, heads=12, hidden=3072, context=1024, vocabulary=50304, micro=32,
                      rows=32),
}


def make(torch, config):
    nn, functional = torch.nn, torch.nn.functional
    is_llama = config["kind"] == "llama"
    width, heads, hidden = config["width"], config["heads"], config["hidden"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = (lambda: nn.RMSNorm(width)) if is_llama else (lambda: nn.LayerNorm(width))
            self.norm1, self.norm2 = norm(), norm()
            self.qkv = nn.Linear(width, 3 * width, bias=not is_llama)
            self.out = nn.Linear(width, width, bias=not is_llama)
            self.up = nn.Linear(width, hidden, bias=not is_llama)
            self.gate = nn.Linear(width, hidden, bias=False) if is_llama else None
            self.down = nn.Linear(hidden, width, bias=not is_llama)

        def rotated(self, x, cos, sin):
            first, second = x.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        def forward(self, x, cos, sin):
            rows, positions, _ = x.shape
            q, k, v = (part.view(rows, positions, heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
            if is_llama:
                q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(rows, positions, width))
            h = self.norm2(x)
            h = functional.silu(self.gate(h)) * self.up(h) if is_llama else functional.gelu(self.up(h), approximate="tanh")
            return x + self.down(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(config["vocabulary"], width)
            self.position = None if is_llama else nn.Embedding(config["context"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(config["layers"]))
            self.norm = nn.RMSNorm(width) if is_llama else nn.LayerNorm(width)
            self.head = nn.Linear(width, config["vocabulary"], bias=False)
            if not is_llama:
                self.head.weight = self.embedding.weight

        def forward(self, ids):
            x = self.embedding(ids)
            if self.position is not None:
                x = x + self.position.weight
            angles = torch.arange(ids.shape[1], device=ids.device)[:, None] / torch.logspace(
                0, 4, width // heads // 2, device=ids.device)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            for block in self.blocks:
                if config.get("recompute"):
                    x = torch.utils.checkpoint.checkpoint(block, x, cos, sin, use_reentrant=False)
                else:
                    x = block(x, cos, sin)
            logits = self.head(self.norm(x)).float()
            return functional.cross_entropy(logits.view(-1, logits.shape[-1]), ids.view(-1))

    return Net()


def measure(name, config):
    import torch
    import torch.utils.checkpoint
    torch.manual_seed(1)
    net = make(torch, config).to("cuda", torch.bfloat16)
    masters = [parameter.detach().float() for parameter in net.parameters()]
    optimizer = torch.optim.AdamW(masters, fused=True)
    ids = torch.randint(config["vocabulary"], (config["rows"], config["context"]), device="cuda")

    def step():
        for part in ids.split(config["micro"]):
            net(part).backward()
        with torch.no_grad():
            for master, parameter in zip(masters, net.parameters()):
                master.grad = parameter.grad.float()
                parameter.grad = None
            torch.nn.utils.clip_grad_norm_(masters, 1.0, foreach=True)
            optimizer.step()
            torch._foreach_copy_(list(net.parameters()), masters)

    for _ in range(3):
        step()
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    found = dict(name=name, seconds=statistics.median(times), spread=[min(times), max(times)],
                 bytes=torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()
    return found


def predicted(caravan, hardware, config):
    keys = [f"model.kind={config['kind']}", f"model.layers={config['layers']}", f"model.width={config['width']}",
            f"model.heads={config['heads']}", f"model.context={config['context']}", f"model.vocabulary={config['vocabulary']}",
            "model.dropout=0", f"train.global_batch={config['rows']}", f"train.micro_batch={config['micro']}",
            "precision.compute=bf16", "data.tokenizer=bytes", "optimizer.clip_norm=1"]
    keys.append(f"model.hidden={config['hidden']}")
    if config["kind"] == "llama":
        keys.append("model.tie_embeddings=false")
    if config.get("recompute"):
        keys.append("memory.recompute=full")
    plan = subprocess.run([caravan, "plan", "--hardware", hardware, "--seconds", "0.001",
                           *(word for key in keys for word in ("--set", key))], capture_output=True, text=True, check=False)
    found = planned.of_recipe(plan.stdout)
    if not found:
        raise SystemExit(plan.stderr or plan.stdout)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--measure")
    parser.add_argument("--caravan", default="build/release/bin/caravan")
    parser.add_argument("--hardware", default="h100-80")
    arguments = parser.parse_args()
    if arguments.measure:
        import torch
        found = dict(device=torch.cuda.get_device_name(), torch=torch.__version__, steps=[])
        for name, config in MODELS.items():
            found["steps"].append(measure(name, config))
            print(found["steps"][-1], flush=True)
            torch.cuda.empty_cache()
        pathlib.Path(arguments.measure).write_text(json.dumps(found, indent=1))
        return
    os.environ.setdefault("CARAVAN_HOME", str(pathlib.Path(__file__).resolve().parent.parent))
    measured = json.loads(pathlib.Path(arguments.file).read_text())
    print(f"{measured['device']}, torch {measured['torch']}")
    for step in measured["steps"]:
        seconds, memory = predicted(arguments.caravan, arguments.hardware, MODELS[step["name"]])
        print(f"  {1e3 * seconds:8.1f} ms predicted {1e3 * step['seconds']:8.1f} measured {seconds / step['seconds']:6.2f}"
              f"   {memory / 2**30:5.1f} GiB predicted {step['bytes'] / 2**30:5.1f} measured   {step['name']}")


if __name__ == "__main__":
    main()
