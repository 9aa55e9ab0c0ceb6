#!/usr/bin/env python3
"""check_alone.py BUILD: parses every source of src/ and apps/ that includes no torch by itself. In a unity build a source
finds what the sources before it in its unit include, so that a missing #include shows only here."""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
build = pathlib.Path(sys.argv[1]).resolve()


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


def check(job):
    source, words, folder = job
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return "" if result.returncode == 0 else f"{source.relative_to(root)} does not compile alone:\n{result.stderr}"


all_jobs = {job[0]: job for job in jobs()}.values()
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    findings = [text for text in pool.map(check, all_jobs) if text]
print("".join(findings), end="")
print(f"alone: {len(all_jobs)} sources, {len(findings)} of which do not compile")
sys.exit(1 if findings or not all_jobs else 0)
