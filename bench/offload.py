#!/usr/bin/env python3
"""A run whose state rests on host or disk beside the same run without: bits, time of a step, memory, bytes.

  offload.py [--caravan build/release/bin/caravan] [--tier disk] [--folder DIR] [--layers 24] [--width 1024]
             [--steps 4] [--rounds 1] [--link BYTES_PER_SECOND] [--chunks SIZE] [--set key=value]...

Two ranks of zero3. The limit of a step is the larger of the step without offload and the least bytes by the bandwidth:
for disks what a DiskStore reads and writes (caravan doctor --disk), for the host --link, which also limits the copies.
The least bytes are ZeRO-Infinity's (arXiv 2104.07857, section 4.1), not those that the program counts: parameters twice
for each micro-batch, moments and fp32 parameters read and written once; gradients go to the host once, and to no disk.
Memory is that of all processes, anonymous and shared, each page once. With --chunks ("auto" or bytes) the offloaded run
is also made with chunks of that size, in turn with the one by unit.
"""
import argparse
import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import machine


def processes_of(root):
    parents = {}
    for name in os.listdir("/proc"):
        try:
            if name.isdigit():
                parents[int(name)] = int(pathlib.Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = {root}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def resident(root):
    """Bytes."""
    total = 0
    for process in processes_of(root):
        try:
            for line in pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def run(arguments, folder, name, settings, environment):
    command = [arguments.caravan, "train", "--ranks", "2"]
    run_folder = f"{folder}/{name}"
    shutil.rmtree(run_folder, ignore_errors=True)
    for setting in [f"model.layers={arguments.layers}", f"model.width={arguments.width}",
                    f"model.heads={arguments.width // 64}", "model.context=256", 'data.tokenizer="bytes"',
                    f"train.steps={arguments.steps}", "train.global_batch=8", "train.micro_batch=4",
                    "train.eval_every=0", "train.eval_batches=1", "sample.tokens=0", "optimizer.clip_norm=0",
                    "data_parallel.technique=zero3", f"checkpoint.dir={run_folder}", *arguments.set, *settings]:
        command += ["--set", setting]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, **environment})
    peak = [0]

    def watch():
        while process.poll() is None:
            peak[0] = max(peak[0], resident(process.pid))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.stdout.read()
    process.wait()
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"offload: {' '.join(command)} failed:\n{output[-2000:]}")
    lines = [json.loads(line) for line in open(f"{run_folder}/train.log") if line.startswith("{")]
    steps = [line for line in lines if "step_ms" in line]
    return {"ms": [line["step_ms"] for line in steps[1:]],
            "losses": [(line["loss"], line["grad_norm"]) for line in steps],
            "hashes": [hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
                       for file in sorted(glob.glob(f"{run_folder}/step_*/*.safetensors"))],
            "peak": peak[0], "predicted": steps[0].get("predicted_resident_bytes", 0),
            "device": max(line["peak_memory_bytes"] for line in steps)}


def disk_speeds(arguments, folder):
    text = subprocess.run([arguments.caravan, "doctor", "--disk", folder], capture_output=True, text=True).stdout
    numbers = re.search(r"([0-9.]+) GB/s reading, ([0-9.]+) GB/s writing", text)
    if numbers is None:
        sys.exit(f"offload: caravan doctor does not name the bandwidths of {folder}:\n{text}")
    return float(numbers[1]) * 1e9, float(numbers[2]) * 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", default="build/release/bin/caravan")
    parser.add_argument("--tier", choices=["host", "disk"], default="disk")
    parser.add_argument("--folder", default="")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--link", type=float, default=0)
    parser.add_argument("--chunks", default="")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    print(machine.describe())
    with tempfile.TemporaryDirectory(dir=arguments.folder or None) as folder:
        offload = [f"offload.{kind}={arguments.tier}" for kind in ("optimizer", "gradients", "parameters")]
        if arguments.tier == "disk":
            offload.append(f'offload.disk_dirs=["{folder}/tiers"]')
        link = {"CARAVAN_LINK_BYTES_PER_SECOND": str(arguments.link)} if arguments.link > 0 else {}
        without_ms, with_ms, chunks_ms = [], [], []
        for _ in range(arguments.rounds):
            without = run(arguments, folder, "without", [], {})
            away = run(arguments, folder, "with", offload, link)
            without_ms += without["ms"]
            with_ms += away["ms"]
            if arguments.chunks:
                chunks = run(arguments, folder, "chunks", [*offload, f"chunks.size={arguments.chunks}"], link)
                chunks_ms += chunks["ms"]
        same = without["losses"] == away["losses"] and without["hashes"] == away["hashes"]
        if arguments.chunks:
            same = same and without["losses"] == chunks["losses"]  # its ranks write other rows: files differ
        parameters = 12 * arguments.layers * arguments.width ** 2
        if arguments.tier == "disk":
            read, write = disk_speeds(arguments, folder)
            least = (2 * 4 + 12) * parameters / read + 12 * parameters / write
        elif arguments.link > 0:  # each rank has a link in each direction, and half of the parameters
            least = 2 * 4 * parameters / 2 / arguments.link
        else:
            least = 0
        compute = statistics.median(without_ms) / 1e3
        step = statistics.median(with_ms) / 1e3
        print(f"bits      {'equal' if same else 'DIFFERENT'}")
        print(f"step      {step:.2f} s ({min(with_ms) / 1e3:.2f} to {max(with_ms) / 1e3:.2f}); without offload "
              f"{compute:.2f} s ({min(without_ms) / 1e3:.2f} to {max(without_ms) / 1e3:.2f}); least bytes {least:.2f} s; "
              f"{step / max(compute, least):.2f} of the limit")
        if arguments.chunks:
            own = statistics.median(chunks_ms) / 1e3
            print(f"chunks    {own:.2f} s ({min(chunks_ms) / 1e3:.2f} to {max(chunks_ms) / 1e3:.2f}); {own / step:.3f} of "
                  f"the step by unit; {chunks['device'] / 2**20:.0f} MiB a rank")
        print(f"device    {away['device'] / 2**20:.0f} MiB a rank, without offload {without['device'] / 2**20:.0f} MiB")
        print(f"machine   {away['peak'] / 2**20:.0f} MiB, predicted {away['predicted'] / 2**20:.0f} MiB "
              f"({away['peak'] / max(away['predicted'], 1):.3f}); without offload {without['peak'] / 2**20:.0f} MiB")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
