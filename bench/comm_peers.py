#!/usr/bin/env python3
"""Compares Caravan's collectives over shared memory with Open MPI, MPICH, Intel MPI and gloo: 2 ranks pinned to 2 cores.

  comm_peers.py [--quick] [--peers openmpi,mpich,intelmpi,gloo] [--ops ..] [--sizes ..] [--impi FOLDER] [--python PROGRAM] [--out FILE]

The ranks of both libraries run for the whole comparison. They alternate in blocks of --block seconds (less than 0.5 unless a
single call takes longer); the idle library sleeps in read(2). A sample is the time of the slowest rank for as many calls as
fill 20 us; a block's result is the median of its samples. The latency between the two cores is measured before and after
each pair of blocks. A pair counts if both latencies are near (less than 60 ns) or both are far (more than 110 ns). Ratio:
peer's time / our time. Every result is checked before it is timed. MPI runs in place and out of place; Caravan in place, in
memory of Communicator::allocate (arena) or any other (copy).

Needs the program comm_block (cmake --preset release -DCARAVAN_BENCH=ON, ninja -C build/release comm_block) and the peers to
compare with. A peer that is missing is reported and skipped:
  openmpi, mpich   Debian: openmpi-bin libopenmpi-dev, mpich libmpich-dev
  intelmpi         --impi: a virtual environment with pip install --no-deps impi-rt impi-devel; Debian: libfabric1
  gloo             --python: one that has torch
Prints a table of the targets and whether they are met; --out writes a JSON line for each comparison and mode.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import machine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import blocks  # noqa: E402

SIZES = {"4KiB": 4 << 10, "64KiB": 64 << 10, "1MiB": 1 << 20, "16MiB": 16 << 20, "256MiB": 256 << 20}
OPS = ["all_reduce", "all_gather", "reduce_scatter", "barrier", "small", "bf16", "limit"]
PEERS = ["openmpi", "mpich", "intelmpi", "gloo"]
LARGEST = 256 << 20


def forms_of(peer, op):
    if op == "barrier":
        return ["out"]
    if peer == "gloo":
        return ["in" if op == "all_reduce" else "out"]
    return ["in", "out"]


class Run:
    def __init__(self, arguments):
        self.pairs, self.block_s, self.out = arguments.pairs, arguments.block, arguments.out
        self.ours = blocks.Ours(arguments.program)
        self.records = []

    def compare(self, facts, first, second, peer="caravan"):
        """Alternates blocks of `first` and `second`, functions that return the microseconds of a call."""
        found, discarded = {"near": [], "far": []}, 0
        before = self.ours.ping()
        for pair in range(self.pairs):
            if pair % 2 == 0:
                one, other = first(), second()
            else:
                other, one = second(), first()
            after = self.ours.ping()
            placement = blocks.mode(before)
            if placement is None or placement != blocks.mode(after):
                discarded += 1
            else:
                found[placement].append((one, other, after))
            before = after
        for placement, pairs in found.items():
            if pairs:
                self.record(facts | {"peer": peer, "mode": placement, "discarded": discarded}, pairs)
        if discarded:
            print(f"  {discarded} of {self.pairs} pairs discarded: the latency between the cores was neither near nor far, or changed", file=sys.stderr)

    def record(self, facts, pairs):
        ratios = sorted(other / one for one, other, _ in pairs)
        record = facts | {"processor": machine.processor_class(), "pairs": len(pairs), "ratio": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1],
                          "ping_ns": statistics.median(ping for *_, ping in pairs)}
        for name, values in (("ours_us", [one for one, *_ in pairs]), ("peer_us", [other for _, other, _ in pairs])):
            record |= {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
        self.records.append(record)
        if self.out:
            print(json.dumps(record), file=self.out, flush=True)
        print("  {op} {dtype} {bytes} {memory} / {peer} {place}, {mode}: {ours_us:.2f} us, {peer_us:.2f} us, ratio {ratio:.2f} "
              "({ratio_min:.2f}..{ratio_max:.2f})".format(**record), file=sys.stderr)

    def timer(self, side, what):
        """Checks `what` and returns a function that times one block of it, in microseconds of a call."""
        side.check(what)
        plan = side.plan(what, self.block_s)
        return lambda: statistics.median(side.block(what, *plan)) * 1e6

    def against(self, peer, op, bytes_, memory):
        ours = self.timer(self.ours, f"{op} fp32 {bytes_} in {memory}")
        for place in forms_of(peer.name, op):
            facts = {"op": op, "dtype": "fp32", "bytes": bytes_, "ranks": 2, "memory": memory, "place": place}
            self.compare(facts, ours, self.timer(peer, f"{op} fp32 {bytes_} {place} plain"), peer.name)

    def peer(self, peer, ops, sizes):
        if "barrier" in ops:
            self.against(peer, "barrier", 0, "arena")
        if "small" in ops:
            self.against(peer, "all_reduce", 8, "arena")
        for bytes_ in sizes:
            for op in ("all_reduce", "all_gather", "reduce_scatter"):
                for memory in ("arena", "plain") if op == "all_reduce" else ("arena",):
                    if op in ops:
                        self.against(peer, op, bytes_, memory)

    def alone(self, ops, sizes):
        """Comparisons without a peer: bf16 with fp32, and fp32 with the memory bandwidth."""
        for bytes_ in sizes if "bf16" in ops else ():
            facts = {"op": "all_reduce", "dtype": "bf16", "bytes": bytes_, "ranks": 2, "memory": "arena", "place": "fp32"}
            self.compare(facts, self.timer(self.ours, f"all_reduce bf16 {bytes_} in arena"),
                         self.timer(self.ours, f"all_reduce fp32 {bytes_} in arena"))
        if "limit" in ops and LARGEST in sizes:
            moved = 4 * LARGEST  # all_reduce of 2 ranks: each reads its half of both buffers and writes it to both
            facts = {"op": "all_reduce", "dtype": "fp32", "bytes": LARGEST, "ranks": 2, "memory": "arena", "place": "limit"}
            self.compare(facts, self.timer(self.ours, f"all_reduce fp32 {LARGEST} in arena"),
                         lambda: moved / max(self.ours.memory(LARGEST)) / 1e3, "memory")


def targets(records, sizes):
    """(what, need, value with spread, met) of each target; met is None if nothing was measured."""
    def pick(mode, peers=None, **facts):
        return [r for r in records if r["mode"] == mode and (peers is None or r["peer"] in peers) and
                all(r[key] == value for key, value in facts.items())]

    def ratio(name, mode, need, peers=PEERS, **facts):
        found = pick(mode, peers, **facts)
        if not found:
            return name, f"{need:g}x", f"no pairs, {mode}", None
        worst = min(found, key=lambda r: r["ratio"])
        text = "{ratio:.2f}x ({ratio_min:.2f}..{ratio_max:.2f}, {pairs} pairs) {peer} {place}".format(**worst)
        return name, f"{need:g}x", text, worst["ratio"] >= need

    def time(name, mode, need, **facts):
        found = pick(mode, PEERS, **facts)
        if not found:
            return name, f"{need} us", f"no pairs, {mode}", None
        value = statistics.median(r["ours_us"] for r in found)
        low, high = min(r["ours_us_min"] for r in found), max(r["ours_us_max"] for r in found)
        return name, f"{need} us", f"{value:.2f} us ({low:.2f}..{high:.2f})", value < need

    names = {bytes_: name for name, bytes_ in SIZES.items()} | {bytes_: f"{bytes_} B" for bytes_ in sizes if bytes_ not in SIZES.values()}
    lines = []
    for bytes_ in sizes:
        near = 2 if bytes_ <= 4 << 10 else 2.5 if bytes_ <= 1 << 20 else 3
        fp32 = {"op": "all_reduce", "dtype": "fp32", "bytes": bytes_}
        lines.append(ratio(f"all_reduce fp32 {names[bytes_]} arena, best peer, near", "near", near, **fp32, memory="arena"))
        if bytes_ == 4 << 10:
            lines.append(ratio(f"all_reduce fp32 {names[bytes_]} arena, best peer, far", "far", 1.5, **fp32, memory="arena"))
        lines.append(ratio(f"all_reduce fp32 {names[bytes_]} copy, OpenMPI, near", "near", 1, ["openmpi"], **fp32, memory="plain"))
        if bytes_ >= 16 << 20:
            lines.append(ratio(f"all_reduce fp32 {names[bytes_]} copy, best peer, near", "near", 1, **fp32, memory="plain"))
        lines.append(ratio(f"all_reduce bf16 {names[bytes_]} arena, per byte of fp32, near", "near",
                           0.9 if bytes_ <= 4 << 10 else 1, ["caravan"], op="all_reduce", dtype="bf16", bytes=bytes_))
        if bytes_ >= 1 << 20:
            lines.append(ratio(f"reduce_scatter {names[bytes_]} arena, best peer, near", "near", 2, op="reduce_scatter", bytes=bytes_))
        lines.append(ratio(f"all_gather {names[bytes_]} arena, best peer, near", "near", 1, op="all_gather", bytes=bytes_))
    if LARGEST in sizes:
        for mode in ("near", "far"):
            lines.append(ratio(f"all_reduce fp32 256MiB, share of the memory's limit, {mode}", mode, 0.85, ["memory"], op="all_reduce"))
    lines.append(ratio("all_reduce fp32 8 B, Intel MPI, near", "near", 1, ["intelmpi"], op="all_reduce", bytes=8))
    for mode, need in (("near", 0.6), ("far", 1.5)):
        lines.append(time(f"barrier, {mode}", mode, need, op="barrier"))
        lines.append(time(f"all_reduce fp32 8 B, {mode}", mode, need, op="all_reduce", bytes=8))
    return lines


def starters(arguments, build):
    return {"openmpi": lambda: blocks.start_openmpi(build), "mpich": lambda: blocks.start_mpich(build),
            "intelmpi": lambda: blocks.start_intel(build, arguments.impi), "gloo": lambda: blocks.start_gloo(arguments.python)}


def missing(name, arguments):
    """Why a peer cannot be measured, or None."""
    if name in ("openmpi", "mpich"):
        for program in (f"mpicc.{name}", f"mpirun.{name}"):
            if not shutil.which(program):
                return f"{program} not found: install {'openmpi-bin libopenmpi-dev' if name == 'openmpi' else 'mpich libmpich-dev'}"
    if name == "intelmpi":
        if not arguments.impi:
            return "no --impi FOLDER"
        if not pathlib.Path(arguments.impi, "lib/libmpi.so").exists():
            return f"{arguments.impi} has no lib/libmpi.so"
    return None


def words_of(text, known, what):
    words = text.split(",")
    for word in words:
        if word not in known:
            sys.exit(f"--{what}: '{word}' is none of {', '.join(known)}")
    return words


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute: 4 KiB and 1 MiB, 3 pairs, short blocks")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--ops", default=",".join(OPS), help="small: all_reduce of 8 bytes; limit: share of the memory's limit")
    parser.add_argument("--sizes", default=",".join(SIZES), help="names or bytes")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--block", type=float, default=0.25, help="seconds of a block, under 0.5")
    parser.add_argument("--impi", help="folder of Intel MPI")
    parser.add_argument("--python", default=sys.executable, help="Python with torch, for gloo")
    parser.add_argument("--program", type=pathlib.Path, default=blocks.ROOT / "build/release/bin/comm_block")
    parser.add_argument("--out", type=argparse.FileType("w"), help="file for JSON lines")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pairs, arguments.block = 3, 0.04
        if arguments.sizes == parser.get_default("sizes"):
            arguments.sizes = "4KiB,1MiB"
    if not 0 < arguments.block < 0.5 or arguments.pairs < 1:
        sys.exit("--block: must be between 0 and 0.5 s; --pairs: must be at least 1")
    arguments.sizes = [SIZES.get(word) or int(word) for word in arguments.sizes.split(",")]
    if any(bytes_ < 8 or bytes_ % 8 for bytes_ in arguments.sizes):
        sys.exit("--sizes: must be multiples of 8 bytes, so that 2 ranks have equal parts")
    arguments.peers = words_of(arguments.peers, PEERS, "peers")
    arguments.ops = words_of(arguments.ops, OPS, "ops")
    if not arguments.program.exists():
        sys.exit(f"{arguments.program} not found: build it with cmake --preset release -DCARAVAN_BENCH=ON; ninja -C build/release comm_block")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("this benchmark needs 2 cores")
    return arguments


def main():
    arguments = read_arguments()
    run = Run(arguments)
    skipped = {}
    with tempfile.TemporaryDirectory(prefix="caravan_peers_") as build:
        run.alone(arguments.ops, arguments.sizes)
        for name in arguments.peers:
            reason = missing(name, arguments)
            try:
                if reason:
                    raise blocks.SideError(name, reason)
                peer = starters(arguments, pathlib.Path(build))[name]()
            except (blocks.SideError, OSError, subprocess.CalledProcessError) as error:
                skipped[name] = f"{error} {getattr(error, 'stderr', None) or ''}".strip()
                continue
            print(name, file=sys.stderr)
            try:
                run.peer(peer, arguments.ops, arguments.sizes)
            except blocks.SideError as error:
                if error.side != name:
                    raise
                skipped[name] = f"failed: {error}"
            peer.close()
    run.ours.close()
    for name, why in skipped.items():
        print(f"skipped: {name}: {why.removeprefix(name + ': ')}")
    print(machine.describe())
    print(f"{'target':<58}{'need':>8}  {'met':<6}measured (median, spread over the pairs)")
    for what, need, value, held in targets(run.records, arguments.sizes):
        print(f"{what:<58}{need:>8}  {'-' if held is None else 'yes' if held else 'NO':<6}{value}, {machine.processor_class()}")


if __name__ == "__main__":
    main()
