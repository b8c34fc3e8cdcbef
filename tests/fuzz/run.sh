#!/bin/sh
# The long run: all targets, or the named ones, under libFuzzer for FORGE_FUZZ_MINUTES (10) each. Prints executions,
# edges, finds and when the last new edge appeared; finds and the grown corpus are in FORGE_FUZZ_OUT (target/fuzz-runs).
# Fails if there are finds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${FORGE_FUZZ_OUT:-$here/../../target/fuzz-runs}
seconds=$((${FORGE_FUZZ_MINUTES:-10} * 60))
[ $# -gt 0 ] || set -- $(ls "$here/corpus")
engine=$("$here/build.sh")

failed=0
printf '%-14s %12s %7s %8s %6s %s\n' target executions edges features finds 'last new edge'
for target in "$@"; do
  mkdir -p "$out/$target/corpus"
  log=$out/$target/log
  state=0
  FORGE_FUZZ_TARGET=$target "$engine" "$out/$target/corpus" "$here/corpus/$target" \
    -artifact_prefix="$out/$target/" -dict="$here/words.dict" -max_len=4096 -timeout=10 \
    -rss_limit_mb=1024 -max_total_time="$seconds" -print_final_stats=1 >"$log" 2>&1 || state=$?
  finds=$(find "$out/$target" -maxdepth 1 -name '*-*' | wc -l)
  [ "$state" -eq 0 ] || failed=1
  awk -v target="$target" -v finds="$finds" '
    /^#[0-9]+/ { for (i = 2; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "ft:") ft = $(i + 1) }
                 runs = substr($1, 2) + 0; if (cov > most) { most = cov; at = runs } }
    /number_of_executed_units/ { runs = $2 }
    END { printf "%-14s %12d %7d %8d %6d after %.0f %% of them\n", target, runs, most, ft, finds, runs ? 100 * at / runs : 0 }
  ' "$log"
done
exit $failed
