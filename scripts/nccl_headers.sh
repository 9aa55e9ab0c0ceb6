#!/bin/sh
# scripts/nccl_headers.sh FOLDER: extracts the headers that src/caravan/comm/backends/nccl/nccl.cpp needs, besides those of torch's
# CPU wheel, from NVIDIA's pip packages: downloads 300 MB, mostly NCCL's library, and keeps 10 MB. Without a network it
# prints a line, creates no FOLDER and exits with 0 (in CI with 1). Then: cmake --preset release -DCARAVAN_NCCL_HEADERS=FOLDER
set -eu
[ $# -eq 1 ] || { echo 'usage: scripts/nccl_headers.sh FOLDER' >&2; exit 2; }
folder=$1
[ -f "$folder/nccl.h" ] && [ -f "$folder/crt/host_config.h" ] && [ -f "$folder/nv/target" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl nvidia-nccl-cu13; do
  if ! python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$work" "$package"; then
    echo "nccl headers: $package cannot be downloaded; nccl.cpp is not checked"
    [ "${CI-}" != true ] || exit 1
    exit 0
  fi
done
python3 - "$work" "$folder" <<'PYTHON'
import pathlib, sys, zipfile
work, folder = map(pathlib.Path, sys.argv[1:])
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, place = name.partition("/include/")
            place = place.removeprefix("cccl/")
            if not found or name.endswith("/") or ("cccl" in wheel.name and not place.startswith("nv/")):
                continue
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
PYTHON
