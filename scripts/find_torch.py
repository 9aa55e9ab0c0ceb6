"""Prints the folder of an importable torch that Caravan can be built against, or one line with the reason why not.

Does not import torch, which takes over a second: only its headers and libraries are needed.
"""

import importlib.util
import pathlib
import re
import sys

OLDEST, NEWEST = (2, 11), (2, 14)


def find():
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None, "it has no torch"
    torch = pathlib.Path(spec.origin).parent
    version = re.search(r"^__version__ = '((\d+)\.(\d+)[^']*)'", (torch / "version.py").read_text(), re.M)
    if version is None:
        return None, f"no version in {torch}/version.py"
    number = int(version[2]), int(version[3])
    if not OLDEST <= number <= NEWEST:
        return None, f"its torch {version[1]} is not one of {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    for needed in ("include/torch/csrc/api/include/torch/types.h", "lib/libtorch_cpu.so", "lib/libc10.so"):
        if not (torch / needed).exists():
            return None, f"its torch {version[1]} came without {needed}"
    return torch, version[1]


try:
    found, text = find()
except (OSError, ImportError, ValueError) as error:
    found, text = None, f"its torch cannot be read: {error}"
if found is None:
    print(text)
    sys.exit(1)
print(found)
