"""check_tidy.py CLANG_TIDY BUILD [--all | FILE..]: the work of check_tidy.sh."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

tidy, build, *chosen = sys.argv[1:]
root = pathlib.Path.cwd()
build = root / build
folder = build / "tidy"
passed = folder / "passed"

# What only GCC understands: its precompiled header (clang reads the headers themselves), some flags, its warnings.
GCC_ONLY = re.compile(r"-include \S*cmake_pch\.hxx|-W\S+|-fpch-preprocess|-fno-thread-jumps|-fopenmp")

# clang 14 lacks the builtin that std::source_location of libstdc++ needs.
SOURCE_LOCATION = """#include <version>
#ifndef __cpp_lib_source_location
#define __cpp_lib_source_location 201907L
namespace std {
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                           unsigned line = __builtin_LINE(), unsigned column = 0) noexcept {
    return {file, function, line, column};
  }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr const char* function_name() const noexcept { return function_; }
  constexpr unsigned line() const noexcept { return line_; }
  constexpr unsigned column() const noexcept { return column_; }
  const char* file_ = "";
  const char* function_ = "";
  unsigned line_ = 0;
  unsigned column_ = 0;
};
}  // namespace std
#endif
"""


def sources(entry):
    """The files, relative to the root, that an entry compiles: those that a unit of a unity build includes, or the one."""
    file = pathlib.Path(entry["file"])
    files = [file]
    if file.parent.name == "Unity":
        files = [pathlib.Path(name) for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M)]
    return [file.relative_to(root).as_posix() for file in files if file.is_relative_to(root)]


def wanted(entry):
    names = sources(entry)
    if chosen and chosen != ["--all"]:
        return any(name in chosen for name in names)
    in_library = bool(names) and all(name.startswith(("src/", "apps/")) for name in names)
    return in_library and (bool(chosen) or "/torch/" not in entry["command"])


def fingerprint(entry):
    """A hash of the file, our headers it includes, the command line and the set of checks."""
    digest = hashlib.sha256((root / ".clang-tidy").read_bytes() + entry["command"].encode())
    seen, queue = set(), [pathlib.Path(entry["file"])]
    while queue:
        file = queue.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        text = file.read_bytes()
        digest.update(text)
        for name in re.findall(rb'#include ["<]([^">]+)[">]', text):
            queue += [root / "src" / name.decode(), file.parent / name.decode(), root / name.decode()]
    return digest.hexdigest()


def check(entry):
    mark = passed / fingerprint(entry)
    if mark.exists():
        return ""
    result = subprocess.run([tidy, "--quiet", "-p", str(folder), entry["file"]], capture_output=True, text=True)
    if result.returncode == 0:
        mark.touch()
        return ""
    return result.stdout or result.stderr


folder.mkdir(exist_ok=True)
passed.mkdir(exist_ok=True)
(folder / "source_location.h").write_text(SOURCE_LOCATION)
entries = [e for e in json.loads((build / "compile_commands.json").read_text()) if wanted(e)]
for entry in entries:
    entry["command"] = shlex.join(
        shlex.split(GCC_ONLY.sub("", entry["command"])) + ["-w", "-include", f"{folder}/source_location.h"])
(folder / "compile_commands.json").write_text(json.dumps(entries))
entries = list({e["file"]: e for e in entries}.values())
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    findings = [text for text in pool.map(check, entries) if text]
print("".join(findings), end="")
num_sources = sum(len(sources(entry)) for entry in entries)
print(f"clang-tidy: {num_sources} files in {len(entries)} translation units, {len(findings)} units with findings")
if not entries:
    print(f"clang-tidy: {build}/compile_commands.json names none of the files: configure that build again")
sys.exit(1 if findings or not entries else 0)
