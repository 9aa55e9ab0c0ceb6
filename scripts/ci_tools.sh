#!/bin/sh
# scripts/ci_tools.sh: installs what .ci/run needs besides a compiler: the checkers, which are silent where they are
# missing, liburing, without which the disk tier uses threads, and Apache Arrow in .caravan/arrow, so that the tests of
# tables run. As root where a package is missing.
set -eu
cd "$(dirname "$0")/.."

missing=
while read -r package thing; do
  command -v "$thing" >/dev/null || [ -e "/usr/include/$thing" ] || missing="$missing $package"
done <<'END'
clang-format-14 clang-format-14
clang-tidy-14 clang-tidy-14
shellcheck shellcheck
python3-pip pip3
iproute2 ip
liburing-dev liburing.h
END
if [ -n "$missing" ]; then
  echo "installing$missing"
  # shellcheck disable=SC2086
  set -- apt-get install -y -qq --no-install-recommends $missing
  export DEBIAN_FRONTEND=noninteractive
  "$@" >/dev/null 2>&1 || { apt-get update -qq && "$@" >/dev/null; }
fi

arrow=.caravan/arrow
release=26.0.1
if [ ! -e "$arrow/pyarrow-$release.dist-info" ]; then
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$wheels" "pyarrow==$release"
  rm -rf "$arrow"
  mkdir -p "$arrow"
  python3 -m zipfile -e "$wheels"/pyarrow-*.whl "$arrow"
fi
