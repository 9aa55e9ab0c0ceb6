#!/usr/bin/env python3
"""Measures the time from exec to the log line of step 1: `caravan train` and PyTorch's DDP under torchrun.

  start_time.py [--runs 7] [--ranks 2]

Both train a tiny GPT-2 (2 layers, width 64, bytes) on CPU, in alternation. Caravan's token cache is warm. Needs a Python with
torch, and the program built (./caravan --help). Prints the median and the spread of each, in seconds.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
DDP = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(1)
torch.set_num_threads(1)
layer = nn.TransformerEncoderLayer(64, 2, 256, batch_first=True, norm_first=True, dropout=0.0)
model = nn.Sequential(nn.Embedding(256, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 256))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = torch.randint(0, 256, (8, 257))
loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
loss.backward()
optimizer.step()
if dist.get_rank() == 0: print("step 1/1", loss.item(), flush=True)
dist.destroy_process_group()
"""


def seconds_to_step_1(command, folder, environment):
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    elapsed = None
    for line in process.stdout:
        if line.startswith("step 1/") and elapsed is None:
            elapsed = time.monotonic() - begin
    error = process.stderr.read()
    if process.wait() != 0 or elapsed is None:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{error}")
    return elapsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/caravan")
    arguments = parser.parse_args()
    settings = ("data.tokenizer=bytes model.layers=2 model.width=64 model.heads=2 model.context=256 train.global_batch=12 "
                "train.steps=1 sample.tokens=0").split()
    caravan = [arguments.program, "train", "--ranks", str(arguments.ranks)]
    for setting in settings:
        caravan += ["--set", setting]
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "ddp.py")
        script.write_text(DDP)
        pytorch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={arguments.ranks}", "--standalone", script]
        environment = os.environ | {"CARAVAN_HOME": str(ROOT), "CARAVAN_CACHE": str(pathlib.Path(folder, "cache"))}
        times = {"caravan train": [], "PyTorch DDP": []}
        seconds_to_step_1(caravan, folder, environment)  # fills the token cache
        for _ in range(arguments.runs):
            times["caravan train"].append(seconds_to_step_1(caravan, folder, environment))
            times["PyTorch DDP"].append(seconds_to_step_1(pytorch, folder, environment))
    for name, values in times.items():
        print(f"{name:14} median {statistics.median(values):.3f} s   from {min(values):.3f} to {max(values):.3f} ({len(values)} runs), {machine.processor_class()}")


if __name__ == "__main__":
    main()
