#!/bin/sh
# Runs 100 jobs of 2 to 4 ranks over shared memory and kills one rank of each (SIGKILL) at a random time between random collectives.
# The others must exit on their own within 1 s, name the rank that was killed, and leave nothing behind. A run takes about 0.3 s.
#   bench/kill_runs.sh [BUILD_FOLDER] [RUNS] [SEED]      default: build/release, 100, a new seed each time
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=${1:-$root/build/release}
seed=${3:-$(date +%s)}
echo "seed $seed"
exec "$build/tests/kill/kill_runs" --runs "${2:-100}" --seed "$seed" --within-ms 1000
