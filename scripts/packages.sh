# Sourced by setup.sh: finds and installs the system packages that a build needs.
# shellcheck shell=sh disable=SC2154

# One per line: the package of Debian and Ubuntu, and what it provides: a command, or a header in an include folder.
packages_command='g++ g++
cmake cmake
ninja-build ninja
nlohmann-json3-dev nlohmann/json.hpp
libtomlplusplus-dev toml++/toml.h
libcli11-dev CLI/CLI.hpp
libpcre2-dev pcre2.h
libutf8proc-dev utf8proc.h
libssl-dev openssl/hmac.h
libxxhash-dev xxhash.h
zlib1g-dev zlib.h
libzstd-dev zstd.h
libfmt-dev fmt/format.h'
packages_test='libgtest-dev gtest/gtest.h
libgmock-dev gmock/gmock.h
librapidcheck-dev rapidcheck.h
openmpi-bin mpirun.openmpi
libopenmpi-dev mpicc.openmpi
mpich mpirun.mpich
libmpich-dev mpicc.mpich'

# is_there NAME: looks for what a package provides without the package manager, so that other ways of installing count.
is_there() {
  case $1 in
    *.h | *.hpp)
      [ -e "/usr/local/include/$1" ] || { [ "$have_dpkg" = no ] && [ -e "/usr/include/$1" ]; } ||
        { [ -n "${CARAVAN_DEPS-}" ] && { [ -e "$CARAVAN_DEPS/$1" ] || [ -e "$CARAVAN_DEPS/include/$1" ]; }; } ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# missing_packages: sets missing to the packages that are missing, and missing_things to what they provide.
missing_packages() {
  wanted=$packages_command
  [ "$purpose" = command ] || wanted="$wanted
$packages_test"
  have_dpkg=yes
  command -v dpkg-query >/dev/null || have_dpkg=no
  installed=
  if [ "$have_dpkg" = yes ]; then
    # shellcheck disable=SC2046
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' \
      $(printf '%s\n' "$wanted" | while read -r package _; do echo "$package"; done) 2>/dev/null) || :
  fi
  missing=
  missing_things=
  while read -r package thing; do
    case "
$installed
" in
      *"
installed $package
"*) ;;
      *) is_there "$thing" || { missing="$missing $package" && missing_things="$missing_things $thing"; } ;;
    esac
  done <<END
$wanted
END
  if [ -z "$torch" ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    missing="$missing python3 python3-venv"
    missing_things="$missing_things python3-with-venv"
  fi
  # ccache speeds up later builds, liburing (io_uring) the disk tier: installed along with others, never asked for alone.
  if [ -n "$missing" ] && ! [ -e /usr/include/liburing.h ] && ! is_there liburing.h; then
    missing="$missing liburing-dev"
  fi
  if [ -n "$missing" ] && ! command -v ccache >/dev/null; then missing="$missing ccache"; fi
  missing=${missing# }
  missing_things=${missing_things# }
}

# refuse_packages: prints the one line that the user or an administrator can run.
refuse_packages() {
  say "missing system packages, and no right to install them here. do, once, then run the command again:"
  printf '  %sapt-get update && %sapt-get install -y --no-install-recommends %s\n' "$1" "$1" "$missing" >&2
  exit 2
}

# run_apt AS ARGUMENTS..: AS is empty or sudo. apt's output goes to the log, except for the download size.
run_apt() {
  as=$1
  shift
  rm -f "$state/apt_exit_code"
  # shellcheck disable=SC2086
  { $as env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null 2>&1 && echo 0 >"$state/apt_exit_code"; } |
    while IFS= read -r line; do
      printf '%s\n' "$line" >&3
      case $line in "Need to get "*) say "[1/4] ${line%%.}" ;; esac
    done 3>>"$state/packages.log"
  [ -e "$state/apt_exit_code" ]
}

need_packages() {
  missing_packages
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || fail 2 "not found on this system: $missing_things" \
    "install them with its package manager (Debian's names: $missing)"
  as=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || refuse_packages ''
    as=sudo
    if [ "${CARAVAN_YES-}" = 1 ]; then
      [ -t 2 ] || sudo -n true 2>/dev/null || refuse_packages 'sudo '
    elif [ -t 0 ] && [ -t 2 ]; then
      printf 'caravan: missing system packages: %s\ncaravan: install them with sudo apt-get? [Y/n] ' "$missing" >&2
      read -r answer || answer=n
      case $answer in '' | [Yy]*) ;; *) refuse_packages 'sudo ' ;; esac
    else
      refuse_packages 'sudo '
    fi
  fi
  say "[1/4] installing system packages: $missing"
  : >"$state/packages.log"
  # shellcheck disable=SC2086
  set -- install -y --no-install-recommends $missing
  # The first try skips the update if there are package lists. It fails if they are stale, and the update follows.
  if ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || ! run_apt "$as" "$@"; then
    run_apt "$as" update || fail_with_log "$state/packages.log" 'apt-get update failed' 'check the network and /etc/apt'
    run_apt "$as" "$@" || fail_with_log "$state/packages.log" 'apt-get could not install the packages' \
      'read the lines above, repair that, then run the command again'
  fi
}
