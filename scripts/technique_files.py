#!/usr/bin/env python3
"""technique_files.py [--all | --check]: of each entry of the registry, the files of src/ and apps/ outside of its own that
name it in quotes; with --all also those of tests, docs, recipes and examples.

An entry's own files are NAME_entry.cpp and NAME_body.cpp, and files that are named after it as ddp.cpp is. Its line in
registry/entries.def is not counted. Everything else asks the registry and its traits: with --check, lines of train/, checkpoint/,
prove/, generate/, cost/, step/ and apps/ that name an entry, in quotes or as a word outside of comments, are printed and are a failure."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "apps"] + (["tests", "docs", "recipes", "examples"] if "--all" in sys.argv[1:] else [])
# Words that other keys have too: "none" of precision, packing and recomputation.
COMMON = {"none", "linear", "constant"}
CHECKED = tuple(f"src/caravan/{folder}/" for folder in ("train", "recipe", "formats/checkpoint", "prove", "generate", "cost", "step")) + ("apps/",)
# Reads tables about other programs, in their words.
PUBLISHED = "src/caravan/cost/published/"
# Names that are also words of English: in quotes only.
WORDS = {"both", "ring", "experts", "replicas", "naive", "striped", "interleaved", "cosine", "full", "stage", "modules", "selective"}
# Other things of the same name: the section of experts in the text of a configuration and of the log, modules that a proof
# cannot shrink, the argument "stage" of a span.
ALLOWED = {("experts", "src/caravan/train/folder/metrics.cpp"), ("experts", "apps/caravan/inspect/inspect_run.cpp"),
           ("modules", "src/caravan/prove/proof_recipe.cpp"), ("stage", "src/caravan/cost/rehearsal.cpp")}


def entries():
    """Name in entries.def -> (family, name in a recipe)."""
    lines = (ROOT / "src/caravan/registry/entries.def").read_text()
    for kind, body in re.findall(r"^CARAVAN_(\w+)\((\w+)\)", lines, re.M):
        if body == "name":
            continue
        folder = "optim" if kind in ("OPTIMIZER", "RATE") else "techniques"
        text = next((ROOT / "src/caravan" / folder).glob(f"*/{body}_entry.cpp")).read_text()
        yield body, re.search(r'\.family = "(\w+)"', text)[1], re.search(r'\.name = "([^"]+)"', text)[1]


def names_in(line, family, body, name):
    if name in COMMON:
        return bool(re.search(rf'"{family}",\s*"{name}"', line))
    if f'"{name}"' in line:
        return True
    words = {body, name} - WORDS - COMMON
    return any(re.search(rf"(?<![\w\"-]){re.escape(word)}(?![\w-])", line) for word in words)


def check(texts):
    failed = False
    for body, family, name in entries():
        for path, text in texts.items():
            if not str(path).startswith(CHECKED) or str(path).startswith(PUBLISHED) or (name, str(path)) in ALLOWED:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if names_in(re.sub(r"(^|\s)//.*", "", line), family, body, name):
                    print(f"{path}:{number}: {line.strip()}")
                    failed = True
    if failed:
        print("an entry is named above: ask the registry (registry/registry.h) and its traits", file=sys.stderr)
    return 1 if failed else 0


def main():
    texts = {path.relative_to(ROOT): path.read_text(errors="replace")
             for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".h", ".cpp", ".md", ".toml", ".txt") and "template" not in path.parts}
    if "--check" in sys.argv[1:]:
        return check(texts)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
