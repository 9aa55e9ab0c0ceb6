#!/bin/sh
# scripts/check_tidy.sh BUILD [--all | FILE..]: runs clang-tidy 14 with the checks of .clang-tidy over the translation
# units of BUILD (build/ci): those of src/ and apps/ that include no torch header, all of them with --all, or those that
# hold FILE. Units that passed before are skipped while they and the headers they include are unchanged.
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
  [ "${CI-}" != true ] || exit 1
  exit 0
fi
exec python3 scripts/check_tidy.py "$tidy" "$build" "$@"
