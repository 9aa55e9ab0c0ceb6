#!/usr/bin/env python3
"""technique_files.py [--all]: of each entry of the registry, the files of src/ and apps/ outside of its own that name it
in quotes; with --all also those of tests, docs, recipes and examples.

An entry's own files are NAME_entry.cpp and NAME_body.cpp, and files that are named after it as ddp.cpp is. Its line in
registry/entries.def is not counted. Everything else should ask the registry and its traits."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "apps"] + (["tests", "docs", "recipes", "examples"] if "--all" in sys.argv[1:] else [])
# Words that other keys have too: "none" of precision, packing and recomputation.
COMMON = {"none", "linear", "constant"}


def entries():
    """Name in entries.def -> (family, name in a recipe)."""
    lines = (ROOT / "src/caravan/registry/entries.def").read_text()
    for kind, body in re.findall(r"^CARAVAN_(\w+)\((\w+)\)", lines, re.M):
        if body == "name":
            continue
        folder = "optim" if kind in ("OPTIMIZER", "RATE") else "techniques"
        text = (ROOT / f"src/caravan/{folder}/{body}_entry.cpp").read_text()
        yield body, re.search(r'\.family = "(\w+)"', text)[1], re.search(r'\.name = "([^"]+)"', text)[1]


def main():
    texts = {path.relative_to(ROOT): path.read_text(errors="replace")
             for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cpp", ".md", ".toml", ".txt") and "template" not in path.parts}
    total = 0
    for body, family, name in entries():
        if name in COMMON:
            print(f"{family:14} {name:20} (a word of other keys)")
            continue
        own = re.compile(rf"(^|/){re.escape(body)}(_entry|_body)?\.(h|cpp)$")
        outside = [str(path) for path, text in texts.items()
                   if f'"{name}"' in text and not own.search(str(path))]
        total += len(outside)
        print(f"{family:14} {name:20} {len(outside):3}  {', '.join(outside)}")
    print(f"in all {total}")


main()
