#!/bin/sh
# scripts/check_tidy.sh BUILD [FILE..]: clang-tidy 14 with .clang-tidy's set over src/ and apps/, or over the files given,
# as BUILD (build/ci) compiles them. Files that passed before and are unchanged, with their headers, are not read again.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:?the build folder, such as build/ci}
shift

tidy=
for candidate in clang-tidy-14 clang-tidy; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then tidy=$candidate && break; fi
done
if [ -z "$tidy" ]; then
  echo 'clang-tidy 14 is not installed: not run'
  exit 0
fi
exec python3 scripts/check_tidy.py "$tidy" "$build" "$@"
