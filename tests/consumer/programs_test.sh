#!/bin/sh
# programs_test.sh CMAKE BUILD SOURCE WORK 'MPIRUN..': installs BUILD, then trains with the installed program from a separate
# folder, with nothing in the environment that leads back to the build: alone, and under each MPIRUN.
set -eu
cmake=$1 build=$2 source=$3 work=$4 mpiruns=$5

rm -rf "$work"
mkdir -p "$work/run"
"$cmake" --install "$build" --prefix "$work/installed" >"$work/install.log"
cd "$work/run"
head -c 20000 "$source/data/moby_dick.txt" >text.txt

# train BACKEND LAUNCHER..: two steps on 2 ranks.
train() {
  backend=$1
  shift
  rm -rf run
  env -i PATH="$PATH" HOME="$work" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 "$@" --set 'data.text="text.txt"' --set 'data.tokenizer="bytes"' --set train.steps=2 --set model.layers=1 \
    --set model.width=32 --set model.heads=2 --set optimizer.warmup_steps=0 --set "comm.backend=\"$backend\"" --set 'checkpoint.dir="run"' >log 2>&1 ||
    { echo "$*: ended with $?" && cat log && exit 1; }
  # Not at the start of a line: Open MPI gives the ranks a terminal, where a progress bar comes first.
  grep -q 'step 2/2  loss' log || { echo "$*: no second step" && cat log && exit 1; }
}

train shm "$work/installed/bin/caravan" train --ranks 2
for mpirun in $mpiruns; do
  train mpi "$mpirun" -n 2 "$work/installed/bin/caravan" train
done
