#!/usr/bin/env python3
"""Compares parameter servers with and without a barrier when one worker is slow.

  async_server.py --caravan build/release/bin/caravan [--ranks 2] [--steps 40] [--slow 10] [--modes sync,async,bounded]
                  [--staleness 4] [--out curve.csv] [--set KEY=VALUE ..]

Trains the default model from the same weights with a constant learning rate, rank 0 being the only server. The process of
the last rank is stopped and continued by signals, so that it gets 1/SLOW of its time. Prints, for each mode, the seconds
until the validation loss is that of the synchronous run at its end, and writes the curves as CSV: mode, seconds, step of
the slowest worker, validation loss. Seconds count from the first step; evaluations are in them.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import machine

COMMON = ["data_parallel.technique=param_server", "data_parallel.servers=1", "comm.backend=shm", "optimizer.schedule=constant",
          "optimizer.warmup_steps=0", "optimizer.lr=1e-3", "train.eval_batches=4", "checkpoint.every=0", "sample.tokens=0",
          "comm.threads_per_rank=1"]
PERIOD_S = 0.05


def process_of(launcher, rank):
    """The process id of a rank below `launcher`; None before it exists."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"\nPPid:\t{launcher}\n" not in (entry / "status").read_text():
                continue
            if f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:  # it has ended, or is another user's
            continue
    return None


def slow_down(launcher, rank, factor, has_ended):
    """Lets the rank run for 1/factor of each period."""
    worker = None
    while not has_ended.is_set():
        worker = worker or process_of(launcher, rank)
        if worker is None:
            time.sleep(PERIOD_S)
            continue
        try:
            os.kill(worker, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - 1 / factor))
            os.kill(worker, signal.SIGCONT)
            time.sleep(PERIOD_S / factor)
        except ProcessLookupError:
            return


def curve(arguments, mode, steps, goal):
    """[(seconds, step, validation loss)]; ends the run when the loss is at most `goal`."""
    with tempfile.TemporaryDirectory() as folder:
        settings = COMMON + arguments.set + [f"data_parallel.mode={mode}", f"train.steps={steps}", "train.eval_every=2",
                                             f"checkpoint.dir={folder}/run"]
        if mode == "bounded":
            settings.append(f"data_parallel.staleness={arguments.staleness}")
        command = [arguments.caravan, "train", "--ranks", str(arguments.ranks)]
        for setting in settings:
            command += ["--set", setting]
        errors = pathlib.Path(folder) / "errors"  # the launcher reports every signal
        with errors.open("w") as stream:
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
        has_ended = threading.Event()
        helper = threading.Thread(target=slow_down, args=(run.pid, arguments.ranks - 1, arguments.slow, has_ended))
        log = pathlib.Path(folder) / "run" / "train.log"
        points, seen, begin = [], 0, None
        while run.poll() is None:
            lines = log.read_text().splitlines(keepends=True) if log.exists() else []
            if begin is None and log.exists():  # made before the first step
                begin = time.monotonic()
                helper.start()
            for line in lines[seen:]:
                if not line.endswith("\n"):
                    break
                seen += 1
                fields = json.loads(line)
                if "val_loss" in fields:
                    points.append((time.monotonic() - begin, fields["step"], fields["val_loss"]))
            if points and goal is not None and points[-1][2] <= goal:
                has_ended.set()
                helper.join()
                run.terminate()
                break
            time.sleep(0.02)
        has_ended.set()
        if helper.is_alive():
            helper.join()
        run.wait()
        if not points:
            sys.exit(f"async_server: {mode} wrote no validation loss:\n{errors.read_text()[-2000:]}")
        return points


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--slow", type=float, default=10)
    parser.add_argument("--modes", default="sync,async,bounded")
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--out", default="async_server.csv")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    if modes[0] != "sync" or arguments.ranks < 2 or arguments.slow < 1:
        parser.error("--modes begins with sync; --ranks is at least 2, --slow at least 1")
    rows, goal = [], None
    for mode in modes:
        points = curve(arguments, mode, arguments.steps, goal)
        rows += [(mode, *point) for point in points]
        goal = points[-1][2] if goal is None else goal
        seconds, step, loss = points[-1]
        reached = "reached" if loss <= goal else "not reached"
        print(f"{mode:8} {seconds:8.1f} s  step {step:4} of the slowest  validation {loss:.4f}  goal {goal:.4f} {reached}"
              f"  [{machine.processor_class()}]", flush=True)
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write("mode,seconds,step,validation_loss\n")
        file.writelines(f"{mode},{seconds:.3f},{step},{loss}\n" for mode, seconds, step, loss in rows)


if __name__ == "__main__":
    main()
