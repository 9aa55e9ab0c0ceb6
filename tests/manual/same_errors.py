#!/usr/bin/env python3
"""Compares the errors of two builds of the program for the wrong recipes of wrong_recipes.py.

  same_errors.py --before OLD/bin/caravan --after build/ci/bin/caravan    prints texts that are not identical
  same_errors.py --after build/ci/bin/caravan --advice                    also trains a step after each way out

Errors of the new build have to name a key, its value, where it was given and each way out that the list has, and
`inspect` has to refuse what `train` refuses. --only WORD takes the recipes whose line has that word."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

from wrong_recipes import BASE, EMPTY, TABLE_OF_3, WRONG, WRONG_TODAY

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEVER = ("InternalError", "Exception raised", "frame #", "terminate called", "std::", "c10::")


def words_of(section, text):
    """Words with the sections of their keys; `ranks=4` and a key with its section stay as they are."""
    words = []
    for word in text.split():
        minus, word = ("-", word[1:]) if word.startswith("-") else ("", word)
        whole = "." in word.split("=")[0] or word.startswith("ranks=") and section != "lora"
        words.append(minus + (word if whole else f"{section}.{word}"))
    return words


class Wrong:
    """A line of the list: ranks, keys, and ways out: pairs of advice in the error and further changes that it needs."""

    def __init__(self, section, line):
        section = section.split()[0]
        ranks, rest = line.split(": ", 1)
        wrong, advice = rest.split(" -> ")
        self.name, self.ranks = f"[{section}] {line}", int(ranks)
        self.keys = dict(word.split("=", 1) for word in words_of(section, wrong))
        ways = [way.partition(" & ")[::2] for way in advice.split(" or ")]
        self.ways = [tuple(words_of(section, words) for words in way) for way in ways]

    def words(self, way=()):
        """Ranks and keys of the command line after the changes of a way out."""
        ranks, keys = self.ranks, dict(word.split("=", 1) for word in BASE.split()) | self.keys
        for word in way:
            name, _, value = word.partition("=")
            if name == "ranks":
                ranks = int(value)
            elif word.startswith("-"):
                keys.pop(word[1:], None)
            else:
                keys[name] = value
        return ["--ranks", str(ranks), *(part for key, value in keys.items() for part in ("--set", f"{key}={value}"))]


def all_wrong(lists, only):
    for each in lists:
        for section, text in each.items():
            for line in text.replace("\\\n", "").strip().splitlines():
                if only in line:
                    yield Wrong(section, line)


class Runner:
    def __init__(self, work, timeout):
        self.work, self.timeout = work.resolve(), timeout
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / "table_of_3.txt").write_text(TABLE_OF_3)
        (self.work / EMPTY).write_text("")
        self.environment = os.environ | {"CARAVAN_CACHE": str(self.work / "cache"), "OMP_NUM_THREADS": "1"}
        self.environment.setdefault("CARAVAN_HOME", str(ROOT))

    def run(self, program, command, words):
        """Exit code (None: it did not end) and what it says of errors."""
        more = ["--set", f"checkpoint.dir={self.work / 'run'}"] if command == "train" else []
        shutil.rmtree(self.work / "run", ignore_errors=True)
        try:
            done = subprocess.run([program, command, *words, *more], cwd=self.work, env=self.environment,
                                  capture_output=True, text=True, timeout=self.timeout)
        except subprocess.TimeoutExpired:
            return None, f"did not end in {self.timeout} s"
        return done.returncode, done.stderr.strip()


def plain(value):
    """A value as errors may print it."""
    return re.sub(r"[\"'\[\]]", "", value).replace(", ", ",")


def is_said(word, text, given):
    """Whether the text names the change: the value of a key, a key that is not given, or to leave it out."""
    if word.startswith("-"):
        return "leave it out" in text or "leave " + word[1:] in text
    key, value = word.split("=", 1)
    if key not in given and key in text:
        return True
    return re.search(rf"(?<![\w.]){re.escape(plain(value))}(?!\w|\.\d)", plain(text)) is not None


def lacks(wrong, text):
    """The advice that is missing in the error."""
    first, _, rest = text.partition("\n")
    where, _, action = rest.partition("\n  do: ")
    named = set(wrong.keys) | {word.lstrip("-").split("=")[0] for said, _ in wrong.ways for word in said}
    missing = []
    if not any(key in first for key in named) and not (first.startswith("[recipe] mesh:") and "mesh." in where):
        if f"default of {first.split(': ')[0].split('] ')[-1]}" not in where:
            missing.append("the key")
    given = [*wrong.keys, *(word.split("=")[0] for word in BASE.split())]
    if not any(key in where for key in given) and "default of" not in where:
        missing.append("where it was given")
    if not any(plain(value) in plain(text) for value in wrong.keys.values()):
        missing.append("the value")
    for said, _ in wrong.ways:
        renames = len(said) > 1 and said[0].startswith("-")  # for another name, this is enough
        if not any(is_said(word, f"{first}\n{action}", wrong.keys) for word in (said[1:] if renames else said)):
            if not (said[0][1:] in first and "no such key" in first):
                missing.append("the way out " + " ".join(said))
    return missing + [f"other words than {sign}" for sign in NEVER if sign in text]


def side_by_side(results):
    return "\n".join(f"  {which:6} {code}: " + text.replace("\n", "\n            ") for which, (code, text) in results)


def check_new(runner, program, wrong, result):
    """What is wrong with the error of the new build."""
    if result[0] == 0:
        return ["an error"]
    missing = lacks(wrong, result[1])
    code, text = runner.run(program, "inspect", wrong.words())
    if code == 0 or text.split("\n")[0] != result[1].split("\n")[0]:
        missing.append(f"the same error of inspect, which says {code}: {text}")
    return missing


def follow(runner, program, wrong):
    """The ways out that are refused."""
    refused = []
    for said, beside in wrong.ways:
        code, text = runner.run(program, "train", wrong.words(said + beside))
        if code != 0:
            refused.append(f"a way out that works: {' '.join(said + beside)} ends with {code}: {text}")
    return refused


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before")
    parser.add_argument("--after", required=True)
    parser.add_argument("--advice", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/same_errors"))
    arguments = parser.parse_args()
    runner = Runner(arguments.work, arguments.timeout)
    counts = {"identical": 0, "differ": 0, "accepted by one only": 0, "accepted by both": 0}
    num_bad = num_all = 0
    for wrong in all_wrong([WRONG] if arguments.before else [WRONG, WRONG_TODAY], arguments.only):
        num_all += 1
        after = runner.run(arguments.after, "train", wrong.words())
        results, verdict = [("after", after)], ""
        if arguments.before:
            before = runner.run(arguments.before, "train", wrong.words())
            results.insert(0, ("before", before))
            accepted = [before[0] == 0, after[0] == 0]
            verdict = "accepted by both" if all(accepted) else "accepted by one only" if any(accepted) else \
                "identical" if before == after else "differ"
            counts[verdict] += 1
        missing = check_new(runner, arguments.after, wrong, after)
        if arguments.advice and after[0] != 0:
            missing += follow(runner, arguments.after, wrong)
        num_bad += bool(missing)
        if verdict not in ("", "identical") or missing:
            print(f"{wrong.name}: {verdict}\n{side_by_side(results)}")
            for each in missing:
                print("  ** lacks " + each)
            sys.stdout.flush()
    if arguments.before:
        print(" / ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    print(f"{num_all} recipes, {num_bad} of which the new build handles badly")
    return 0 if num_all and num_bad == counts["accepted by one only"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
