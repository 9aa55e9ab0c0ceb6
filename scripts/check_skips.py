#!/usr/bin/env python3
"""check_skips.py BUILD: fails if the last run of ctest in BUILD skipped something that tests/skips.txt does not list.

Reads BUILD/Testing/Temporary/LastTest.log, in which a skipped case of GoogleTest leaves FILE:LINE: Skipped and the reason.
No test of ctest can skip as a whole (SKIP_RETURN_CODE), and one that cannot be started fails.
"""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
log = (pathlib.Path(sys.argv[1]) / "Testing/Temporary/LastTest.log").read_text(errors="replace")
listed = []
for line in (root / "tests/skips.txt").read_text().splitlines():
    if line and not line.startswith("#"):
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3 or not all(parts):
            sys.exit(f"tests/skips.txt: not a line of file | reason it prints | why that is fine: {line}")
        listed.append(parts)

skips = set()
for match in re.finditer(r"^(\S+?):(\d+): Skipped\n(.*)$", log, re.M):
    name = re.sub(r"^.*?(?=tests/)", "", match[1])  # __FILE__ is absolute, or relative to the build with ccache
    skips.add((name, match[3].strip()))

failed = False
for name, reason in sorted(skips):
    why = next((why for file, prints, why in listed if file == name and reason.startswith(prints)), None)
    print(f"skipped: {name}: {reason or 'no reason'}{f' ({why})' if why else ''}")
    if why is None:
        print("  is not in tests/skips.txt: provide what the test needs, or list it there with the reason")
        failed = True
print(f"skips: {len(skips)}, {'some of them not listed' if failed else 'all of them listed'}")
sys.exit(1 if failed else 0)
