#!/usr/bin/env python3
"""Tokenizes a text with our tokenizer and with Hugging Face's `tokenizers`, one thread each, and prints MB/s.

  tokenizer.py [--text data/moby_dick.txt] [--json tokenizer.json] [--build build/release] [--rounds 5]

Both read the same tokenizer.json; without --json one of 8192 tokens is trained on the text. `lines`: each line is a text of its own, as
in JSON lines. They run in alternation, and the best round of each counts. Needs `pip install tokenizers`, and `ninja tokenizer_tool`.
"""
import argparse
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}


def ours(tool, json, text):
    """MB/s, and the number of ids."""
    output = subprocess.run([tool, "time", json, text], check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+) ids, \S+ s, (\S+) MB/s", output)
    return float(found[2]), int(found[1])


def ours_by_line(tool, json, lines):
    stream = b"".join(struct.pack("<I", len(line)) + line for line in lines)
    output = subprocess.run([tool, "time-texts", json], check=True, capture_output=True, input=stream).stdout.decode()
    found = re.search(r"(\d+) ids, \S+ s, (\S+) MB/s", output)
    return float(found[2]), int(found[1])


def theirs(tokenizer, texts, num_bytes):
    begin = time.perf_counter()
    count = sum(len(found.ids) for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    return num_bytes / (time.perf_counter() - begin) / 1e6, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "data/moby_dick.txt")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    try:
        import tokenizers
    except ImportError:
        sys.exit("tokenizer.py: no module tokenizers; pip install tokenizers")
    tool = arguments.build / "tests/tokenizer_tool"
    if not tool.exists():
        tool = next(iter(arguments.build.glob("**/tokenizer_tool")), None)
    if tool is None:
        sys.exit(f"tokenizer.py: {arguments.build} has no tokenizer_tool; ninja -C {arguments.build} tokenizer_tool")
    print(machine.describe())
    content = arguments.text.read_bytes()
    lines = [line for line in content.split(b"\n") if line]
    with tempfile.TemporaryDirectory() as folder:
        json = arguments.json
        if json is None:
            json = pathlib.Path(folder) / "tokenizer.json"
            json.write_bytes(subprocess.run([tool, "train", "8192", arguments.text], check=True, capture_output=True).stdout)
        tokenizer = tokenizers.Tokenizer.from_file(str(json))
        texts = {"whole": [content.decode()], "lines": [line.decode() for line in lines]}
        for name, parts in texts.items():
            best = {"ours": 0, "tokenizers": 0}
            for _ in range(arguments.rounds):
                mine = ours(tool, json, arguments.text) if name == "whole" else ours_by_line(tool, json, lines)
                other = theirs(tokenizer, parts, sum(len(part.encode()) for part in parts))
                if mine[1] != other[1]:
                    sys.exit(f"tokenizer.py: {mine[1]} ids, tokenizers has {other[1]}")
                best["ours"], best["tokenizers"] = max(best["ours"], mine[0]), max(best["tokenizers"], other[0])
            print(f"{name:<8} ours {best['ours']:7.1f} MB/s   tokenizers {tokenizers.__version__} "
                  f"{best['tokenizers']:7.1f} MB/s   {best['ours'] / best['tokenizers']:.2f} x")


if __name__ == "__main__":
    main()
