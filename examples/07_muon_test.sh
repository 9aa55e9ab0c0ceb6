#!/bin/sh
# 07_muon_test.sh CARAVAN PROGRAM: Muon on 2 ranks has the losses of one rank under DDP, and is refused under FSDP.
set -eu
"$(dirname "$0")/same_losses_test.sh" "$1" "$2" 2 1e-3 0.4 ddp
if "$1" run "$2" zero3 --ranks 2 2>"${TMPDIR:-/tmp}/muon_refused.$$"; then
  echo "zero3 was accepted"
  exit 1
fi
grep '0.weight: is sharded over dp' "${TMPDIR:-/tmp}/muon_refused.$$"
rm "${TMPDIR:-/tmp}/muon_refused.$$"
