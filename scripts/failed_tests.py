#!/usr/bin/env python3
"""failed_tests.py BUILD ..: prints the end of what each test printed that failed in the last run of ctest in a BUILD.

In a long log the cause stands far above the list of failed tests, which ctest prints last.
"""

import pathlib
import re
import sys

LINES = 40

for build in map(pathlib.Path, sys.argv[1:]):
    folder = build / "Testing/Temporary"
    failed = folder / "LastTestsFailed.log"  # "101:generate"
    if not failed.exists():
        continue
    names = {line.split(":", 1)[1] for line in failed.read_text().splitlines() if ":" in line}
    # "7/230 Test: name", "Output:", what it printed, "<end of output>" and a verdict.
    for test in re.split(r"^\d+/\d+ Test: ", (folder / "LastTest.log").read_text(errors="replace"), flags=re.M)[1:]:
        name = test.splitlines()[0]
        if name not in names:
            continue
        printed = test.split("\nOutput:\n", 1)[-1].split("<end of output>", 1)[0]
        lines = [line for line in printed.splitlines() if line and not line.startswith("-----")]
        print(f"\n== {build.name}: {name}", *lines[-LINES:], sep="\n")
