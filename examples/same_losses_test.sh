#!/bin/sh
# same_losses_test.sh CARAVAN PROGRAM RANKS TOLERANCE LAST [ONE_RANK_ARGS [ARGS]]: the program prints "step N: loss X" with
# the same losses on RANKS ranks as on one, and the last is at most LAST.
set -eu
caravan=$1 program=$2 ranks=$3 tolerance=$4 last=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2086
"$program" ${6-} >"$work/one"
# shellcheck disable=SC2086
"$caravan" run "$program" ${7-${6-}} --ranks "$ranks" >"$work/many"
cat "$work/many"
grep '^step' "$work/one" >"$work/one_losses"
grep '^step' "$work/many" | cut -d' ' -f1-4 | paste -d' ' - "$work/one_losses" | awk -v tolerance="$tolerance" -v most="$last" '
  { apart = $4 - $8; if (apart < 0) apart = -apart
    if ($2 != $6 || apart > tolerance * $8) { print "differs: " $0; bad = 1 }
    last = $4 }
  END { if (NR < 2 || last > most) { print NR " losses, the last is " last; bad = 1 } exit bad }'
