#!/usr/bin/env python3
"""check_includes.py [ROOT]: checks #include lines against the order of folders that HACKING.md lists.

- A part of src/caravan includes itself and the parts above it in the list.
- What is compiled into caravan_core, the launcher and `caravan` reaches no header of torch.

Prints one line for each violation and exits with 1 if there are any.
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
CORE_TARGETS = re.compile(r"(?:target_sources\(caravan_core PRIVATE|add_library\(caravan_launch STATIC|"
                          r"caravan_program\(\w+ \w+ core)([^)]*)\)")


def listed_parts(text):
    """The parts in their order: folders below src/caravan, or sets of files such as comm/world.{h,cpp} and caravan.h."""
    block = re.search(r"^src/caravan/.*\n((?: +.*\n)+)", text, re.M)
    if block is None:
        sys.exit("check_includes: HACKING.md has no list of folders below a line that begins with src/caravan/")
    parts, parent = [], ""
    for indent, words in re.findall(r"^( +)(\S.*)$", block[1], re.M):
        names = []
        for word in words.split():
            if not re.fullmatch(r"[a-z0-9_/]+(/|\.h|\.\{h,cpp\})", word):
                break
            names.append(word.removesuffix("/"))
        if not names or len(indent) > 4:
            continue  # the text of the line above continues
        if len(indent) == 2:
            parent = names[-1]
        parts += [f"{parent}/{name}" if len(indent) == 4 else name for name in names]
    return parts


class Tree:
    def __init__(self, root):
        self.root = root
        self.parts = listed_parts((root / "HACKING.md").read_text())
        self.text = {}
        self.violations = []

    def includes(self, file):
        """(line, bracket, name) of each #include of a file, given relative to the root."""
        if file not in self.text:
            self.text[file] = (self.root / file).read_text()
        text = self.text[file]
        return [(text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in INCLUDE.finditer(text)]

    def part(self, file):
        """The part of a file given relative to src/caravan, or None. A folder that is not listed belongs to its parent."""
        path = pathlib.PurePosixPath(file)
        for name in (str(path), f"{path.with_suffix('')}.{{h,cpp}}", *(str(folder) for folder in path.parents)):
            if name in self.parts:
                return name
        return None

    def report(self, file, line, fact):
        self.violations.append(f"{file}:{line}: {fact}")

    def check_order(self):
        source = self.root / "src" / "caravan"
        for path in sorted([*source.rglob("*.h"), *source.rglob("*.cpp")]):
            inside = path.relative_to(source).as_posix()
            file = f"src/caravan/{inside}"
            if "/stubs/" in file:
                continue  # declarations of foreign headers
            part = self.part(inside)
            if part is None:
                self.report(file, 1, f"{path.parent.relative_to(source)}/ is not in the list of HACKING.md")
                continue
            for line, bracket, name in self.includes(file):
                if name.startswith("caravan/"):
                    other = self.part(name.removeprefix("caravan/"))
                    if other is None or not (self.root / "src" / name).exists():
                        self.report(file, line, f"includes {name}, which does not exist")
                    elif self.parts.index(other) > self.parts.index(part):
                        self.report(file, line, f"{part} includes {name}, and {other} is below {part} in HACKING.md")
                elif bracket == '"' and name.startswith(("apps/", "tests/", "bench/")):
                    self.report(file, line, f"the library includes {name}")
                elif bracket == '"' and not (path.parent / name).exists():
                    self.report(file, line, f'includes "{name}": write the path from src/, or <> for third-party headers')

    def check_core(self):
        """Follows the includes of every source without torch."""
        seen, queue = set(), []
        for cmake in sorted([*(self.root / "src").rglob("CMakeLists.txt"), *(self.root / "apps").rglob("CMakeLists.txt")]):
            for match in CORE_TARGETS.finditer(cmake.read_text()):
                queue += [(cmake.parent / name).relative_to(self.root).as_posix()
                          for name in match[1].split() if name.endswith(".cpp")]
        origin = {file: file for file in queue}
        if not queue:
            self.report("CMakeLists.txt", 1, "no source of caravan_core found")
        while queue:
            file = queue.pop()
            if file in seen or not (self.root / file).exists():
                continue
            seen.add(file)
            for line, _, name in self.includes(file):
                if name.startswith(TORCH):
                    self.report(file, line, f"includes {name}, and {origin[file]} is compiled without torch")
                reached = f"src/{name}" if name.startswith("caravan/") else name
                if name.startswith(("caravan/", "apps/")):
                    origin.setdefault(reached, origin[file])
                    queue.append(reached)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    tree = Tree(root)
    tree.check_order()
    tree.check_core()
    for violation in tree.violations:
        print(violation)
    print(f"includes: {len(tree.text)} files in {len(tree.parts)} parts, {len(tree.violations)} violations")
    sys.exit(1 if tree.violations else 0)


main()
