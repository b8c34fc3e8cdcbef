#!/bin/sh
# Builds the engine with all targets; prints its path.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$(rustc -vV | sed -n 's/^host: //p')
cd "$here/../.."
RUSTC_WRAPPER="$here/instrumented" cargo build --quiet -p forge-fuzz --features libfuzzer --bin fuzz \
  --profile fuzz --target "$target" >&2
echo "${CARGO_TARGET_DIR:-$PWD/target}/$target/fuzz/fuzz"
