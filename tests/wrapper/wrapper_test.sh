#!/bin/sh
# wrapper_test.sh REPOSITORY: tests the decisions of ./caravan. The package managers, python3, cmake and ninja are
# replaced by scripts that record how they were called. Works in a temporary folder only.
set -u

repository=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
real_python=$(command -v python3 || true)
failures=0
case_name=

# The PATH of the wrapper: the tools that every system has, and our fakes.
tools="$work/tools"
mkdir -p "$tools"
for tool in sh env cat cp sed grep awk df find readlink mkdir rm mv ln ls touch tail head nproc flock dirname printf echo chmod date; do
  ln -s "$(command -v $tool)" "$tools/$tool" 2>/dev/null
done

# fake NAME: creates a command whose body is standard input; every call is recorded in calls.
fake() {
  { printf '#!/bin/sh\nprintf "%%s\\n" "%s $*" >>"$CALLS"\n' "$1" && cat; } >"$bin/$1"
  chmod +x "$bin/$1"
}

# start NAME: an empty checkout with a space in its path, and a system that has everything except torch.
start() {
  case_name=$1
  root="$work/$1/a checkout"
  bin="$work/$1/bin"
  mkdir -p "$root/src" "$root/apps" "$root/cmake" "$bin"
  cp -R "$repository/caravan" "$repository/scripts" "$root/"
  touch "$root/CMakeLists.txt" "$root/CMakePresets.json"
  CALLS="$work/$1/calls"
  : >"$CALLS"
  ROOT=$root
  export CALLS ROOT
  unset CARAVAN_TORCH CARAVAN_TORCH_INDEX CARAVAN_DEPS CARAVAN_HOME CARAVAN_PRESET CARAVAN_YES CMAKE_BUILD_PARALLEL_LEVEL
  fake dpkg-query <<'END'
shift 3
for package; do echo "installed $package"; done
END
  fake id <<'END'
echo 1000
END
  fake apt-get <<'END'
exit 0
END
  fake g++ </dev/null
  fake python3 <<'END'
case $1 in
  *find_torch.py) echo 'it has no torch'; exit 1 ;;
  -V) echo 'Python 3.11.2' ;;
esac
[ "$*" != "-c import ensurepip, venv" ] || exit "${NO_VENV-0}"
[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "${0%/*}/venv_python" "$3/bin/python"; }
END
  fake venv_python <<'END'
case "$*" in
  *"pip download"*)
    [ -z "${WHEEL_ONLY_FROM-}" ] || case "$*" in *"--index-url $WHEEL_ONLY_FROM"*) ;; *) echo 'no matching'; exit 1 ;; esac
    while [ "$1" != --dest ]; do shift; done
    mkdir -p "$2" && touch "$2/${WHEEL-torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl}" ;;
  *"pip install"*torch-*)
    torch=$ROOT/.caravan/venv/lib/python3.11/site-packages/torch
    mkdir -p "$torch/lib" "$torch/include/torch/csrc/api/include/torch"
    touch "$torch/lib/libtorch_cpu.so" "$torch/include/torch/csrc/api/include/torch/types.h" ;;
esac
END
  fake cmake <<'END'
build=$ROOT/build/$2
mkdir -p "$build"
touch "$build/build.ninja"
printf 'CMAKE_HOME_DIRECTORY:INTERNAL=%s\n' "$ROOT" >"$build/CMakeCache.txt"
for option; do
  case $option in
    -DCARAVAN_TORCH=*) echo "CARAVAN_TORCH:PATH=${option#*=}" >>"$build/CMakeCache.txt" ;;
    -D*=ON) option=${option#-D} && echo "${option%=ON}:BOOL=ON" >>"$build/CMakeCache.txt" ;;
  esac
done
END
  fake ctest <<'END'
exit ${CTEST_CODE-0}
END
  fake ninja <<'END'
case $1-$2 in
  build.ninja-) [ -z "${NINJA_REGENERATES-}" ] && exit 0 || { echo "$NINJA_REGENERATES"; exit 1; } ;;
  -n--f) printf '%s\n' "${NINJA_PLANS-}" && exit 0 ;;
  -n-*) printf '[0/2] Re-checking globbed directories...\n[1/2] Re-running CMake...\n' && exit 0 ;; # ninja 1.11.1
esac
[ -z "${NINJA_SAYS-}" ] || { printf '%s\n' "$NINJA_SAYS"; exit 1; }
[ -z "${NINJA_DOES-}" ] || printf '%s\n' "$NINJA_DOES"
echo '[1/1] Linking bin/caravan'
mkdir -p bin
printf '#!/bin/sh\necho "home $CARAVAN_HOME" >>"$CALLS"\nfor argument; do printf "<%%s>" "$argument"; done\nexit ${PROGRAM_CODE-0}\n' >bin/caravan
chmod +x bin/caravan
END
}

# caravan ARGUMENTS..: runs the wrapper; sets code, out and err.
caravan() {
  PATH="$bin:$tools" "${wrapper:-$root/caravan}" "$@" </dev/null >"$work/out" 2>"$work/err"
  code=$?
  out=$(cat "$work/out")
  err=$(cat "$work/err")
}

# check WHAT CONDITION..
check() {
  what=$1
  shift
  "$@" && return
  failures=$((failures + 1))
  printf 'FAILED %s: %s\n  code %s\n  out %s\n  err %s\n  calls %s\n' "$case_name" "$what" "$code" "$out" "$err" "$(tail -n 12 "$CALLS")"
}
says() { case $err in *"$1"*) ;; *) return 1 ;; esac; }
called() { grep -q -- "$1" "$CALLS"; }
not_called() { ! grep -q -- "$1" "$CALLS"; }
lines_with() { [ "$(printf '%s\n' "$err" | grep -c -- "$1")" = "$2" ]; }
make_torch() {
  mkdir -p "$1/lib" "$1/include/torch/csrc/api/include/torch"
  touch "$1/lib/libtorch_cpu.so" "$1/lib/libc10.so" "$1/include/torch/csrc/api/include/torch/types.h"
}
nothing_installed() { fake dpkg-query </dev/null; }

start no_rights
nothing_installed
caravan train
check 'ends with 2' [ "$code" = 2 ]
check 'prints one apt line, without a sudo that is not there' lines_with '^  apt-get update && apt-get install -y .* nlohmann-json3-dev' 1
check 'leaves out what is found without the package manager' lines_with ' g++ ' 0
check 'leaves out what only tests need' lines_with libgtest-dev 0
check 'installs nothing' not_called '^apt-get'
caravan test
check 'test names the test libraries too' lines_with 'libgtest-dev libgmock-dev librapidcheck-dev' 1

start sudo_without_a_terminal
nothing_installed
fake sudo <<'END'
exit 1
END
caravan train
check 'ends with 2' [ "$code" = 2 ]
check 'prints the line with sudo' lines_with '^  sudo apt-get update && sudo apt-get install' 1
check 'does not try sudo unasked' not_called '^sudo'
CARAVAN_YES=1
export CARAVAN_YES
caravan train
check 'sudo that wants a password: 2' [ "$code" = 2 ]
check 'prints the line with sudo, told yes' lines_with '^  sudo apt-get update && sudo apt-get install' 1
fake sudo <<'END'
exit 0
END
caravan train
check 'told yes, with the right: installs' called '^sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends'

start root_installs
nothing_installed
fake id <<'END'
echo 0
END
CARAVAN_TORCH=$work/root_installs/torch
export CARAVAN_TORCH
make_torch "$CARAVAN_TORCH"
caravan train
check 'runs' [ "$code" = 0 ]
check 'unasked' called '^apt-get install -y --no-install-recommends .*libpcre2-dev.* ccache'
fake apt-get <<'END'
echo 'E: Unable to locate package'
exit 100
END
rm -rf "$root/build"
caravan train
check 'a failing apt-get ends with 1' [ "$code" = 1 ]
check 'after the update was tried' called '^apt-get update'
check 'and shows its reason' says 'Unable to locate package'

start no_package_manager
rm "$bin/dpkg-query" "$bin/apt-get" "$bin/ninja"
caravan train
check 'ends with 2' [ "$code" = 2 ]
check 'names what was looked for' says ninja

start wrong_torch
CARAVAN_TORCH=$work/nowhere
export CARAVAN_TORCH
caravan train
check 'ends with 2' [ "$code" = 2 ]
check 'names variable and folder' says "CARAVAN_TORCH=$work/nowhere"
check 'does not fall back to another torch' not_called pip

start cuda_wheel
WHEEL="torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
export WHEEL
caravan train
check 'ends with 1' [ "$code" = 1 ]
check 'says what came' says "$WHEEL"
check 'asked for the CPU build alone' called 'pip download .*--no-deps .*torch==2.13.0+cpu'
check 'installs nothing' not_called 'pip install'
unset WHEEL

start own_torch
caravan train
check 'runs' [ "$code" = 0 ]
check 'builds the two programs alone' called '^ninja -j [0-9]* caravan_app caravan_rank$'
check 'tells the program where the repository is' called "^home $ROOT\$"
check 'says why python3 was not used' says 'python3 not used: it has no torch'
check 'installs without dependencies' called 'pip install .*--no-deps .*torch-2.13.0+cpu-'
check 'installs what its torchrun imports' called 'pip install .*--no-deps typing_extensions'
check 'asks no other index than the one configured' not_called index-url
caravan train
check 'second call: no build, no pip, nothing said' [ "$(grep -c "^ninja -j" "$CALLS")-$(grep -c download "$CALLS")-$err" = 1-1- ]
touch "$root/src/new.cpp"
caravan train
check 'a new source: builds' [ "$(grep -c '^ninja -j' "$CALLS")" = 2 ]
rm "$root/src/new.cpp"
caravan train
check 'a removed source: builds' [ "$(grep -c '^ninja -j' "$CALLS")" = 3 ]
mv "$root" "$root moved"
root="$root moved"
ROOT=$root
caravan train
check 'a moved checkout: configures anew, keeps its torch' [ "$code-$(grep -c '^cmake' "$CALLS")-$(grep -c download "$CALLS")" = 0-2-1 ]

start public_index
WHEEL_ONLY_FROM=https://download.pytorch.org/whl/cpu
export WHEEL_ONLY_FROM
caravan train
check 'runs' [ "$code" = 0 ]
check "falls back to PyTorch's CPU index" called "index-url $WHEEL_ONLY_FROM"
start given_index
WHEEL_ONLY_FROM=https://mirror.example/cpu
caravan train
check 'no wheel: ends with 1' [ "$code" = 1 ]
check 'names the wheel and the Python' says 'no wheel torch 2.13.0+cpu for Python 3.11.2'
CARAVAN_TORCH_INDEX=$WHEEL_ONLY_FROM
export CARAVAN_TORCH_INDEX
caravan train
check 'takes the index given' [ "$code" = 0 ]
unset WHEEL_ONLY_FROM

start no_venv
NO_VENV=1
export NO_VENV
caravan train
check 'asks for python3-venv only now' lines_with 'install -y --no-install-recommends python3 python3-venv' 1
unset NO_VENV

start arguments
make_torch "$work/arguments/torch"
CARAVAN_TORCH=torch
export CARAVAN_TORCH
ln -s "$root/caravan" "$work/arguments/link"
cd "$work/arguments" || exit 1
wrapper=./link
caravan train --set 'model.kind = "gpt2"' '' '*' "it's" '$HOME \n'
check 'arrive as they were given, through a link and a relative CARAVAN_TORCH' \
  [ "$out" = '<train><--set><model.kind = "gpt2"><><*><it'"'"'s><$HOME \n>' ]
PROGRAM_CODE=6
export PROGRAM_CODE
caravan train
check "the program's exit code is the wrapper's" [ "$code" = 6 ]
unset PROGRAM_CODE wrapper

start tests
make_torch "$work/tests/torch"
CARAVAN_TORCH=$work/tests/torch
export CARAVAN_TORCH
caravan train
caravan test -R mesh
check 'runs' [ "$code" = 0 ]
check 'configures anew, with tests and examples' called '^cmake .*-DCARAVAN_TESTS=ON -DCARAVAN_EXAMPLES=ON'
check 'says what it runs' says 'caravan: running the tests of preset release'
check 'builds everything' called '^ninja -j [0-9]* all$'
check 'hands its arguments to ctest, which is the last thing run' [ "$(tail -n 1 "$CALLS")" = "ctest --preset release -j $(nproc) -R mesh" ]
CTEST_CODE=8
export CTEST_CODE
caravan test
check "ctest's exit code is the wrapper's" [ "$code" = 8 ]
check 'configures no third time' [ "$(grep -c '^cmake' "$CALLS")" = 2 ]
unset CTEST_CODE
CARAVAN_PRESET=tsan
export CARAVAN_PRESET
caravan test
check 'a sanitizer preset builds the tests of its label' called '^ninja -j [0-9]* tests_thread$'
check 'and runs its own preset' called '^ctest --preset tsan'

start headers_in_a_folder
nothing_installed
mkdir -p "$work/headers_in_a_folder/deps/include/CLI" "$work/headers_in_a_folder/deps/fmt"
touch "$work/headers_in_a_folder/deps/include/CLI/CLI.hpp" "$work/headers_in_a_folder/deps/fmt/format.h"
CARAVAN_DEPS=$work/headers_in_a_folder/deps
export CARAVAN_DEPS
caravan train
check 'asks for the others' lines_with 'libtomlplusplus-dev' 1
check 'does not ask for what CARAVAN_DEPS has' lines_with 'libcli11-dev\|libfmt-dev' 0

start bad_preset
CARAVAN_PRESET=../x
export CARAVAN_PRESET
caravan train
check 'ends with 2' [ "$code" = 2 ]
check 'lists the presets' says 'release, ci, debug, tsan or asan'

start failing_build
NINJA_SAYS='[1/9] Building a.o
FAILED: b.o
b.cpp:1:1: error: nonsense'
export NINJA_SAYS
caravan train
check 'ends with 1' [ "$code" = 1 ]
check 'shows the error' says 'b.cpp:1:1: error: nonsense'
NINJA_SAYS='FAILED: b.o
fatal error: error writing to b.s: No space left on device'
caravan train
check 'a full disk ends with 5' [ "$code" = 5 ]
unset NINJA_SAYS
caravan train
check 'the next call builds' [ "$code" = 0 ]
touch "$root/src/new.cpp"
NINJA_REGENERATES='CMake Error: nonsense
FAILED: build.ninja '
export NINJA_REGENERATES
caravan train
check 'a build that cmake cannot make anew ends with 1' [ "$code" = 1 ]
check 'shows the error of cmake' says 'CMake Error: nonsense'
check 'says that it is of cmake' says 'cmake could not configure the build'
unset NINJA_REGENERATES

# The time left, from the time of the finished steps and the weights of all steps, of which the check of globs is none.
start time_left
NINJA_PLANS='[1/4] Building CXX object src/caravan/CMakeFiles/caravan.dir/Unity/unity_a.o
[2/4] Building CXX object src/caravan/CMakeFiles/caravan.dir/Unity/unity_b.o
[3/4] Building CXX object apps/caravan/CMakeFiles/caravan_rank.dir/Unity/unity_0.o
[4/4] Building CXX object apps/caravan/CMakeFiles/caravan_app.dir/Unity/unity_0.o'
NINJA_DOES='[0/2] Re-checking globbed directories...
[1/2] Re-running CMake...
[1/4] Building CXX object src/caravan/CMakeFiles/caravan.dir/Unity/unity_a.o
[2/4] Building CXX object src/caravan/CMakeFiles/caravan.dir/Unity/unity_b.o
[3/4] Building CXX object apps/caravan/CMakeFiles/caravan_rank.dir/Unity/unity_0.o'
export NINJA_PLANS NINJA_DOES
echo 1000 >"$work/clock"
rm "$tools/date"
fake date <<END
now=\$(cat "$work/clock")
echo \$((now + 120)) >"$work/clock"
echo \$now
END
caravan train
check 'builds' [ "$code" = 0 ]
# 120 s for 25 of 91, 240 s for 50, 360 s for 75.
check 'counts, names the part and the time left' says 'caravan: [4/4] building 1/4, the library, about 5 minutes left'
check 'corrects itself' says 'caravan: [4/4] building 2/4, the library, about 3 minutes left'
check 'the programs' says 'caravan: [4/4] building 3/4, the programs, about 1 minute left'
check 'no step of two' lines_with 'building ./2' 0
rm "$bin/date"
ln -s "$(command -v date)" "$tools/date"
unset NINJA_PLANS NINJA_DOES

# The search for an importable torch, with the real python3.
find_torch() { PYTHONPATH="$work/python" "$real_python" -S "$repository/scripts/find_torch.py" >"$work/out" 2>&1; code=$?; out=$(cat "$work/out"); err=; }
case_name=find_torch
torch=$work/python/torch
mkdir -p "$torch"
echo 'raise SystemExit("torch was imported")' >"$torch/__init__.py"
echo "__version__ = '2.10.1+cpu'" >"$torch/version.py"
find_torch
check 'too old' [ "$code-$out" = '1-its torch 2.10.1+cpu is not one of 2.11 to 2.14' ]
echo "__version__ = '2.14.1'" >"$torch/version.py"
find_torch
check 'without headers' [ "$code-$out" = '1-its torch 2.14.1 came without include/torch/csrc/api/include/torch/types.h' ]
make_torch "$torch"
find_torch
check 'complete' [ "$code-$out" = "0-$torch" ]

[ "$failures" = 0 ] && echo 'all decisions of the wrapper hold'
exit "$((failures > 0))"
