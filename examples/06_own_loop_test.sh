#!/bin/sh
# 06_own_loop_test.sh CARAVAN PROGRAM: 100 steps on 2 ranks and 100 more on 3 have the losses of 200 steps on one.
set -eu
caravan=$1 program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" "$work/one" 200 >"$work/one.txt"
"$caravan" run "$program" "$work/many" 100 --ranks 2 >"$work/many.txt"
"$caravan" run "$program" "$work/many" 200 --ranks 3 >>"$work/many.txt"
cat "$work/many.txt"
grep -q '^from step 0 on 2 ranks$' "$work/many.txt"
grep -q '^from step 100 on 3 ranks$' "$work/many.txt"
"$caravan" inspect "$work/many" | grep -q '^program *its own, at step 200 rows=48000$'

# Sums in another order differ in the last bits.
grep '^step' "$work/one.txt" >"$work/one_losses.txt"
grep '^step' "$work/many.txt" | paste - "$work/one_losses.txt" | awk '
  { apart = $4 - $8; if (apart < 0) apart = -apart
    if ($2 != $6 || apart > 1e-4 * $8) { print "differs: " $0; bad = 1 }
    last = $4 }
  END { if (NR != 4 || last > 0.2) { print NR " losses, the last is " last; bad = 1 } exit bad }'
