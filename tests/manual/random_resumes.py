#!/usr/bin/env python3
"""Interrupts runs of random recipes, resumes them on other ranks, and compares with a run that never stopped.

  random_resumes.py --caravan build/ci/bin/caravan --seed 1 --cases 50 --work /tmp/resumes

A case trains 6 steps: on one rank without a stop; and on 2 to 8 ranks or on one, stopped after 2 steps or killed once a
checkpoint of step 2 is there, then resumed on one rank or on 2 to 8. Loss, norm and gradients of the last step, and its
batch bit by bit, must be those of the run that never stopped, within the tolerances of random_recipes.py. Rough
techniques (recipe_runs.is_rough) only have to resume. Needs numpy."""

import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import dumps
import recipe_values
from random_recipes import BAD, INTERNAL
from recipe_draw import Draw
from recipe_runs import ADAM, LATER, case_arguments, first_error, is_asynchronous, is_rough, low_dtype, runner_of

STEPS = 6


def kill_after_checkpoint(runner, keys, ranks, folder):
    """Kills all ranks when the checkpoint of step 2 exists. Returns an exit code that is 0 if that worked."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe_values.to_toml(keys))
    words = ["train", folder / "recipe.toml", "--ranks", ranks, "--set", f"checkpoint.dir={folder / 'run'}"]
    with open(folder / "output_of_killed", "w") as output:
        process = subprocess.Popen([runner.program, *map(str, words)], cwd=runner.work, env=runner.environment,
                                   stdout=output, stderr=output, start_new_session=True)
        end = time.monotonic() + 4 * runner.timeout
        while process.poll() is None and time.monotonic() < end:
            if (folder / "run/step_000002").exists():
                break
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = (folder / "output_of_killed").read_text(errors="replace")
    return (0 if (folder / "run/step_000002").exists() else process.returncode), text


def compare(keys, resumed, whole):
    """What is wrong with the last step of the resumed run, "" if nothing."""
    low, adam = low_dtype(keys), keys.get("optimizer.kind") == "adamw"
    bound = 0.2 if is_rough(keys) or low and adam else 2e-2 if low else ADAM if adam else LATER
    ours, theirs = resumed[2][-1], whole[2][-1]
    if ours["step"] != theirs["step"]:
        return f"ends at step {ours['step']}"
    for key in ("loss", "val_loss") + (("grad_norm",) if bound < 0.2 else ()):
        if (key in ours) != (key in theirs):
            return f"{key} is in one log only"
        if key in ours and not dumps.relative(ours[key], theirs[key]) <= bound:
            return f"{key} of the last step is {ours[key]}, not {theirs[key]}"
    if not resumed[3] or not whole[3]:
        return ""
    a, b = resumed[3][-1], whole[3][-1]
    if any(b["batch"][name].tobytes() != a["batch"][name].tobytes() for name in b["batch"]):
        return "another batch in the last step"
    if low or is_rough(keys):
        return ""
    name, error = dumps.worst(dumps.step_errors(a, b))
    return "" if error <= bound else f"{name} differs by {error:.2g} in the last step"


def run_case(runner, draw, rng, folder):
    """Its class and why."""
    keys = {key: value for key, value in draw.keys.items() if key not in ("init", "adapter")}
    keys |= {"train.steps": STEPS, "checkpoint.every": rng.choice([1, 2]), "sample.tokens": 0, "train.log_every": 1}
    keys.pop("sample.every", None)
    alone = recipe_values.without_parallelism(keys) | {"checkpoint.every": keys["checkpoint.every"], "sample.tokens": 0}
    places = [(keys, draw.ranks), (alone, 1)]
    if rng.random() < 0.5:
        places.reverse()
    (first, first_ranks), (second, second_ranks) = places
    kills = rng.random() < 0.6 and "mpi" not in keys.get("comm.backend", "")
    step = str(STEPS - 1) if not is_asynchronous(keys) else ""
    if kills:
        code, output = kill_after_checkpoint(runner, first, first_ranks, folder / "cut")
    else:
        code, output, *_ = runner.train(first, first_ranks, folder / "cut", 4, ["--stop-after", 2], "")
    text = f"{'killed' if kills else 'stopped'} on {first_ranks}, resumed on {second_ranks}"
    if code == 2:
        return "refused", first_error(output), text
    if code in (3, 6):
        return "refused", first_error(output), text
    if code != 0 or INTERNAL.search(output):
        return "crash", f"first part, exit code {code}: {first_error(output)}", text
    resumed = runner.train(second, second_ranks, folder / "cut", 4, ["--resume"], step)
    if resumed[0] == 2 and "complete" in resumed[1]:
        return "refused", "was done before it was killed", text
    if resumed[0] in (3, 6):  # of the data, such as a validation text without targets, or a sum in fp16
        return "refused", first_error(resumed[1]), text
    if resumed[0] is None:
        return "hang", "the resumed run", text
    if resumed[0] != 0 or INTERNAL.search(resumed[1]):
        return "crash", f"resumed, exit code {resumed[0]}: {first_error(resumed[1])}", text
    whole = runner.train(alone, 1, folder / "whole", 4, [], step)
    if whole[0] != 0:
        return "crash", f"one rank, exit code {whole[0]}: {first_error(whole[1])}", text
    try:
        wrong = compare(keys, resumed, whole)
    except (ValueError, KeyError) as what:
        wrong = f"not the same tensors: {what}"
    return ("wrong" if wrong else "equal"), wrong, text


def main():
    parser = case_arguments(__doc__, 50, "/tmp/random_resumes")
    arguments = parser.parse_args()
    work, runner = runner_of(arguments)
    counts = collections.Counter()
    for case in range(arguments.first, arguments.first + arguments.cases):
        rng = random.Random(f"resume/{arguments.seed}/{case}")
        draw = Draw(rng, work / "texts")
        for key in arguments.without:
            draw.keys.pop(key, None)
        folder = work / f"case_{arguments.seed}_{case}"
        kind, why, text = run_case(runner, draw, rng, folder)
        counts[kind] += 1
        print(f"case {case}: {kind}  {text}  {why}", flush=True)
        if kind not in BAD:
            shutil.rmtree(folder)
        elif (folder / "cut/command").exists():
            print("  " + (folder / "cut/command").read_text().strip())
    print("\n" + "  ".join(f"{kind} {counts[kind]}" for kind in ("equal", "refused", *BAD)))
    sys.exit(1 if any(counts[kind] for kind in BAD) else 0)


if __name__ == "__main__":
    main()
