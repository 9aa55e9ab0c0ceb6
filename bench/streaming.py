#!/usr/bin/env python3
"""Trains on a text too large to tokenize first: seconds until the first step, and memory of the reading rank.

  streaming.py [--gigabytes 2] [--program build/release/bin/caravan] [--ranks 1] [--seconds 60] [--json-lines]

Writes the text (data/moby_dick.txt again and again, its lines in another order and with other numbers each time) into a temporary folder.
Trains a tiny model on it with data.streaming, and the same model on data/moby_dick.txt without. Prints the seconds to the line of step
1 from an empty cache, and VmHWM of the first rank, which tokenizes, in both runs: what it has more is the loader.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

import machine
from peak_memory import children_of, peak_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = ("model.layers=1 model.width=64 model.heads=2 model.context=256 train.global_batch=16 train.micro_batch=0 "
            "train.steps=1000000 train.eval_every=0 sample.tokens=0 checkpoint.every=0 comm.threads_per_rank=1").split()


def write_text(path, num_bytes, is_json):
    lines = (ROOT / "data/moby_dick.txt").read_text().splitlines()
    generator = random.Random(1)
    written = 0
    with open(path, "w") as file:
        while written < num_bytes:
            generator.shuffle(lines)
            varied = (f"{line} {generator.getrandbits(20)}" for line in lines)
            block = "\n".join(json.dumps({"text": line}) for line in varied) if is_json else "\n".join(varied)
            written += file.write(block + "\n")


def descendants(process):
    found = [process]
    for child in children_of(process):
        found += descendants(child)
    return found


def measure(arguments, folder, name, settings, seconds):
    """Seconds to step 1, and the largest VmHWM of a rank in MiB."""
    environment = os.environ | {"CARAVAN_CACHE": str(folder / f"cache-{name}"), "CARAVAN_HOME": str(ROOT)}
    command = [arguments.program, "train", "--ranks", str(arguments.ranks), "--set", f"checkpoint.dir={folder / name}"]
    for setting in SETTINGS + settings:
        command += ["--set", setting]
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first, peaks = [], {}

    def watch():
        while process.poll() is None:
            for one in descendants(process.pid):
                peaks[one] = max(peaks.get(one, 0), peak_of(one))
            if first and time.monotonic() - begin > seconds:
                process.terminate()
                return
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for line in process.stdout:
        if line.startswith("step 1/") or "step 1/" in line:
            first = first or [time.monotonic() - begin]
    error = process.stderr.read()
    process.wait()
    watcher.join()
    if not first:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{error}")
    return first[0], max(peaks.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/caravan")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json-lines", action="store_true")
    arguments = parser.parse_args()
    arguments.program = arguments.program.resolve()
    print(machine.describe())
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        text = folder / ("text.jsonl" if arguments.json_lines else "text.txt")
        write_text(text, arguments.gigabytes * 1e9, arguments.json_lines)
        _, without = measure(arguments, folder, "small", [f"data.text={ROOT / 'data/moby_dick.txt'}"], 10)
        for tokenizer in ("bytes", "{train = 8192}"):
            streamed = [f"data.text={text}", "data.streaming=true", f"data.tokenizer={tokenizer}"]
            name = "streamed-" + tokenizer.strip("{}").replace(" ", "")
            seconds, peak = measure(arguments, folder, name, streamed, arguments.seconds)
            print(f"tokenizer {tokenizer:<15} {text.stat().st_size / 1e9:.2f} GB: step 1 after {seconds:5.1f} s; first rank "
                  f"{peak:.0f} MiB, {without:.0f} MiB without streaming: {peak - without:+.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
