#!/bin/sh
# package_test.sh CPACK BUILD SOURCE WORK: packs BUILD, unpacks the archive in another folder and trains with it, and looks
# into the Debian package.
set -eu
cpack=$1 build=$2 source=$3 work=$4

rm -rf "$work"
mkdir -p "$work/run" "$work/unpacked"
generators=TGZ
command -v dpkg-deb >/dev/null && generators="TGZ;DEB"
"$cpack" --config "$build/CPackConfig.cmake" -G "$generators" -B "$work/packages" >"$work/cpack.log" 2>&1 ||
  { cat "$work/cpack.log" && exit 1; }
tar -xzf "$work"/packages/caravan-*.tar.gz -C "$work/unpacked" --strip-components 1
cd "$work/run"
head -c 20000 "$source/data/moby_dick.txt" >text.txt
caravan() {
  env -i PATH="$PATH" HOME="$work" "$work/unpacked/bin/caravan" "$@" >log 2>&1 || { cat log && exit 1; }
}
caravan version
grep -q '^caravan ' log
caravan train --ranks 2 --set data.text=text.txt --set data.tokenizer=bytes --set train.steps=2 --set model.layers=1 \
  --set model.width=32 --set model.heads=2 --set checkpoint.dir=run
grep -q 'step 2/2  loss' log
for file in share/man/man1/caravan.1 share/caravan/recipes/shakespeare.toml share/doc/caravan/LICENSE include/caravan/caravan.h; do
  [ -f "$work/unpacked/$file" ] || { echo "the archive lacks $file" && exit 1; }
done

[ "$generators" = TGZ ] && exit 0
dpkg-deb --info "$work"/packages/caravan_*.deb >info
dpkg-deb --contents "$work"/packages/caravan_*.deb >contents
for library in libc6 libpcre2-8 libutf8proc libssl zlib1g libzstd; do
  grep -q "Depends:.*$library" info || { echo "does not depend on $library" && cat info && exit 1; }
done
grep -q ' \./usr/bin/caravan$' contents
grep -q ' \./usr/bin/caravan-rank$' contents
! grep -q libtorch contents
