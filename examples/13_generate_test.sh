#!/bin/sh
# 13_generate_test.sh CARAVAN PROGRAM: one rank, two ranks and the command continue a text alike.
set -eu
caravan=$1 program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$caravan" train --ranks 1 --set train.steps=20 --set optimizer.lr=0.01 --set model.layers=2 --set model.width=32 \
  --set model.heads=4 --set model.context=64 --set train.global_batch=4 --set data.tokenizer=bytes \
  --set sample.tokens=0 --set checkpoint.dir="$work/run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$program" "$work/run" "Call me" >"$work/one"
cat "$work/one"
"$caravan" run "$program" "$work/run" "Call me" --ranks 2 | cmp - "$work/one"
"$caravan" generate "$work/run" --prompt "Call me" --tokens 32 --temperature 0 | cmp - "$work/one"
