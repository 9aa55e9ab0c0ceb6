#!/usr/bin/env python3
"""check_alone.py BUILD: parses every source of src/ and apps/ that includes no torch by itself. In a unity build a source
finds what the sources before it in its unit include, so that a missing #include shows only here. Headers of others take
most of the time of parsing: a source finds those of `slow` that it includes, itself or through headers of ours, already
parsed in a precompiled header of exactly these. So it finds the standard headers that these include, too."""

import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
build = pathlib.Path(sys.argv[1]).resolve()
slow = {"CLI/CLI.hpp", "filesystem", "fmt/format.h", "nlohmann/json.hpp", "toml++/toml.h"}


def sources(file):
    """The files of the repository that a file of the build compiles: those of a unit, or itself."""
    files = [file]
    if file.parent.name == "Unity":
        files = [pathlib.Path(name) for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M)]
    return [one for one in files if one.is_relative_to(root / "src") or one.is_relative_to(root / "apps")]


def jobs():
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if "cmake_pch" in entry["command"] or "USE_DISTRIBUTED" in entry["command"]:
            continue
        words = shlex.split(entry["command"])
        while not re.search(r"\+\+(-\d+)?$", words[0]):  # ccache and what sets its environment
            words.pop(0)
        del words[words.index("-o") :]
        for source in sources(pathlib.Path(entry["file"])):
            yield source, [*words, "-O0", "-fsyntax-only", str(source)], entry["directory"]


@functools.cache
def included(file):
    """The headers of others that a file includes, itself or through headers of ours."""
    found = set()
    for name in re.findall(r'^ *#include [<"]([^>"]+)[>"]', file.read_text(), re.M):
        ours = [path for path in (root / "src" / name, root / name, file.parent / name) if path.is_file()]
        found |= included(ours[0]) if ours else {name}
    return found


def with_precompiled(job, headers, folder):
    """A job that begins with the slow headers that its source includes, precompiled. Adds what makes them to `headers`."""
    source, words, cwd = job
    names = sorted(included(source) & slow)
    if not names:
        return job
    header = folder / f"{len(headers)}.h"
    flags = [word for word in words[:-1] if word != "-fsyntax-only"]
    header, *_ = headers.setdefault(tuple(names), (header, names, flags, cwd))
    return source, [*words[:-1], "-include", str(header), words[-1]], cwd


def precompile(what):
    header, names, flags, cwd = what
    header.write_text("".join(f"#include <{name}>\n" for name in names))
    subprocess.run([*flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"], cwd=cwd, check=True)


def check(job):
    source, words, folder = job
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return "" if result.returncode == 0 else f"{source.relative_to(root)} does not compile alone:\n{result.stderr}"


all_jobs = list({job[0]: job for job in jobs()}.values())
with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    headers = {}
    quick_jobs = [with_precompiled(job, headers, pathlib.Path(folder)) for job in all_jobs]
    list(pool.map(precompile, headers.values()))
    findings = [text for text in pool.map(check, quick_jobs) if text]
print("".join(findings), end="")
print(f"alone: {len(all_jobs)} sources, {len(findings)} of which do not compile")
sys.exit(1 if findings or not all_jobs else 0)
