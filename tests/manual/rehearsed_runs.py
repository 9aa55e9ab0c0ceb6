#!/usr/bin/env python3
"""Rehearses recipes over all techniques, runs them, and compares: bytes sent by axis and verb, and the peak of memory.

  rehearsed_runs.py --caravan build/ci/bin/caravan

For each recipe a line: whether the busiest rank sends in a step what `inspect` says (--verbose: each axis and verb that
differs), the predicted peak of rank 0's tensors over the measured one (of experts, whose loads differ, what `inspect`
predicts if tokens choose those of one rank as often as they can), and what all processes are predicted to have resident
(anonymous and shared memory, shared once; of experts with that much more) over what they have. --only WORD takes the recipes whose name has that word,
--larger trains wider models, whose memory is mostly that of tensors."""

import argparse
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

from paths_of_recipes import RECIPES
from recipe_runs import mpi_launcher
from same_dumps import LEFT_OUT, MORE, words_of

LARGER = "model.width=128 model.context=128 train.global_batch=24 model.vocabulary=2048"
STEP = 3  # all steps from the second on are alike
WINDOW = 3  # steps between two drains of stages that do not flush: the second window is traced


def status_of(process):
    """KiB of anonymous and of shared memory, and of shared memory that others share too."""
    try:
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    numbers = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    return numbers.get("Pss_Anon", 0), numbers.get("Pss_Shmem", 0)


def children_of(process):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def processes_of(process):
    found = [process]
    for child in children_of(process):
        found += processes_of(child)
    return found


def resident(run, peak):
    """The largest sum over all processes of a run, of their resident memory: in peak[0], bytes."""
    while run.poll() is None:
        total = sum(sum(status_of(process)) for process in processes_of(run.pid))
        peak[0] = max(peak[0], 1024 * total)
        time.sleep(0.01)


def predicted_traffic(text):
    """The rank, and {(axis, verb): bytes} of the table of `inspect`."""
    rank = int(re.search(r"^sent by rank (\d+) in a step", text, re.M).group(1)) if "sent by rank" in text else 0
    rows = re.findall(r"^  (\S+) +(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|reduce|send|recv|barrier)"
                      r" +([\d.e+-]+) +(\d+) ", text, re.M)
    return rank, {(axis, verb): int(sent) for axis, verb, _, sent in rows if int(sent) > 0}


def measured_traffic(path, rank, steps):
    """{(axis, verb): bytes} of a step, from a trace of several steps. A communicator that is built on others counts, they do not."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("pid") == rank]
    rows = {event["tid"]: event["args"]["name"].split()[:3:2] for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and " over " in event["args"]["name"]}
    backend = {}
    for axis, name in rows.values():
        backend[axis] = max(backend.get(axis, ""), name, key=len)
    sent = {}
    for event in events:
        axis, name = rows.get(event["tid"], ("", ""))
        if event["ph"] == "X" and axis and name == backend[axis]:
            key = axis, event["name"].split()[0]
            sent[key] = sent.get(key, 0) + event["args"]["sent_bytes"]
    return {key: count // steps for key, count in sent.items() if count > 0}


def compare(program, words, out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    ranks = math.prod(int(word.split("=")[1]) for word in words if word.startswith("mesh."))
    is_mpi = any(word in ("comm.backend=mpi", "comm.backend=shm+mpi") for word in words)
    windows = any("pipedream" in word for word in words)
    if windows:
        words = [*words, "--set", f"pipeline.drain={WINDOW}"]
    inspected = subprocess.run([program, "inspect", *words, "--set", "train.steps=6"], capture_output=True, text=True,
                               timeout=120)
    if inspected.returncode != 0:
        return None, inspected.stderr[-300:]
    traced = f"{WINDOW + 1}-{2 * WINDOW}" if windows else f"{STEP}-{STEP}"
    command = [*(mpi_launcher(ranks) if is_mpi else []), program, "train", *words, "--set",
               f"checkpoint.dir={out / 'run'}", "--set", "sample.tokens=0", "--set", "train.eval_batches=1", "--set",
               "train.steps=6", "--trace", str(out / "trace.json"), "--trace-steps", traced]
    peak = [0]
    with open(out / "output", "w+", encoding="utf8") as output:
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        watch = threading.Thread(target=resident, args=(run, peak))
        watch.start()
        run.wait(timeout=300)
        watch.join()
        output.seek(0)
        text = output.read()
    if run.returncode != 0:
        return None, text[-300:]
    rank, predicted = predicted_traffic(inspected.stdout)
    measured = measured_traffic(out / "trace.json", rank, WINDOW if windows else 1)
    line = json.loads((out / "run" / "train.log").read_text().splitlines()[-1])
    worst = re.search(r"as often as they can, it needs (\d+) bytes", inspected.stdout)
    more = ranks * (int(worst.group(1)) - line["predicted_memory_bytes"]) if worst else 0
    return {"predicted": predicted, "measured": measured, "ranks": ranks, "resident": peak[0],
            "worst": int(worst.group(1)) if worst else None,
            "tensors": line["peak_memory_bytes"], "rehearsed": line["predicted_memory_bytes"],
            "processes": line["predicted_resident_bytes"] + more}, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", required=True)
    parser.add_argument("--work", default="/tmp/rehearsed_runs", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--larger", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    good = {"bytes": 0, "memory": 0, "resident": 0, "all": 0}
    for name, keys in {**RECIPES, **MORE}.items():
        if arguments.only not in name or name in RECIPES and name.startswith(LEFT_OUT):
            continue
        words = words_of(f"{LARGER} {keys}" if arguments.larger else keys)
        found, why = compare(arguments.caravan, words, arguments.work)
        good["all"] += 1
        if found is None:
            print(f"{name:36} NOT RUN {why}", flush=True)
            continue
        for traffic in found["predicted"], found["measured"]:
            traffic.pop(("ep", "all_to_all"), None)  # real loads of experts differ from the mean
        same = found["predicted"] == found["measured"]
        worst = found["worst"]
        ratio = (worst or found["rehearsed"]) / found["tensors"]
        of_run = found["processes"] / found["resident"]
        good["bytes"] += same
        good["memory"] += ratio >= 1 if worst else 1 <= ratio <= 1.02
        good["resident"] += 1 <= of_run <= 1.08
        print(f"{name:36} bytes {'equal    ' if same else 'DIFFERENT'}  tensors {found['tensors'] / 2**20:8.2f} MiB "
              f"predicted {ratio:6.4f} of it{' at worst' if worst else ''}  resident {found['resident'] / 2**20:7.1f} MiB "
              f"on {found['ranks']} ranks, predicted {of_run:5.3f} of it", flush=True)
        if arguments.verbose and not same:
            for key in sorted(found["predicted"].keys() | found["measured"].keys()):
                a, b = found["predicted"].get(key, 0), found["measured"].get(key, 0)
                if a != b:
                    print(f"    {key[0]} {key[1]}: predicted {a}, measured {b}")
    print(f"{good['all']} recipes: bytes equal in {good['bytes']}, peak within 0 to +2 % in {good['memory']}, resident "
          f"within 0 to +8 % in {good['resident']}")
    return 0 if min(good.values()) == good["all"] else 1


if __name__ == "__main__":
    sys.exit(main())
