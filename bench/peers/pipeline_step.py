"""A training step of GPT-2 in two stages with torch.distributed.pipelining on gloo. Run by torchrun from bench/pipeline.py, prints
the median step of rank 0 in ms.

  pipeline_step.py LAYERS WIDTH HEADS CONTEXT VOCABULARY BATCH STEPS MICRO_BATCHES SCHEDULE [FIRST_STAGE_LAYERS]
"""
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/python"))
import gpt

layers, width, heads, context, vocabulary, batch, steps, micro_batches = map(int, sys.argv[1:9])
size = gpt.Size(layers, width, heads, context, vocabulary, batch)
first = int(sys.argv[10]) if len(sys.argv) > 10 else layers // 2


class Stage(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.is_first = rank == 0
        self.blocks = nn.ModuleList(gpt.Block(size) for _ in range(first if rank == 0 else layers - first))
        if self.is_first:
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        else:
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        if self.is_first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.is_first else self.head(self.norm(x))


dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
rank = dist.get_rank()
model = Stage(rank)
tied = model.tokens.weight if rank == 0 else model.head.weight
stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
kind = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}[sys.argv[9]]
loss = lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten())
schedule = kind(stage, micro_batches, loss_fn=loss)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
times = []
for _ in range(steps + 2):
    ids = torch.randint(0, vocabulary, (batch, context + 1))
    begin = time.perf_counter()
    schedule.step(ids[:, :-1]) if rank == 0 else schedule.step(target=ids[:, 1:])
    dist.all_reduce(tied.grad)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append((time.perf_counter() - begin) * 1e3)
dist.barrier()
if rank == 0:
    print(statistics.median(times[2:]), flush=True)
dist.barrier()
