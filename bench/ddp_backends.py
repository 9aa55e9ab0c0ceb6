#!/usr/bin/env python3
"""Times a training step of PyTorch's DDP and FSDP2 on gloo and on caravan.

  ddp_backends.py [--size small] [--ranks 2] [--seconds 45] [--extension build/release/python] [--json FILE]

Each rank holds one model per variant: no communication ("alone"), DDP on gloo, on caravan, on caravan with its buckets in
shared memory, and the same three for FSDP2. In each round every variant runs one step, in an order that rotates, until
--seconds have passed. A step is timed from the barrier before it until the slowest rank has finished. One thread per rank,
fp32, AdamW. Prints median and quartiles in milliseconds, and the median over the rounds of caravan's time / gloo's time.
Run it with the Python whose torch caravan_c10d was built for (cmake -DCARAVAN_PYTHON=ON), on an idle machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {  # layers, width, heads, context, vocabulary, sequences of each rank
    "tiny": (4, 128, 4, 128, 512, 16),
    "small": (6, 384, 6, 256, 4096, 4),
}
KINDS = ("DDP", "FSDP2")
BACKENDS = ("gloo", "caravan", "caravan memory")
VARIANTS = [("alone", "")] + [(kind, backend) for kind in KINDS for backend in BACKENDS]


class Run:
    """One rank."""

    def __init__(self, size):
        import torch
        import torch.distributed as dist

        import caravan_c10d  # noqa: F401
        import gpt

        self.torch, self.dist, self.gpt = torch, dist, gpt
        torch.set_num_threads(1)
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("caravan", init_method="file://" + os.environ["BENCH_STORE"], rank=rank, world_size=world)
        self.groups = {"caravan": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
        self.size = gpt.Size(*SIZES[size])
        self.step_number = 0
        self.variants = {variant: self.make(*variant) for variant in VARIANTS}

    def make(self, kind, backend):
        torch = self.torch
        model = self.gpt.make(self.size)
        takes_memory = backend.endswith("memory")
        group = self.groups.get(backend.partition(" ")[0])
        if kind == "DDP":
            os.environ["DDP_DISABLE_COMM_MEM"] = "0" if takes_memory else "1"
            # The memory is used if the gradient is a view of the bucket; gloo gets it, too.
            model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        elif kind == "FSDP2":
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard

            mesh = DeviceMesh.from_group(group, "cpu")
            for module in [*model.blocks, model]:
                fully_shard(module, mesh=mesh)
                module.set_allocate_memory_from_process_group_for_comm(takes_memory)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self, variant):
        """Milliseconds of the slowest rank."""
        model, optimizer = self.variants[variant]
        # DDP rebuilds its buckets in the first steps.
        os.environ["DDP_DISABLE_COMM_MEM"] = "0" if variant[1].endswith("memory") else "1"
        self.dist.barrier()
        begin = time.perf_counter()
        self.gpt.loss_of(model, self.size, self.dist.get_rank(), self.step_number).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        elapsed = self.torch.tensor([1e3 * (time.perf_counter() - begin)])
        self.dist.all_reduce(elapsed, self.dist.ReduceOp.MAX)
        self.step_number += 1
        return elapsed.item()

    def measure(self, seconds):
        """The times of each variant, round by round; at least 3 rounds after a warm-up."""
        begin = time.monotonic()
        rounds = []
        while True:
            turn = len(rounds) % len(VARIANTS)
            rounds.append({variant: self.step(variant) for variant in VARIANTS[turn:] + VARIANTS[:turn]})
            goes_on = self.torch.tensor([int(time.monotonic() - begin < seconds or len(rounds) < 4)])
            self.dist.broadcast(goes_on, 0)
            if not goes_on.item():
                return rounds[1:]


def be_rank(arguments):
    run = Run(arguments.size)
    rounds = run.measure(arguments.seconds)
    if run.dist.get_rank() == 0:
        report(arguments, rounds, run.torch.__version__)
    run.dist.barrier()
    run.dist.destroy_process_group()


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(middle, 3), "low": round(low, 3), "high": round(high, 3)}


def report(arguments, rounds, torch_version):
    rows = []
    for kind, backend in VARIANTS:
        row = {"size": arguments.size, "ranks": arguments.ranks, "kind": kind, "backend": backend, "torch": torch_version,
               "rounds": len(rounds), "processor": machine.processor_class(), "step_ms": quartiles([each[kind, backend] for each in rounds])}
        if backend:
            row["over_gloo"] = quartiles([each[kind, backend] / each[kind, "gloo"] for each in rounds])
            row["over_alone"] = quartiles([each[kind, backend] / each["alone", ""] for each in rounds])
        rows.append(row)
    if arguments.json:
        pathlib.Path(arguments.json).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{arguments.size}, {arguments.ranks} ranks, {len(rounds)} rounds, torch {torch_version}, {machine.processor_class()}")
    print(f"{'':24}{'ms a step':>10}{'quartiles':>20}{'/ gloo':>9}{'/ alone':>9}")
    for row in rows:
        time_ms = row["step_ms"]
        print(f"{row['kind'] + ' ' + row['backend']:24}{time_ms['median']:10.1f}"
              f"{time_ms['low']:12.1f} -{time_ms['high']:6.1f}"
              + (f"{row['over_gloo']['median']:9.3f}{row['over_alone']['median']:9.3f}" if row["backend"] else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=45, help="of measuring, after the start")
    parser.add_argument("--extension", type=pathlib.Path, default=ROOT / "build/release/python")
    parser.add_argument("--json", help="one object a line")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.extension.resolve()), str(ROOT / "tests/python")]
    if "RANK" in os.environ:
        return be_rank(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(
            os.environ, RANK=str(rank), WORLD_SIZE=str(arguments.ranks), OMP_NUM_THREADS="1",
            BENCH_STORE=os.path.join(folder, "store"))) for rank in range(arguments.ranks)]
        # The back-end tells each rank if another dies.
        sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
