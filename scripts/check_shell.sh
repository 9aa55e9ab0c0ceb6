#!/bin/sh
# scripts/check_shell.sh: shellcheck over every shell script of the repository.
set -u
cd "$(dirname "$0")/.." || exit 1

if ! command -v shellcheck >/dev/null; then
  echo 'shellcheck is not installed: scripts not checked'
  [ "${CI-}" != true ] || exit 1
  exit 0
fi
files=$(git ls-files -co --exclude-standard | while read -r file; do
  [ -f "$file" ] && head -n 1 "$file" 2>/dev/null | tr -d '\0' | grep -qE '^#!.*[ /](ba|da)?sh( |$)|^# shellcheck shell=' && echo "$file"
done)
# Sourced parts carry the line `# shellcheck shell=sh` further down.
files="$files scripts/packages.sh scripts/setup.sh"
# shellcheck disable=SC2086
shellcheck -x --severity=warning --source-path=SCRIPTDIR $files || exit 1
# shellcheck disable=SC2086
echo "shellcheck: $(echo $files | wc -w) scripts are fine"
