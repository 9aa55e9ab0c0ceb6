"""A training step of GPT-2 under tensor parallelism by PyTorch's DTensor (parallelize_module, loss_parallel) on gloo. Run by torchrun
from bench/global_step.py; rank 0 prints one line of JSON: the ms of each step, of the slower rank, its own
processor time, and the losses.

  dtensor_step.py LAYERS WIDTH HEADS CONTEXT VOCABULARY ROWS_OF_A_RANK adamw|sgd STEPS
"""
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                               parallelize_module)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/python"))
import gpt

WARM_UP = 2
layers, width, heads, context, vocabulary, rows = map(int, sys.argv[1:7])
optimizer_name, steps = sys.argv[7], int(sys.argv[8])


class Block(gpt.Block):
    """Of the heads that this rank has, laid out [head][q|k|v], so that ColwiseParallel cuts between heads."""

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, -1, 3, width // heads).permute(3, 0, 2, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


gpt.Block = Block
dist.init_process_group("gloo")
torch.set_num_threads(1)
ranks = dist.get_world_size()
model = gpt.make(gpt.Size(layers, width, heads, context, vocabulary, rows))
plan = {"tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
for i in range(layers):
    plan |= {f"blocks.{i}.qkv": ColwiseParallel(), f"blocks.{i}.out": RowwiseParallel(),
             f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel()}
parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
model.head.weight = model.tokens.weight  # tied again after the split

# A fused optimizer refuses DTensors and tensors in one group.
groups = [{"params": [p for p in model.parameters() if isinstance(p, DTensor)]},
          {"params": [p for p in model.parameters() if not isinstance(p, DTensor)]}]
if optimizer_name == "adamw":
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
else:
    optimizer = torch.optim.SGD(groups, lr=1e-2, fused=True)

times, cpu, losses = [], [], []
for step in range(WARM_UP + steps):
    text = torch.randint(0, vocabulary, (rows * ranks, context + 1), generator=torch.Generator().manual_seed(step))
    ids, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    dist.barrier()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    with loss_parallel():
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append((loss.full_tensor() if isinstance(loss, DTensor) else loss).item())
    cpu.append((time.process_time() - cpu_begin) * 1e3)
    elapsed = torch.tensor((time.perf_counter() - begin) * 1e3)
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    times.append(elapsed.item())
if dist.get_rank() == 0:
    print(json.dumps({"ms": times[WARM_UP:], "cpu_ms": cpu[WARM_UP:], "losses": losses}), flush=True)
dist.barrier()
