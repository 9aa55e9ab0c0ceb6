#!/usr/bin/env python3
"""untested_keys.py: prints the keys of a recipe that no test sets to a value other than the default, and fails if there
is one that tests/untested_keys.txt does not list with a reason (a line: key, two spaces, reason).

A key counts as set by `section.key=value` on a command line, by `key = value` below `[section]` in a recipe, by an
assignment to its field in C++, and, if it is one of an entry of the registry, by `{"key", value}`. A line that expects an error does not count: a refused value has no effect. An expression
in place of a value counts.
"""

import pathlib
import re
import sys
import tomllib

root = pathlib.Path(__file__).resolve().parent.parent
VALUE = r"""(?P<value>\\?"[^"\\]*\\?"|'[^']*'|\[[^\]]*\]|[^\s,;)"'\\]+)?"""
EXAMPLES = {"data_parallel.shard"}  # recipes/default.toml shows an example of it, not its default
EXPECTS_ERROR = re.compile(r"refus|THROW|error|invalid|Error|is_not|nearest")


FAMILY_OF_FILE = {"data_keys.cpp": "data_parallel", "optimizer_keys.cpp": "optimizer", "rate_keys.cpp": "learning_rate",
                  "schedule_keys.cpp": "pipeline", "windows.cpp": "pipeline"}


def keys_of_registry():
    """Key -> itself, for the keys that choose an entry of the registry, and for those that entries list."""
    found = {}
    families = re.findall(r'\{"(\w+)", "(\w+)", "(\w*)", "\w*", "[^"]*", OnResume',
                          (root / "src/caravan/registry/registry.cpp").read_text())
    sections = {family: section for family, section, _ in families}
    for _, section, key in families:
        if key:
            found[f"{section}.{key}"] = f"{section}.{key}"
    for folder in ("techniques", "optim"):
        for file in sorted((root / "src/caravan" / folder).rglob("*.cpp")):
            text = file.read_text()
            family = re.search(r'\.family = "(\w+)"', text)
            family = family[1] if family else FAMILY_OF_FILE.get(file.name)
            for key in re.findall(r'\{\{?"(\w+)", OnResume', text):
                found[f"{sections[family]}.{key}"] = f"{sections[family]}.{key}"
    return found


def keys():
    """Key -> field of the Recipe, or the key itself if it has its own functions."""
    found = keys_of_registry()
    for file in sorted((root / "src/caravan/recipe").glob("*_keys.cpp")):
        text = re.sub(r"//[^\n]*", "", file.read_text())
        starts = list(re.finditer(r'\{\s*"([a-z_]+\.[a-z0-9_]+)", OnResume', text))
        for start, following in zip(starts, starts[1:] + [None]):
            body = text[start.end() : following.start() if following else len(text)]
            field = re.search(r"FIELD\(([\w.]+)\)", body)
            found.setdefault(start[1], field[1] if field else start[1])
    return found


def defaults():
    """Key -> value in recipes/default.toml, which has the keys without effect as comments."""
    text = (root / "recipes/default.toml").read_text()
    text = re.sub(r"^# ?(\w+ = (?:\"|\[|-?[0-9]|true|false))", r"\1", text, flags=re.M)
    values = {}
    section = ""
    for line in text.splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            section = header[1]
        elif pair := re.match(r"(\w+) = (.*)", line):
            try:
                values[f"{section}.{pair[1]}"] = tomllib.loads(f"x = {pair[2]}")["x"]
            except tomllib.TOMLDecodeError:
                pass
    return {key: value for key, value in values.items() if key not in EXAMPLES}


def differs(value, default):
    if not value:
        return True  # the value is in another string or a variable
    value = value.replace("\\", "").rstrip(".")
    if value[0] == "'":
        value = '"' + value[1:-1] + '"'
    try:
        return tomllib.loads(f"x = {value}")["x"] != default
    except tomllib.TOMLDecodeError:
        return value != str(default)  # a bare word on a command line, or an expression


def tests():
    """For each file of the tests: its text, and its parts below a [section], without the lines that expect an error."""
    for file in sorted((root / "tests").rglob("*")):
        if file.suffix in (".cpp", ".h", ".sh", ".py", ".toml"):
            text = "\n".join(line for line in file.read_text().splitlines() if not EXPECTS_ERROR.search(line))
            _, *parts = re.split(r"\[([a-z_]+)\](?=\s|\\n)", text)
            yield text, list(zip(parts[::2], parts[1::2]))


def set_by(text, parts, key, field, default):
    section, name = key.split(".")
    places = [(rf"\b{re.escape(key)} ?= ?{VALUE}", text)] if key in text else []
    if field != key and field in text:
        places.append((rf"\.{re.escape(field)} = {VALUE}", text))
    if field == key:  # of an entry: settings in C++ name it without its section
        places.append((rf'"{name}", {VALUE}', text))
    places += [(rf"(?:^|\\n|\s|\"){name} = {VALUE}", part) for title, part in parts if title == section and name in part]
    return any(differs(match["value"], default)
               for pattern, place in places for match in re.finditer(pattern, place, re.M))


def main():
    known = keys()
    normal = defaults()
    texts = list(tests())
    untested = [key for key, field in known.items()
                if not any(set_by(text, parts, key, field, normal.get(key)) for text, parts in texts)]
    exceptions = {}
    for line in (root / "tests/untested_keys.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition("  ")
            exceptions[key] = reason.strip()
    failed = False
    for key in untested:
        if not exceptions.get(key):
            print(f"{key}: no test sets it to a value other than {normal.get(key)!r}")
            failed = True
    for key in exceptions:
        if key not in untested:
            print(f"tests/untested_keys.txt: {key} is {'tested' if key in known else 'no key'}: remove the line")
            failed = True
    print(f"keys of a recipe: {len(known)}, of which tests set {len(known) - len(untested)} to another value")
    return 1 if failed else 0


sys.exit(main())
