"""The program of docs/seeing.md that follows train.log, with a stand-in for wandb: wandb_test.py SOURCE."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

source = pathlib.Path(sys.argv[1])
program = re.search(r"```python\n(.*?)```", (source / "docs/seeing.md").read_text(), re.S).group(1)
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "wandb.py").write_text("import json\ncalls = open('calls', 'w')\n"
                                     "def init(**words): print(json.dumps(words), file=calls)\n"
                                     "def log(metrics, step): print(json.dumps([step, metrics]), file=calls)\n"
                                     "def finish(): calls.close()\n")
    (folder / "follow.py").write_text(program)
    run = folder / "runs/my-1"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("[train]\nsteps = 3\n")
    log = run / "train.log"
    lines = [json.dumps({"step": step, "loss": 3.5 - step, "lr": 0.1}) + "\n" for step in (1, 2, 3)]
    # For a while the file ends in the middle of a line of two-byte characters.
    log.write_text(lines[0] + '{"resumed_after": 1, "changed": []}\n' + lines[1] + '{"text": "\u00e9\u00e9\u00e9')
    following = subprocess.Popen([sys.executable, "follow.py", str(run)], cwd=folder)
    time.sleep(1.5)
    with log.open("a") as rest:
        rest.write('"}\n' + lines[2])
    assert following.wait(timeout=30) == 0
    calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    assert calls[0] == {"project": "caravan", "name": "my-1", "config": {"train": {"steps": 3}}}, calls[0]
    assert calls[1:] == [[step, {"loss": 3.5 - step, "lr": 0.1}] for step in (1, 2, 3)], calls
