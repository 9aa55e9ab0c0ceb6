#!/bin/sh
# No name of a technique in train/, apps/ and checkpoint/: they ask the registry and its traits
# (apps/caravan/template/ is a program of a user).
# And engine/ moves nothing by itself: each collective is a cell of the law (redistribute/flat.h).
set -eu
cd "$(dirname "$0")/.."
status=0
names='ddp|fsdp|hsdp|zero_?[123]|parameter_server|tensor_[123]d|tensor_25d|megatron|ulysses|ring_attention'
if grep -rnwiE --exclude-dir=template "$names" src/caravan/train src/caravan/checkpoint apps; then
  echo 'a technique is named above: ask the registry (registry/registry.h) and its traits' >&2
  status=1
fi
verbs='all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|send|recv'
if grep -rnE "[.>]($verbs)(_async)?\\(|\\b($verbs)_async\\(" src/caravan/engine; then
  echo 'engine/ calls a communicator above: start a FlatCell (redistribute/flat.h)' >&2
  status=1
fi
exit "$status"
