#!/usr/bin/env python3
"""Shows train.balance: 2 ranks, each on its core, and a second process that takes half of rank 1's core.

  load_balance.py --caravan build/release/bin/caravan [--steps 60] [--repeat 3] [--batch 48] [--set KEY=VALUE ..]

Trains the same model with equal rows on quiet cores, then beside the second process with equal rows and with measured ones.
The speeds are then 1 and 1/2, so the ideal split is two thirds and a third of the rows, and its step takes 4/3 of the step
on quiet cores. Prints, for each repetition, the median step of the second half of each run and its ratio to the ideal; then
the deals, and the largest difference of a loss from that of one process.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

import machine
from async_server import process_of

MODEL = ["model.layers=4", "model.width=256", "model.heads=4", "model.context=128", "model.dropout=0.1", "data.tokenizer=bytes",
         "optimizer.kind=sgd", "optimizer.lr=0.05", "train.eval_every=0", "train.eval_batches=1", "checkpoint.every=0",
         "sample.tokens=0", "comm.threads_per_rank=1", "comm.backend=shm"]
IDEAL = 4 / 3


def pin(process, core):
    """All threads of a process."""
    for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), {core})
        except OSError:  # it has ended
            continue


def pin_ranks(launcher, cores, has_ended):
    """Pins the ranks when they exist, and again, since threads start later."""
    while not has_ended.wait(0.2):
        for rank, core in enumerate(cores):
            process = process_of(launcher, rank)
            if process is not None:
                pin(process, core)


def train(arguments, folder, ranks, balance, cores, takes_half):
    """[(step_ms, loss)] of a run."""
    settings = MODEL + [f"train.steps={arguments.steps}", f"train.global_batch={arguments.batch}", f"checkpoint.dir={folder}",
                        f"train.balance={balance}", f"train.micro_batch={arguments.batch // 4}"] + arguments.set
    command = [arguments.caravan, "train", "--ranks", str(ranks)]
    for setting in settings:
        command += ["--set", setting]
    taker = None
    if takes_half:
        taker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        pin(taker.pid, cores[1])
    has_ended = threading.Event()
    try:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        helper = threading.Thread(target=pin_ranks, args=(run.pid, cores[:ranks], has_ended))
        helper.start()
        _, errors = run.communicate()
        has_ended.set()
        helper.join()
        if run.returncode != 0:
            sys.exit(f"load_balance: a run failed:\n{errors[-2000:]}")
    finally:
        has_ended.set()
        if taker is not None:
            taker.kill()
            taker.wait()
    lines = [json.loads(line) for line in (pathlib.Path(folder) / "train.log").read_text().splitlines()]
    return [(line["step_ms"], line["loss"]) for line in lines if "loss" in line]


def median_of_second_half(points):
    return statistics.median(ms for ms, _ in points[len(points) // 2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or arguments.batch % 4 != 0:
        parser.error("needs 2 cores, and a batch that 4 divides")
    os.environ.setdefault("CARAVAN_HOME", str(pathlib.Path(__file__).resolve().parent.parent))
    print(machine.describe(), "load", *(f"{load:.1f}" for load in os.getloadavg()))
    with tempfile.TemporaryDirectory() as folder:
        alone = train(arguments, f"{folder}/alone", 1, "even", cores, False)
        ratios, worst, deals = [], 0.0, ""
        for i in range(arguments.repeat):
            quiet = train(arguments, f"{folder}/quiet{i}", 2, "even", cores, False)
            even = train(arguments, f"{folder}/even{i}", 2, "even", cores, True)
            measured = train(arguments, f"{folder}/measured{i}", 2, "measured", cores, True)
            ideal = IDEAL * median_of_second_half(quiet)
            times = [median_of_second_half(run) for run in (quiet, even, measured)]
            ratios.append(times[2] / ideal)
            print("quiet {:.1f} ms; beside the second process: even {:.1f} ms, measured {:.1f} ms; ideal {:.1f} ms: "
                  "even {:.2f}, measured {:.2f} of it".format(*times, ideal, times[1] / ideal, times[2] / ideal), flush=True)
            for run in (quiet, even, measured):
                worst = max([worst] + [abs(mine / theirs - 1) for (_, mine), (_, theirs) in zip(run, alone)])
            rows = [json.loads(line) for line in (pathlib.Path(folder) / f"measured{i}/deals.jsonl").read_text().splitlines()]
            deals = ", ".join(f"{'/'.join(map(str, deal['rows']))} after step {deal['step']}" for deal in rows)
            print("deals:", deals, flush=True)
    print(f"measured to ideal: median {statistics.median(ratios):.2f}, best {min(ratios):.2f}; "
          f"losses differ from those of one process by at most {worst:.1e}")


if __name__ == "__main__":
    main()
