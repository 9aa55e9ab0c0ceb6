#!/usr/bin/env python3
"""Opens the files of a run in the programs that read them. Not in the suite: the programs are large.

  check_report.py RUN [--chromium chromium]     a run with log.tensorboard = true, after `caravan report RUN`

TensorBoard (its reader, from PyPI: tensorboard) must find every line of train.log; Chromium must show the page without an error on
its console. Writes RUN/report.png to look at.
"""
import argparse
import json
import pathlib
import subprocess
import sys


def check_events(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    lines = [json.loads(line) for line in open(run / "train.log")]
    lines = [line for line in lines if "loss" in line]
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for tag, key in (("train/loss", "loss"), ("speed/step_ms", "step_ms"), ("validation/loss", "val_loss")):
        want = [(line["step"], line[key]) for line in lines if key in line]
        if not want:
            continue
        got = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in got] == [step for step, _ in want], tag
        assert all(abs(a - b) <= 1e-6 * abs(b) for (_, a), (_, b) in zip(got, want)), tag
    print(f"TensorBoard: {len(lines)} lines")


def check_page(run, chromium):
    picture = run / "report.png"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=900,3200",
               f"--screenshot={picture}", (run / "report.html").resolve().as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    errors = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, errors
    assert picture.stat().st_size > 10_000, result.stderr
    print(f"Chromium: no error on its console; look at {picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--chromium", default="chromium")
    arguments = parser.parse_args()
    check_events(arguments.run)
    check_page(arguments.run, arguments.chromium)


if __name__ == "__main__":
    sys.exit(main())
