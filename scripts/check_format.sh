#!/bin/sh
# scripts/check_format.sh [--fix]: checks format (clang-format 14), line length and file length of every C++ file. Lines of
# more than 120 bytes and files of more than 500 lines (tests 700, headers of the library 200) are errors; files with more
# than 300 lines are listed.
set -u
cd "$(dirname "$0")/.." || exit 1

files=$(git ls-files -co --exclude-standard '*.cpp' '*.h' | while read -r file; do [ -f "$file" ] && echo "$file"; done)
failed=0

formatter=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then formatter=$candidate && break; fi
done
# Other versions format some lines differently.
if [ -z "$formatter" ]; then
  echo 'clang-format 14 is not installed: format not checked'
  [ "${CI-}" != true ] || failed=1
elif [ "${1-}" = --fix ]; then
  echo "$files" | xargs "$formatter" -i
else
  unformatted=$(echo "$files" | xargs "$formatter" --dry-run 2>&1 | sed -n 's/^\([^ :]*\):.*clang-format-violations.*/\1/p' | sort | uniq -c)
  if [ -n "$unformatted" ]; then
    printf 'not formatted (lines, file); run scripts/check_format.sh --fix:\n%s\n' "$unformatted"
    failed=1
  fi
fi

# clang-format does not wrap comments (ReflowComments) nor long words.
long=$(echo "$files" | grep -E '^(src|apps|tests|examples|bench)/' | LC_ALL=C xargs grep -nE '^.{121,}' /dev/null | cut -d: -f1,2)
if [ -n "$long" ]; then
  printf 'lines of more than 120 bytes:\n%s\n' "$long"
  failed=1
fi

for file in $files; do
  lines=$(wc -l <"$file")
  case $file in
    tests/*) limit=700 soft=700 ;;
    src/*.h) limit=200 soft=200 ;;
    *) limit=500 soft=300 ;;
  esac
  if [ "$lines" -gt "$limit" ]; then
    echo "$file: $lines lines, the limit is $limit: split it"
    failed=1
  elif [ "$lines" -gt "$soft" ]; then
    echo "$file: $lines lines, more than $soft"
  fi
done
[ "$failed" = 0 ] && echo "format and sizes: $(echo "$files" | wc -l) files are fine"
exit "$failed"
