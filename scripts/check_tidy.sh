#!/bin/sh
# scripts/check_tidy.sh BUILD [--all | FILE..]: clang-tidy 14 with .clang-tidy's set, as BUILD (build/ci) compiles the files:
# those of src/ and apps/ that include no torch header, 3 s each; --all of them, 7 s each with torch; or those given.
# Files that passed before and are unchanged, with their headers, are not read again.
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
