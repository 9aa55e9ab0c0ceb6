#!/usr/bin/env python3
"""filter.py HEADER: a header as Doxygen reads it best. Tables that comments draw with spaces stay as they are, and
<word> is not HTML."""
import re
import sys


def main():
    in_table = in_list = False
    for line in open(sys.argv[1], encoding="utf-8").read().split("\n"):
        comment = re.match(r"(\s*///) ?(.*)$", line)
        text = comment.group(2) if comment else ""
        in_list = bool(re.match(r"\s*(-|\d+\.) ", text)) or (in_list and text.startswith("  "))
        is_row = text.startswith("  ") and not in_list
        if comment and is_row != in_table:
            print(comment.group(1))
        in_table = is_row
        if is_row:
            line = f"{comment.group(1)}     {text}"  # Markdown takes it for code
        elif comment:
            line = re.sub(r"<(?=/?[a-z_]+[ >-])", r"\\<", line)
        elif not comment and "///<" in line:
            code, _, remark = line.partition("///<")
            line = code + "///<" + re.sub(r"<(?=/?[a-z_]+[ >-])", r"\\<", remark)
        print(line)


if __name__ == "__main__":
    main()
