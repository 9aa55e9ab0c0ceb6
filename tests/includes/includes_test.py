"""Plants violations in a small tree and expects scripts/check_includes.py to name each of them, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_includes.py"

HACKING = """# A project

```text
src/caravan/           the library
  base/                errors and
                       more; comm/ is only mentioned here
  comm/                the root of comm
    store/ flight/     two parts in one line
    world.{h,cpp}      a part of two files
  nn/                  layers
apps/caravan/          programs
```
"""

CLEAN = {
    "HACKING.md": HACKING,
    "src/caravan/CMakeLists.txt": "target_sources(caravan_core PRIVATE base/error.cpp\n  comm/store/store.cpp)\n"
                                  "target_sources(caravan PRIVATE nn/model.cpp)\n",
    "apps/caravan/CMakeLists.txt": "add_library(caravan_launch STATIC launch.cpp)\n",
    "apps/caravan/launch.cpp": '#include "caravan/comm/store/store.h"\n',
    "src/caravan/base/error.h": "#include <string>\n",
    "src/caravan/base/error.cpp": '#include "caravan/base/error.h"\n',
    "src/caravan/comm/comm.h": '#include "caravan/base/error.h"\n',
    "src/caravan/comm/world.h": '#include "caravan/comm/flight/flight.h"\n',
    "src/caravan/comm/store/store.h": '#include "caravan/comm/comm.h"\n',
    "src/caravan/comm/store/store.cpp": '#include "caravan/comm/store/store.h"\n',
    "src/caravan/comm/flight/flight.h": '#include "caravan/comm/store/store.h"\n',
    "src/caravan/nn/model.h": '#include <ATen/core/Tensor.h>\n#include "caravan/comm/world.h"\n',
    "src/caravan/nn/model.cpp": '#include "caravan/nn/model.h"\n',
}

# What is planted: a file, its text, and what the line that reports it must hold.
PLANTED = [
    ("src/caravan/base/up.h", '#include "caravan/nn/model.h"\n', "src/caravan/base/up.h:1: base includes caravan/nn/model.h"),
    ("src/caravan/comm/up.cpp", '\n#include "caravan/comm/world.h"\n', "src/caravan/comm/up.cpp:2: comm includes"),
    ("src/caravan/comm/store/up.h", '# include "caravan/comm/flight/flight.h"\n', "comm/store includes"),
    ("src/caravan/other/new.h", "#include <string>\n", "other/ is not in the list"),
    ("src/caravan/nn/gone.h", '#include "caravan/nn/nothing.h"\n', "caravan/nn/nothing.h, which does not exist"),
    ("src/caravan/nn/app.h", '#include "apps/caravan/launch.h"\n', "the library includes apps/caravan/launch.h"),
    ("src/caravan/base/error.h", "#include <c10/util/Exception.h>\n", "base/error.h:1: includes c10/util/Exception.h"),
    ("apps/caravan/launch.cpp", '#include "caravan/nn/model.h"\n', "nn/model.h:1: includes ATen/core/Tensor.h"),
]


def check(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            file = pathlib.Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        result = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
    assert not result.stderr, result.stderr
    return result.returncode, result.stdout


def main():
    code, output = check(CLEAN)
    assert code == 0, output
    for name, text, expected in PLANTED:
        code, output = check({**CLEAN, name: text})
        assert code == 1, f"{name} passed:\n{output}"
        *violations, _ = output.splitlines()
        assert len(violations) == 1 and expected in violations[0], f"expected {expected!r}:\n{output}"
    print(f"{len(PLANTED)} planted violations found")


main()
