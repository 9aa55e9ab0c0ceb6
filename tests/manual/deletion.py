#!/usr/bin/env python3
"""Deletes entries of the registry, with their own files, and builds and tests the rest.

  tests/manual/deletion.py --copy FOLDER [--rounds [1,4] | --entries diloco,striped] [--tests REGEX]

FOLDER is a clone of the repository with a build of preset ci, which is changed: nothing in it may be uncommitted. Of each
entry its files go (techniques/*/NAME_* and optim/entries/NAME_*, tests/techniques/NAME_test.cpp and tests/optim/NAME_test.cpp) and
its line in entries.def. Prints for each whether the rest is configured and linked, how many cases say that they need it
(tests/needs.h), and which tests of ctest fail: those use it without saying so. --rounds deletes one entry of each family
at once, never the last one of a family that has several: what is linked without all of them is linked without any one
of them. --tests .: all tests.
"""

import argparse
import pathlib
import re
import subprocess

TESTS = ("^(registry|all_cases_.*|technique_.*|optim.*|plan.*|cost_formulas|parallel_(schedules|steps|context|own_stages|pipedream)|"
         "memory_recompute.*|prove_(experts|lora)|train_(recipe|default_recipe|packed|rehearse|dry_run|async)|"
         "command_(about|bad_input|schedule|keys|recipes|models))$")


def run(folder, *command):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def entries(folder):
    text = (folder / "src/caravan/registry/entries.def").read_text()
    return re.findall(r"^CARAVAN_[A-Z_]+\((\w+)\)$", text, re.M)


def rounds(folder):
    """Sets of entries, in which every entry occurs: at most one of each family, or all but the first."""
    families = {}
    for name in entries(folder):
        files = [file for place in ("techniques", "optim") for file in folder.glob(f"src/caravan/{place}/*/{name}_entry.cpp")]
        text = next(file for file in files if file.exists()).read_text()
        families.setdefault(re.search(r'\.family = "(\w+)"', text)[1], []).append(name)
    most = max(len(names) for names in families.values())
    return [[names[-1 - i] for names in families.values() if i < len(names)] for i in range(most)]


def delete(folder, name):
    for pattern in (f"src/caravan/techniques/*/{name}[_.]*", f"src/caravan/optim/entries/{name}_*",
                    f"tests/techniques/{name}_test.cpp", f"tests/optim/{name}_test.cpp"):
        for file in folder.glob(pattern):
            others = [other for other in entries(folder) if other != name and file.name.startswith(other + "_")]
            if not any(len(other) > len(name) for other in others):
                file.unlink()
    registry = folder / "src/caravan/registry/entries.def"
    registry.write_text(re.sub(rf"^CARAVAN_[A-Z_]+\({name}\)\n", "", registry.read_text(), flags=re.M))


def test(folder, tests):
    """The result of the tests, in words."""
    ctest = run(folder, "ctest", "--test-dir", "build/ci", "-j2", "--no-tests=error", "-R", tests)
    output = ctest.stdout
    log = (folder / "build/ci/Testing/Temporary/LastTest.log").read_text(errors="replace")
    failed = re.findall(r"^\s*\d+ - (\S+) \(", output, re.M)
    skipped = len(re.findall(r"^needs .+, which this build lacks$", log, re.M))
    if ctest.returncode != 0 and not failed:
        return "ctest failed: " + output.strip().splitlines()[-1]
    return ("failed: " + ", ".join(failed) if failed else "tests pass") + (f", {skipped} cases need it" if skipped else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy", type=pathlib.Path, required=True)
    parser.add_argument("--entries", default="", help="one after another; a+b: both at once")
    parser.add_argument("--rounds", nargs="?", const="all", help="all, or their numbers, from 1")
    parser.add_argument("--tests", default=TESTS)
    options = parser.parse_args()
    folder = options.copy
    if run(folder, "git", "status", "--porcelain").stdout.strip():
        parser.error(f"{folder} has uncommitted changes")
    chosen = [name.split("+") for name in options.entries.split(",")] if options.entries else [[e] for e in entries(folder)]
    if options.rounds:
        chosen = rounds(folder)
        if options.rounds != "all":
            chosen = [chosen[int(number) - 1] for number in options.rounds.split(",")]
    for names in chosen:
        for name in names:
            delete(folder, name)
        configured = run(folder, "cmake", "--preset", "ci").returncode == 0
        linked = configured and run(folder, "ninja", "-C", "build/ci", "all").returncode == 0
        words = test(folder, options.tests) if linked else ""
        print(f"{'+'.join(names):<22} {'configures' if configured else 'is not configured':<20}"
              f"{'links' if linked else 'does not link':<16}{words}", flush=True)
        run(folder, "git", "checkout", "--", ".")


if __name__ == "__main__":
    main()
