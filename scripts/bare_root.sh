#!/bin/sh
# scripts/bare_root.sh FOLDER [COMMAND ..]: clones HEAD into a bare Debian 12 with only git and python3, made by
# debootstrap in FOLDER, and runs `./caravan train` and `./caravan test` there as root, or COMMAND. Needs root.
#
# An existing FOLDER is reused: remove it for a first run. The settings of apt and pip are copied in, and the folders
# they name are bind-mounted. All mounts are in a private namespace and end with this script.
# DEBIAN_MIRROR: where debootstrap downloads from (default http://deb.debian.org/debian).
set -eu

if [ "$#" = 0 ] || [ "$(id -u)" != 0 ]; then
  echo 'usage, as root: scripts/bare_root.sh FOLDER [COMMAND ..]' >&2
  exit 2
fi
[ "${BARE_ROOT_MOUNTS-}" = own ] || exec env BARE_ROOT_MOUNTS=own unshare -m --propagation private sh "$0" "$@"

repository=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd -P)
mkdir -p "$1"
bare=$(CDPATH='' cd -- "$1" && pwd -P)
shift

if [ ! -e "$bare/bare_root_is_complete" ]; then
  debootstrap --variant=minbase --include=git,python3 bookworm "$bare" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
  # The image must not contain a build tool, or the run proves nothing.
  for tool in g++ cmake ninja ccache pip; do
    [ ! -e "$bare/usr/bin/$tool" ] || { echo "the bare root already has $tool" >&2 && exit 1; }
  done
  touch "$bare/bare_root_is_complete"
fi

# Settings: files, then the variables that name an index, a proxy or a certificate.
for file in /etc/apt /etc/pip.conf /etc/xdg/pip /root/.config/pip /root/.pip /etc/resolv.conf /etc/hosts \
  /usr/share/keyrings /usr/local/share/ca-certificates /etc/ssl/certs/ca-certificates.crt; do
  [ -e "$file" ] || continue
  mkdir -p "$bare${file%/*}"
  rm -rf "${bare:?}$file"
  cp -RL "$file" "$bare$file"
done
# Debian's ca-certificates rebuilds the bundle from its own certificates and these.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  mkdir -p "$bare/usr/local/share/ca-certificates"
  cp -L /etc/ssl/certs/ca-certificates.crt "$bare/usr/local/share/ca-certificates/machine.crt"
fi
settings=$(env | grep -iE '^(PIP_|[a-z]*_proxy=|SSL_CERT|REQUESTS_CA_BUNDLE=|CURL_CA_BUNDLE=|CARAVAN_TORCH_INDEX=)' |
  grep -v '[[:space:]]' || :)

mount --bind /dev "$bare/dev"
[ ! -e /dev/pts/ptmx ] || mount --bind /dev/pts "$bare/dev/pts"
mount -t tmpfs tmpfs "$bare/dev/shm"
mount -t proc proc "$bare/proc"
mount --rbind /sys "$bare/sys"
# Every folder that a setting names.
{
  [ -z "$settings" ] || printf '%s\n' "$settings"
  python3 -m pip config list 2>/dev/null || :
  cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || :
} | grep -oE "(=|'|file:(//)?|[[:space:]])/[^ '\"]+" | sed -E "s/^(=|'|file:(\/\/)?|[[:space:]])//" | sort -u |
  while read -r named; do
    case $named in /etc/* | /usr/*) continue ;; esac
    [ -d "$named" ] || continue
    mkdir -p "$bare$named"
    mount --bind -o ro "$named" "$bare$named"
  done

if [ ! -e "$bare/root/caravan" ]; then
  git clone --quiet "$repository" "$bare/root/caravan"
fi
[ "$#" != 0 ] || set -- sh -c './caravan train && ./caravan test'
# shellcheck disable=SC2086
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
  $settings chroot "$bare" sh -c 'cd /root/caravan && exec "$@"' sh "$@"
