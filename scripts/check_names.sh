#!/bin/sh
# No name of an entry of the registry in the folders that technique_files.py --check looks at: they ask the registry and its
# traits. apps/caravan/template/ is a program of a user. And engine/ moves nothing by itself: each collective is a cell of
# the law (redistribute/flat.h).
set -eu
cd "$(dirname "$0")/.."
status=0
scripts/technique_files.py --check || status=1
verbs='all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|send|recv'
if grep -rnE "[.>]($verbs)(_async)?\\(|\\b($verbs)_async\\(" src/caravan/engine; then
  echo 'engine/ calls a communicator above: start a FlatCell (redistribute/flat.h)' >&2
  status=1
fi
exit "$status"
