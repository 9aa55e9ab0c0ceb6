"""gloo_block.py FOLDER: a rank of torch.distributed over gloo that times blocks of calls on request. The commands and
answers are those of bench/comm_block.cpp: check, run, quit; fp32 and bf16. all_reduce works in place, the others do not."""
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Buffers:
    """Buffers of one size and dtype."""

    def __init__(self, bytes_, dtype):
        self.key = bytes_, dtype
        self.count = bytes_ // (4 if dtype == "fp32" else 2)
        self.part = self.count // dist.get_world_size()
        self.whole = torch.empty(self.count, dtype=DTYPES[dtype])
        self.own = torch.empty(self.part, dtype=DTYPES[dtype])
        self.randomise()

    def randomise(self):
        self.whole.uniform_(-1, 1)
        self.own.uniform_(-1, 1)

    def call(self, op):
        if op == "all_reduce":
            dist.all_reduce(self.whole)
        elif op == "all_gather":
            dist.all_gather_into_tensor(self.whole, self.own)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(self.own, self.whole)
        elif op == "barrier":
            dist.barrier()
        else:
            sys.exit(f"gloo_block: no op {op}")

    def pattern(self, rank, first, count):
        return (1 + (torch.arange(first, first + count) + 3 * rank) % 5).to(self.whole.dtype)

    def is_right(self, op):
        rank, size = dist.get_rank(), dist.get_world_size()
        if op == "barrier":
            self.call(op)
            return True
        begin = rank * self.part
        if op == "all_gather":
            self.own.copy_(self.pattern(rank, begin, self.part))
        else:
            self.whole.copy_(self.pattern(rank, 0, self.count))
        self.call(op)
        if op == "all_gather":
            right = all(torch.equal(self.whole[r * self.part:(r + 1) * self.part], self.pattern(r, r * self.part, self.part))
                        for r in range(size))
        else:
            first, count, got = (0, self.count, self.whole) if op == "all_reduce" else (begin, self.part, self.own)
            right = torch.equal(got, sum(self.pattern(r, first, count) for r in range(size)))
        self.randomise()
        return right


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # this thread: gloo's threads are not pinned
    buffers = None
    with open(f"{folder}/command.{rank}") as commands, open(f"{folder}/answer.{rank}", "w") as answers:
        print("ready", file=answers, flush=True)
        for line in commands:
            words = line.split()
            if words[0] == "quit":
                break
            op, dtype, bytes_ = words[1], words[2], int(words[3])
            if buffers is None or buffers.key != (bytes_, dtype):
                buffers = Buffers(bytes_, dtype)
            if words[0] == "check":
                print("right" if buffers.is_right(op) else "wrong values", file=answers, flush=True)
                continue
            warm_ups, samples, calls = map(int, words[6:9])
            for _ in range(warm_ups):
                buffers.call(op)
            dist.barrier()
            times, begin = [], time.perf_counter()
            for _ in range(samples):
                for _ in range(calls):
                    buffers.call(op)
                end = time.perf_counter()
                times.append(end - begin)
                begin = end
            print("times", *(f"{t:.9f}" for t in times), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
