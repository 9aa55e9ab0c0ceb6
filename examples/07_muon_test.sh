#!/bin/sh
# 07_muon_test.sh CARAVAN PROGRAM: Muon on 2 ranks has the losses of one rank under DDP, whatever shards the matrices.
set -eu
for technique in ddp zero1 zero2 zero3; do
  "$(dirname "$0")/same_losses_test.sh" "$1" "$2" 2 1e-3 0.4 ddp "$technique"
done
