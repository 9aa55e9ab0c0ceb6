#!/bin/sh
# 05_cnn_test.sh CARAVAN PROGRAM: two epochs on 2 ranks and two more on one learn; SIGTERM saves a checkpoint and ends.
set -eu
caravan=$1 program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$caravan" run "$program" "$work/run" 2 --ranks 2 | tee "$work/log"
"$program" "$work/run" 4 | tee -a "$work/log"
awk '/^step/ { if ($2 + 0 != ++n) bad = 1; last = $4 } END { exit bad || n != 4 || last > 0.05 }' "$work/log"

"$caravan" run "$program" "$work/stopped" 100000 --ranks 2 >"$work/out" &
job=$!
while ! grep -q '^step 2' "$work/out"; do sleep 0.1; done
kill -TERM $job
wait $job || true
ls "$work"/stopped/step_*/manifest.json
