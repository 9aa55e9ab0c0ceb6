"""Runs recipes of recipe_draw.py, and compares the run of many ranks with that of one."""

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import dumps
import recipe_values

TOLERANCE = 1e-5          # fp32, step 0: the same sums in another order
LATER = 5e-5              # later steps begin with parameters that differ by roundings
ADAM = 1e-3               # Adam divides by gradients that may be nearly zero
ROUNDING = {"bf16": 2e-2, "fp16": 2e-2}  # of sums in these dtypes: 2^-8 times the square root of a few summands


class Runner:
    """Runs the program in a separate folder, with one thread, and kills it if it takes too long."""

    def __init__(self, program, work, timeout):
        self.program, self.work, self.timeout = str(pathlib.Path(program).resolve()), work, timeout
        self.environment = os.environ | {"CARAVAN_HOME": str(recipe_values.ROOT), "OMP_NUM_THREADS": "1",
                                         "CARAVAN_CACHE": str(work / "cache")}

    def run(self, words, launcher=(), patience=1):
        """Exit code (None: it was ended) and what was printed."""
        process = subprocess.Popen(
            [*launcher, self.program, *map(str, words)], cwd=self.work, env=self.environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        try:
            output = process.communicate(timeout=patience * self.timeout)[0]
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]

    def must(self, *words):
        code, output = self.run(words)
        if code != 0:
            sys.exit(f"caravan {shlex.join(map(str, words))} ended with {code}:\n{output}")

    def train(self, keys, ranks, folder, patience=1, more=(), dump_steps="0-2"):
        """Trains the recipe in a folder. Returns exit code, output, lines of the log, and the dump if there is one.

        `more` are further words of the command line; with --resume the folder is that of the run to continue."""
        if "--resume" not in more:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").write_text(recipe_values.to_toml(keys))
        words = ["train", folder / "recipe.toml", "--set", f"checkpoint.dir={folder / 'run'}", *more]
        launcher = []
        if ranks > 1 and keys.get("comm.backend") in ("mpi", "shm+mpi"):
            launcher = mpi_launcher(ranks)
        else:
            words += ["--ranks", ranks]
        if has_dump(keys) and dump_steps:
            words += ["--dump", folder / "dump", "--dump-steps", dump_steps]
        (folder / "command").write_text(f"CARAVAN_HOME={recipe_values.ROOT} CARAVAN_CACHE={self.work / 'cache'} "
                                        f"{shlex.join([*launcher, self.program, *map(str, words)])}\n")
        code, output = self.run(words, launcher, patience)
        (folder / "output").write_text(f"{output}\nexit code {code}\n")
        log = folder / "run/train.log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if code == 0 and log.exists() else []
        return code, output, lines, dumps.read_dump(folder / "dump") if code == 0 else []


def case_arguments(doc, cases, work):
    """The parser of a program that draws `cases` recipes, each from the seed and its number."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caravan", required=True)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--first", type=int, default=0, help="the first case, to repeat a part")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path(work))
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--without", nargs="*", default=[], metavar="KEY", help="keys of known faults: unset")
    return parser


def runner_of(arguments):
    """The folder of the work, made, with the texts that recipes name; and what runs recipes there."""
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    runner = Runner(arguments.caravan, work, arguments.timeout)
    recipe_values.write_texts(work / "texts", runner.must)
    return work, runner


def first_error(output):
    """The line of the output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("[")] or [
        line for line in lines if re.search(r"\[\w[\w ]*\]|\berror\b", line) and not line.startswith("step ")]
    return (marked or lines or ["nothing was printed"])[0][:300]


def mpi_launcher(ranks):
    return ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", str(ranks)]


def is_asynchronous(keys):
    return keys.get("data_parallel.mode", "sync") != "sync" or keys.get("pipeline.schedule", "").startswith("pipedream")


def has_dump(keys):
    """Dumps are of whole steps, and have the names of transformers, which lacks some models with experts."""
    if is_asynchronous(keys) or keys.get("dump") is False:
        return False
    if keys.get("moe.experts", 0) == 0:
        return True
    if keys.get("model.kind") != "llama" or keys.get("moe.gates", "softmax") != "softmax":
        return False
    if keys.get("moe.shared", 0) > 0:
        return keys.get("moe.shared_gate", False)
    return keys.get("moe.normalize", True) and not keys.get("model.qkv_bias", False)


def is_rough(keys):
    """Whether results may differ from one rank's: old weights, or gradients that are partly sent later."""
    hook = keys.get("data_parallel.hook", "none")
    leaves_out = hook == "powersgd" or hook == "topk" and keys.get("data_parallel.hook_fraction", 0.01) < 1
    return is_asynchronous(keys) or leaves_out


def low_dtype(keys):
    """The dtype that rounds more than fp32, "" if none."""
    names = ("precision.compute", "precision.gradients", "precision.reduce")
    used = [keys.get(name, "") for name in names]
    return next((dtype for dtype in ("bf16", "fp16") if dtype in used), "")


def compare(keys, many, one, exact):
    """What is wrong ("" if nothing), and the largest error. `exact`: the run of one rank in fp32, for low dtypes.

    In fp32 all agree to 1e-5 (later steps: 5e-5, with Adam 1e-3). In a low dtype the distance to fp32 is at most twice
    that of one rank in the same dtype, or the dtype's rounding; of a mixture of experts only the loss is compared
    there, since a rounded score may choose another expert. Rough techniques agree in the first step's loss."""
    lines, theirs = many[2], one[2]
    low, rough = low_dtype(keys), is_rough(keys)
    adam = keys.get("optimizer.kind", "adamw") == "adamw"
    errors = {}
    if [line["step"] for line in lines] != [line["step"] for line in theirs] and not is_asynchronous(keys):
        return "other lines in train.log", math.inf
    later = 0.2 if rough or adam and low else max(ADAM if adam else LATER, 2e-2 if low else 0)
    for line in lines:
        other = next((each for each in theirs if each["step"] == line["step"]), None)
        if other is None:
            continue
        bound = TOLERANCE if line["step"] == 1 and not low and not is_asynchronous(keys) else later
        for key in ("loss", "grad_norm", "val_loss"):
            if key in line and key in other and not (later == 0.2 and key == "grad_norm"):
                # The first validation comes after an update that omits a part of the gradient.
                allowed = later if rough and key == "val_loss" else bound
                errors[f"log of step {line['step']}: {key}"] = dumps.relative(line[key], other[key]) / allowed
    if rough and not all(line["loss"] is not None and math.isfinite(line["loss"]) for line in lines):
        return "a loss that is not finite", math.inf
    if many[3] and one[3]:
        if difference := dumps.first_difference(many[3][0], one[3][0]):
            return f"starts with other {difference}", math.inf
        for step, (a, b) in enumerate(zip(many[3], one[3])):
            if rough or step and adam and low:
                break
            bound = TOLERANCE if step == 0 else ADAM if adam else LATER
            found = dumps.step_errors(a, b, many[3][0] if step else None, one[3][0])
            if not low:
                errors |= {f"step {step}: {name}": error / bound for name, error in found.items()}
            elif not (keys.get("moe.experts") or a["grad_norm"] is None or b["grad_norm"] is None):
                ours = dumps.step_errors(a, exact[3][step], floor=0.01)
                theirs = dumps.step_errors(b, exact[3][step], floor=0.01)
                for name, error in ours.items():
                    errors[f"step {step}: {name}"] = error / (max(2 * theirs[name], ROUNDING[low]) * (1 + step))
    if not errors:
        return "nothing was compared", math.inf
    name, error = dumps.worst(errors)
    return ("" if error <= 1 else f"{name} is {error:.3g} times the tolerance away"), error
