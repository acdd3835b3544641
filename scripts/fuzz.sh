#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz, or those named.
#
#   scripts/fuzz.sh RUNS [TARGET...]
#
# libFuzzer comes as a crate (it needs a C++ compiler); the coverage it wants is an option of
# stable rustc. New inputs go to target/fuzz/corpus, findings to target/fuzz/found; the committed
# corpora are read only. `scripts/fuzz.sh merge` makes the committed corpora anew, from both, with
# as few inputs as cover the same.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
runs=${1:?how many executions per target, or merge}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(frame calls engines)

command -v c++ >/dev/null || {
    echo "fuzz: libFuzzer is C++, and there is no c++ (Debian: apt install g++)" >&2
    exit 1
}
out=${CARGO_TARGET_DIR:-$root/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
# Level 4: edges and indirect calls. The target is named so that build scripts stay without.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
(
    cd tests/fuzz
    CARGO_TARGET_DIR=$out RUSTFLAGS="${RUSTFLAGS:-} $flags" \
        cargo build --locked --release --target "$host"
)

# Short scripts: many of them find more than few long ones.
declare -A max_len=([frame]=400 [calls]=224 [engines]=96)
for target in "${targets[@]}"; do
    own=$out/corpus/$target
    kept=$root/tests/fuzz/corpus/$target
    found=$out/found/$target
    mkdir -p "$own" "$found"
    binary=$out/$host/release/$target
    if [ "$runs" = merge ]; then
        fresh=$(mktemp -d)
        # By edges alone: how often each is taken makes five times as many inputs.
        "$binary" -merge=1 -use_counters=0 -max_len="${max_len[$target]}" "$fresh" "$kept" "$own"
        rm -rf "$kept"
        mv "$fresh" "$kept"
        chmod 755 "$kept"
        continue
    fi
    echo "fuzz: $target, $runs executions"
    "$binary" "$own" "$kept" -runs="$runs" -max_len="${max_len[$target]}" -len_control=20 \
        -timeout=20 -print_final_stats=1 -artifact_prefix="$found/"
done
