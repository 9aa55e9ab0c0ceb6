#!/usr/bin/env python3
"""Deletes entries of the registry, with their own files, and builds and tests what is left.

  tests/manual/deletion.py --copy FOLDER [--rounds | --entries diloco,striped] [--tests REGEX]

FOLDER is a clone of the repository with a build of preset ci, which is changed: nothing in it may be uncommitted. Of each
entry its files go (techniques/NAME_* and optim/NAME_*, tests/techniques/NAME_test.cpp) and its line in entries.def.
Prints for each whether the rest is configured and linked, and which tests of ctest fail: those are tests that name it
outside of its own file. --rounds deletes one entry of each family at once, never the last one of a family that has
several: what is linked without all of them is linked without any one of them.
"""

import argparse
import pathlib
import re
import subprocess

TESTS = "^(registry|train_recipe|train_default_recipe|technique_.*|optim.*|parallel_schedules|plan.*)$"


def run(folder, *command):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def entries(folder):
    text = (folder / "src/caravan/registry/entries.def").read_text()
    return re.findall(r"^CARAVAN_[A-Z_]+\((\w+)\)$", text, re.M)


def rounds(folder):
    """Sets of entries, in which every entry occurs: at most one of each family, or all but the first."""
    families = {}
    for name in entries(folder):
        files = [folder / f"src/caravan/{place}/{name}_entry.cpp" for place in ("techniques", "optim")]
        text = next(file for file in files if file.exists()).read_text()
        families.setdefault(re.search(r'\.family = "(\w+)"', text)[1], []).append(name)
    most = max(len(names) for names in families.values())
    return [[names[-1 - i] for names in families.values() if i < len(names)] for i in range(most)]


def delete(folder, name):
    for pattern in (f"src/caravan/techniques/{name}[_.]*", f"src/caravan/optim/{name}_*",
                    f"tests/techniques/{name}_test.cpp"):
        for file in folder.glob(pattern):
            others = [other for other in entries(folder) if other != name and file.name.startswith(other + "_")]
            if not any(len(other) > len(name) for other in others):
                file.unlink()
    registry = folder / "src/caravan/registry/entries.def"
    registry.write_text(re.sub(rf"^CARAVAN_[A-Z_]+\({name}\)\n", "", registry.read_text(), flags=re.M))


def failed_tests(output):
    return re.findall(r"^\s*\d+ - (\S+) \(", output, re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", type=pathlib.Path, required=True)
    parser.add_argument("--entries", default="", help="one after another; a+b: both at once")
    parser.add_argument("--rounds", action="store_true")
    parser.add_argument("--tests", default=TESTS)
    options = parser.parse_args()
    folder = options.copy
    if run(folder, "git", "status", "--porcelain").stdout.strip():
        parser.error(f"{folder} has uncommitted changes")
    chosen = [name.split("+") for name in options.entries.split(",")] if options.entries else [[e] for e in entries(folder)]
    for names in rounds(folder) if options.rounds else chosen:
        for name in names:
            delete(folder, name)
        configured = run(folder, "cmake", "--preset", "ci").returncode == 0
        linked = configured and run(folder, "ninja", "-C", "build/ci", "all").returncode == 0
        failed = failed_tests(run(folder, "ctest", "--test-dir", "build/ci", "-j2", "-R", options.tests).stdout) if linked else []
        words = "tests pass" if linked and not failed else "failed: " + ", ".join(failed) if linked else ""
        print(f"{'+'.join(names):<22} {'configures' if configured else 'is not configured':<20}"
              f"{'links' if linked else 'does not link':<16}{words}", flush=True)
        run(folder, "git", "checkout", "--", ".")


if __name__ == "__main__":
    main()
