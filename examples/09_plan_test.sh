#!/bin/sh
# 09_plan_test.sh CARAVAN PROGRAM: two ranks plan for eight cards and for themselves, and run a step as planned.
set -eu
caravan=$1 program=$2
out=$("$caravan" run "$program" --ranks 2)
echo "$out"
echo "$out" | grep -q '^hardware  1 host of 8 rtx-4090; 8 ranks$'
echo "$out" | grep -q '^hardware  1 host of 2 cpu; 2 ranks$'
test "$(echo "$out" | grep -c '^auto model = parallelize(net, session, {')" = 2
