#!/usr/bin/env python3
"""Trains random recipes on 2 to 8 ranks and on one rank, and compares loss, norm, gradients and updates of three steps.

  random_recipes.py --caravan build/ci/bin/caravan --seed 1 --cases 300 --work /tmp/random

A recipe is drawn over all keys (recipe_draw.py). The run of one rank has the same recipe without the keys that say how
a step is computed: meshes, techniques, micro-batches, back-ends. A case is one of
  equal    within the tolerance, see recipe_runs.compare()
  refused  exit code 2 and an error that names a key; or the run of one rank was refused, too
  wrong    another number
  crash    another exit code, a signal, an internal error, or a refusal that names no key
  hang     not done after --timeout seconds, and once more after four times as many
Every wrong, crash and hang is kept under --work with the commands to repeat it; --minimise takes keys away from it as
long as it stays what it is. The same seed draws the same recipes. Needs numpy."""

import collections
import hashlib
import json
import math
import random
import re
import shutil
import sys

import recipe_values
from recipe_draw import Draw
from recipe_runs import case_arguments, compare, first_error, has_dump, is_rough, low_dtype, runner_of
from recipe_values import default

INTERNAL = re.compile(r"\[torch\]|internal error|report this|terminate called|Assertion|stack frame", re.I)
BAD = ("wrong", "crash", "hang")


class Trial:
    """Classifies recipes; keeps the runs of one rank, since cases may share them."""

    def __init__(self, runner, work):
        self.runner, self.work = runner, work

    def sources(self, keys):
        """The recipe with train.init_from and lora.adapter where drawn: runs of one step of the same model."""
        keys = dict(keys)
        wanted, adapter = keys.pop("init", False), keys.pop("adapter", False)
        if not wanted or "train.init_from" in keys:
            return keys
        of_source = ("model.", "moe.", "data.", "train.global_batch")
        shape = {key: value for key, value in keys.items() if key.startswith(of_source)}
        shape |= {"train.steps": 1, "optimizer.kind": "sgd", "optimizer.warmup_steps": 0, "sample.tokens": 0,
                  "train.eval_batches": 1}
        base = self.work / "sources" / hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]
        if not base.exists() and self.runner.train(shape | {"dump": False}, 1, base)[0] != 0:
            return keys
        keys["train.init_from"] = str(base / "run")
        if adapter:
            lora = {key: value for key, value in keys.items() if key.startswith("lora.")}
            tuned = base.with_name(base.name + hashlib.sha256(json.dumps(lora).encode()).hexdigest()[:6])
            if not tuned.exists():
                started = shape | lora | {"train.init_from": str(base / "run"), "dump": False}
                if self.runner.train(started, 1, tuned)[0] != 0:
                    return keys
                self.runner.must("export", tuned / "run", "--adapter", "--base", base / "run")
            keys = {key: value for key, value in keys.items() if not key.startswith("lora.")}
            keys["lora.adapter"] = str(tuned / "run/adapter")
        return keys

    def classify(self, keys, ranks, folder):
        """The class of a case, why, and the largest error over its tolerance."""
        many = self.runner.train(keys, ranks, folder / "many")
        if many[0] is None:
            many = self.runner.train(keys, ranks, folder / "many", patience=4)
        code, output, *_ = many
        alone = recipe_values.without_parallelism(keys)
        if INTERNAL.search(output):
            return "crash", "internal error: " + first_error(output), 0
        if code is None:
            return "hang", f"not done after {self.runner.timeout} s", 0
        if code == 2:
            keys_of_recipes = "|".join(map(re.escape, recipe_values.all_keys()))
            named = re.search(rf"\b({keys_of_recipes}|mesh|precision|--\w+)\b", output)
            return ("refused" if named else "crash"), first_error(output), 0
        one = self.runner.train(alone | {"sample.tokens": 0, "dump": has_dump(keys)}, 1, folder / "one")
        if code in (3, 6) and one[0] == code:
            return "refused", first_error(output), 0
        if code == 6 and low_dtype(keys) == "fp16":
            return "refused", first_error(output), 0  # a sum over ranks may overflow
        if code != 0:
            return "crash", f"exit code {code}: " + first_error(output), 0
        if one[0] != 0:
            return "crash", f"one rank ends with {one[0]}: " + first_error(one[1]), 0
        exact = None
        if low_dtype(keys) and has_dump(keys) and not is_rough(keys):
            exact = self.runner.train({key: value for key, value in alone.items() if not key.startswith("precision.")} |
                                      {"sample.tokens": 0}, 1, folder / "exact")
        try:
            wrong, error = compare(keys, many, one, exact)
        except ValueError as what:
            wrong, error = str(what), math.inf
        return ("wrong" if wrong else "equal"), wrong, error

    def minimise(self, keys, ranks, folder, kind):
        """Removes keys, one by one, as long as the class of the case stays the same."""
        changed = True
        while changed:
            changed = False
            for key in sorted(keys, key=lambda each: each.startswith(("mesh.", "model."))):
                fewer = {each: value for each, value in keys.items() if each != key}
                if self.classify(fewer, ranks, folder / "smaller")[0] == kind:
                    keys, changed = fewer, True
        return keys


def print_coverage(accepted):
    """Keys and values that no accepted recipe had."""
    given = collections.defaultdict(set)
    for keys in accepted:
        for key, value in keys.items():
            given[key].add(json.dumps(value))
    missing = [key for key in recipe_values.all_keys() if key not in given and key != "checkpoint.dir"]
    print(f"\nkeys that no accepted recipe sets: {', '.join(missing) or 'none'}")
    wanted = {key: values for key, (_, values) in recipe_values.VALUES.items()} | recipe_values.STRUCTURE
    for key, values in wanted.items():
        absent = [each for each in values if each not in ("list", default(key)) and json.dumps(each) not in given[key]]
        if absent and key not in missing:
            values = ", ".join(sorted(set(map(json.dumps, absent))))
            print(f"values never drawn in an accepted recipe: {key} = {values}")


def main():
    parser = case_arguments(__doc__, 300, "/tmp/random_recipes")
    parser.add_argument("--minimise", action="store_true")
    arguments = parser.parse_args()
    work, runner = runner_of(arguments)
    trial, counts, accepted, reasons = Trial(runner, work), collections.Counter(), [], collections.Counter()
    for case in range(arguments.first, arguments.first + arguments.cases):
        draw = Draw(random.Random(f"{arguments.seed}/{case}"), work / "texts")
        keys = trial.sources({key: value for key, value in draw.keys.items() if key not in arguments.without})
        folder = work / f"case_{arguments.seed}_{case}"
        kind, why, error = trial.classify(keys, draw.ranks, folder)
        counts[kind] += 1
        text = f"{error:.2g} of the tolerance" if kind == "equal" else why
        print(f"case {case}: {kind} on {draw.ranks} ranks  {text}", flush=True)
        if kind == "equal":
            accepted.append(keys)
        if kind == "refused":
            reasons[re.sub(r"[\d'\"/].*", "", why)[:70]] += 1
        if kind not in BAD:
            shutil.rmtree(folder)
            continue
        if arguments.minimise:
            least = trial.minimise(keys, draw.ranks, folder, kind)
            (folder / "least.toml").write_text(recipe_values.to_toml(least))
            words = " ".join(f"{key}={json.dumps(value)}" for key, value in least.items())
            print(f"  least, on {draw.ranks} ranks: {words}")
        for part in ("many", "one"):
            if (folder / part / "command").exists():
                print("  " + (folder / part / "command").read_text().strip())
    print("\n" + "  ".join(f"{kind} {counts[kind]}" for kind in ("equal", "refused", *BAD)))
    for reason, count in reasons.most_common(15):
        print(f"  refused {count}: {reason}")
    print_coverage(accepted)
    sys.exit(1 if any(counts[kind] for kind in BAD) else 0)


if __name__ == "__main__":
    main()
