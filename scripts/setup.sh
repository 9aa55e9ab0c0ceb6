# Sourced by ./caravan: installs what a build needs, configures, builds. Every step does only what is missing.
#   in    root, preset, build, program, stamp, is_current; purpose: command or test
#   files .caravan/venv (private torch), .caravan/torch (link to the torch in use), .caravan/*.log, build/<preset>
# Exits with 2 if the user has to decide or fix something, 5 if the disk is full, 1 if a step failed.
# shellcheck shell=sh disable=SC2154

own_release=2.13.0
own_size='190 MB, unpacked 800 MB'
own_index=${CARAVAN_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
own_needed_mb=4000 # torch, the precompiled header (500 MB) and the objects of one preset, plus room for another

state=$root/.caravan
. "$root/scripts/packages.sh"

say() { printf 'caravan: %s\n' "$*" >&2; }

# fail CODE WHAT WHAT_TO_DO
fail() {
  printf 'caravan: %s\n  do: %s\n' "$2" "$3" >&2
  exit "$1"
}

# fail_with_log LOG WHAT WHAT_TO_DO: prints the end of the log first, so that the message comes last.
fail_with_log() {
  # What cmake says stands before the line that it failed, what a compiler says after it.
  if grep '^FAILED: ' "$1" | grep -qv ' build\.ninja *$'; then
    sed -n '/^FAILED: /,$p' "$1" | sed -n '1,40p' >&2
  else
    tail -n 25 "$1" >&2
  fi
  if grep -qi 'no space left on device' "$1"; then
    fail 5 "$2: the disk is full." "free some gigabytes in $root (df -h), then run the command again"
  elif grep -q 'fatal error: Killed\|Killed signal' "$1"; then
    fail 5 "$2: the compiler ran out of memory." "set CMAKE_BUILD_PARALLEL_LEVEL=1 and run the command again"
  fi
  fail 1 "$2 (whole log: $1)" "$3"
}

# torch_in FOLDER: prints the folder with include/ and lib/ of torch: FOLDER or one below it.
torch_in() {
  for candidate in "$1" "$1/torch" "$1/libtorch" "$1"/lib/python3*/site-packages/torch "$1"/lib/python3*/dist-packages/torch; do
    if [ -e "$candidate/include/torch/csrc/api/include/torch/types.h" ] && [ -e "$candidate/lib/libtorch_cpu.so" ]; then
      (CDPATH='' cd -- "$candidate" && pwd -P)
      return
    fi
  done
  return 1
}

# choose_torch: sets torch to an existing libtorch, or to nothing and why_not to the reason.
choose_torch() {
  why_not=
  if [ -n "${CARAVAN_TORCH-}" ]; then
    torch=$(torch_in "$CARAVAN_TORCH") || fail 2 \
      "CARAVAN_TORCH=$CARAVAN_TORCH: no include/torch/csrc/api/include/torch/types.h and lib/libtorch_cpu.so in it" \
      "set it to site-packages/torch of an installed torch 2.11 to 2.14 or to an unpacked libtorch, or unset it"
  elif [ -h "$state/torch" ] && torch=$(torch_in "$state/torch"); then
    :
  elif ! command -v python3 >/dev/null; then
    torch=
    why_not='there is no python3'
  elif ! torch=$(python3 "$root/scripts/find_torch.py" 2>&1); then
    why_not="python3 not used: $torch"
    torch=
  fi
}

# install_torch: installs the CPU build of torch into a private virtual environment. Sets torch.
install_torch() {
  venv=$state/venv
  log=$state/torch.log
  say "[2/4] libtorch: $why_not"
  say "[2/4] libtorch: torch $own_release+cpu ($own_size) into $venv"
  rm -rf "$venv" "$state/wheel"
  python3 -m venv "$venv" >"$log" 2>&1 || fail_with_log "$log" 'python3 cannot make a virtual environment' \
    'put a complete python3 on PATH, or set CARAVAN_TORCH to an installed torch'
  [ -t 2 ] && quiet= || quiet=-q
  # +cpu is part of the version: torch==2.13.0 alone also matches a CUDA build of half a gigabyte and its packages.
  # shellcheck disable=SC2086
  set -- "$venv/bin/python" -m pip download $quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --only-binary :all: --dest "$state/wheel" "torch==$own_release+cpu"
  if [ -n "${CARAVAN_TORCH_INDEX-}" ] || ! "$@" >>"$log" 2>&1; then
    say "[2/4] libtorch: from $own_index"
    "$@" --index-url "$own_index" >>"$log" 2>&1 || fail_with_log "$log" \
      "no wheel torch $own_release+cpu for $(python3 -V 2>&1) was found by pip or in $own_index" \
      'check the network, put a python3 from 3.10 to 3.14 first on PATH, or set CARAVAN_TORCH to an installed torch'
  fi
  for wheel in "$state/wheel"/*; do
    case ${wheel##*/} in
      "torch-$own_release+cpu-"*.whl) ;;
      *) fail 1 "pip brought ${wheel##*/}, which is not the CPU build: refused" \
        'see pip config list for an index that renames builds, or set CARAVAN_TORCH to an installed torch' ;;
    esac
  done
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-index --no-compile "$wheel" >>"$log" 2>&1 ||
    fail_with_log "$log" 'installing torch failed' 'read the lines above, then run the command again'
  rm -rf "$state/wheel"
  torch=$(torch_in "$venv") || fail 1 "$wheel holds no libtorch" "report this with $log"
}

# complete_venv: the one Python package that the torchrun of our own torch imports. Building needs none.
complete_venv() {
  case $torch in "$state/venv"/*) ;; *) return 0 ;; esac
  if [ ! -e "${torch%/*}/typing_extensions.py" ]; then
    "$state/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps typing_extensions >>"$state/torch.log" 2>&1 ||
      say "[2/4] typing_extensions could not be installed ($state/torch.log): $state/venv/bin/torchrun will not start"
  fi
}

# configure: runs cmake if there is no build yet, or one for another torch or folder, or without the tests.
configure() {
  cache=$build/CMakeCache.txt
  tests=
  [ "$purpose" = command ] || tests='-DCARAVAN_TESTS=ON -DCARAVAN_EXAMPLES=ON'
  if [ -e "$build/build.ninja" ] && grep -qxF "CARAVAN_TORCH:PATH=$torch" "$cache" &&
    grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache" &&
    { [ -z "$tests" ] || [ "$(grep -cx 'CARAVAN_\(TESTS\|EXAMPLES\):[A-Z]*=ON' "$cache")" = 2 ]; }; then
    # cmake again if a CMakeLists.txt or a globbed folder has changed, so that compile counts the steps of the new build.
    (cd "$build" && ninja build.ninja) >"$build/build.log" 2>&1 || fail_configure "$build/build.log"
    return
  fi
  say "[3/4] configuring preset $preset, torch of $torch"
  if [ -e "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    rm -rf "$cache" "$build/CMakeFiles" # the checkout was moved or copied
  fi
  mkdir -p "$build"
  # shellcheck disable=SC2086
  (cd "$root" && cmake --preset "$preset" "-DCARAVAN_TORCH=$torch" $tests) >"$build/configure.log" 2>&1 ||
    fail_configure "$build/configure.log"
}

fail_configure() {
  fail_with_log "$1" 'cmake could not configure the build' \
    "if a package is named above, install it; if a file of $build is, remove that folder; then run the command again"
}

# weigh LINE: sets weight to the seconds that a step of ninja takes on one core of Zen 4, and what to a word for it. Only
# the ratios matter: how fast this machine is follows from the time that the finished steps took.
weigh() {
  weight=1
  what='the library'
  case $1 in
    *cmake_pch*) weight=27 ;;
    */caravan.dir/Unity/*) weight=25 ;;
    */caravan_core.dir/Unity/* | */template_program.cpp.o) weight=13 ;;
    */caravan_rank.dir/Unity/*) weight=25 what='the programs' ;;
    *apps/*/Unity/*) weight=16 what='the programs' ;;
    *tests/*test_law.dir/*_test.* | *tests/*test_models.dir/*_test.* | *tests/*test_comm_torch.dir/*_test.*) weight=10 what='the tests' ;;
    *tests/*test_law.dir/Unity/* | *tests/*test_models.dir/Unity/* | *tests/*test_comm_torch.dir/Unity/*) weight=30 what='the tests' ;;
    *tests/*/Unity/*) weight=14 what='the tests' ;;
    *tests/*) weight=5 what='the tests' ;;
    *examples/*) weight=15 what='the examples' ;;
    *Building*) weight=5 ;;
  esac
}

# time_left PASSED FINISHED ALL: a phrase from the seconds that passed and the weights; empty while a tenth is not done.
time_left() {
  left=
  [ $(($2 * 10)) -ge "$3" ] && [ "$2" -lt "$3" ] || return 0
  left=$((($1 * ($3 - $2) / $2 + 30) / 60))
  case $left in
    0) left=', less than a minute left' ;;
    1) left=', about 1 minute left' ;;
    *) left=", about $left minutes left" ;;
  esac
}

# show_build ALL: copies ninja's output to the log and shows what is built and the time left, from the weights of the
# finished steps and ALL: in place on a terminal, otherwise in steps of a tenth.
show_build() {
  finished=0
  shown=-1
  began=$(date +%s)
  while IFS= read -r line; do
    printf '%s\n' "$line" >&3
    case $line in
      *'] Re-checking globbed directories'* | *'] Re-running CMake'*) continue ;;
      \[[0-9]*/[0-9]*\]*) ;;
      *) continue ;;
    esac
    done_and_all=${line%%]*}
    done_and_all=${done_and_all#[}
    weigh "$line"
    finished=$((finished + weight))
    tenth=$((finished * 10 / ($1 > finished ? $1 : finished)))
    [ -t 2 ] || [ "$tenth" != "$shown" ] || continue
    shown=$tenth
    time_left $(($(date +%s) - began)) "$finished" "$1"
    if [ -t 2 ]; then
      printf '\r\033[Kcaravan: [4/4] building %s, %s%s ' "$done_and_all" "$what" "$left" >&2
    else
      say "[4/4] building $done_and_all, $what$left"
    fi
  done
  if [ -t 2 ] && [ -n "${done_and_all-}" ]; then echo >&2; fi
}

# compile TARGETS: one compile job per core, but no more than one per 1.5 GB of memory (units with torch's headers need 1).
compile() {
  jobs=${CMAKE_BUILD_PARALLEL_LEVEL-}
  if [ -z "$jobs" ]; then
    jobs=$(nproc)
    by_memory=$(awk '/^MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null) || by_memory=$jobs
    [ "${by_memory:-$jobs}" -ge "$jobs" ] || jobs=$((by_memory > 0 ? by_memory : 1))
  fi
  rm -f "$build/exit_code"
  # The weight of all steps, which a dry run lists. Given build.ninja, it lists only what makes that file anew, which
  # always includes the check of the globbed folders, and ends. So it is given a file that includes build.ninja.
  # shellcheck disable=SC2086
  all=$(cd "$build" && echo 'include build.ninja' | NINJA_STATUS='[%f/%t] ' ninja -n -f /dev/stdin $1 2>/dev/null | {
    all=0
    while IFS= read -r line; do
      weigh "$line"
      all=$((all + weight))
    done
    echo "$all"
  })
  # shellcheck disable=SC2086
  { (cd "$build" && NINJA_STATUS='[%f/%t] ' ninja -j "$jobs" $1 2>&1) && echo 0 >"$build/exit_code"; } | show_build "$all" 3>"$build/build.log"
  [ -e "$build/exit_code" ] || fail_with_log "$build/build.log" 'the build failed' \
    'read the first error above; after a change of compiler or torch, remove the folder build and run the command again'
}

case $preset in
  release | ci | debug | tsan | asan) ;;
  *) fail 2 "CARAVAN_PRESET=$preset is not a preset" 'choose release, ci, debug, tsan or asan' ;;
esac
if ! mkdir -p "$state" "$build" 2>/dev/null || ! (: >"$state/lock") 2>/dev/null; then
  fail 2 "cannot write to $root, where the build goes" 'clone the repository to a folder of your own and run it there'
fi
if command -v flock >/dev/null; then
  exec 9>"$state/lock"
  if ! flock -n 9; then
    say 'another ./caravan is building here: waiting for it'
    flock 9
  fi
fi

if [ "$purpose" = test ] || ! is_current; then
  choose_torch
  free_mb=$(df -Pk "$root" | awk 'END {print int($4 / 1024)}')
  if [ ! -e "$build/build.ninja" ] && [ "$free_mb" -lt "$own_needed_mb" ]; then
    fail 5 "$root has $free_mb MB free, torch and the first build need $own_needed_mb MB" 'free some space, or clone elsewhere'
  fi
  need_packages
  [ -n "$torch" ] || install_torch
  complete_venv
  # Relative if possible: a checkout that is moved keeps its torch.
  case $torch in "$state"/*) link=${torch#"$state/"} ;; *) link=$torch ;; esac
  [ "$(readlink "$state/torch")" = "$link" ] || { rm -f "$state/torch" && ln -s "$link" "$state/torch"; }
  configure
  rm -f "$stamp"
  printf '%s\n%s\n' "${CARAVAN_TORCH-}" "$torch" >"$stamp.new"
  case $purpose-$preset in
    command-*) compile 'caravan_app caravan_rank' ;;
    test-tsan) compile tests_thread ;;
    test-asan) compile tests_memory ;;
    test-*) compile all ;;
  esac
  if [ "$purpose" = command ] || [ -x "$program" ]; then mv "$stamp.new" "$stamp"; else rm -f "$stamp.new"; fi
  [ "$purpose" = test ] || [ -x "$program" ] || fail 1 "the build made no $program" "report this with $build/build.log"
fi
if command -v flock >/dev/null; then exec 9>&-; fi
