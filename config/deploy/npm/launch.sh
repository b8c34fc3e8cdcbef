#!/bin/sh
# Runs the program of this file's name from the package for this machine, which is beside this one or below it. It
# replaces the shell, so that signals and the exit code are the program's.
set -eu
self=$(readlink -f "$0")
name=${self##*/}
main=${self%/bin/*}
case $(uname -m) in
  x86_64) package=@forge-bridge/linux-x64 ;;
  aarch64) package=@forge-bridge/linux-arm64 ;;
  *) package= ;;
esac
for folder in "$main/node_modules" "${main%/*}"; do
  if [ -n "$package" ] && [ -x "$folder/$package/$name" ]; then exec "$folder/$package/$name" "$@"; fi
done
if [ -z "$package" ]; then
  echo "$name: there is no package for this machine ($(uname -sm)): build it from the sources" >&2
else
  echo "$name: the package $package is not installed: install again without --omit=optional, with glibc" >&2
fi
exit 1
