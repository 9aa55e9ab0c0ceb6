#!/bin/sh
# scripts/nccl_headers.sh FOLDER: the headers that src/caravan/comm/nccl.cpp needs beside those of a CPU wheel of torch, out
# of NVIDIA's packages on pip's index (300 MB to load, nearly all of it NCCL's library; 10 MB to keep). Without network it
# says so and ends with 0, FOLDER unmade. Then: cmake --preset release -DCARAVAN_NCCL_HEADERS=FOLDER
set -eu
[ $# -eq 1 ] || { echo 'usage: scripts/nccl_headers.sh FOLDER' >&2; exit 2; }
folder=$1
[ -f "$folder/nccl.h" ] && [ -f "$folder/crt/host_config.h" ] && [ -f "$folder/nv/target" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl nvidia-nccl-cu13; do
  if ! python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$work" "$package"; then
    echo "nccl headers: $package cannot be loaded; the check of nccl.cpp is skipped"
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
