"""What `caravan plan` prints of the recipe as it is."""
import re

BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def number(text):
    """Seconds of "212.0 ms" and "8.264 s"."""
    value, unit = re.match(r"([0-9.]+) ?(ms|s)", text).groups()
    return float(value) * (1e-3 if unit == "ms" else 1)


def of_recipe(output):
    """Seconds of a step and bytes of the fullest rank; None if it cannot run."""
    found = re.search(r"^recipe +.*: ([0-9.]+ m?s) (?:\([^)]*\) )?a step, ([0-9.]+) ([KMGT]?i?B)", output, re.M)
    return found and (number(found[1]), float(found[2]) * BYTES[found[3]])
