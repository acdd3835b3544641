#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz, or those named.
#
#   scripts/fuzz.sh RUNS [TARGET...]       fuzzes
#   scripts/fuzz.sh merge [TARGET...]      packs the committed and the new inputs, minimised
#   scripts/fuzz.sh add TARGET FILE...     puts inputs, such as a finding, into the committed ones
#   scripts/fuzz.sh unpack [TARGET...]     unpacks the committed inputs, to look at them
#
# libFuzzer comes as a crate (it needs a C++ compiler); the coverage it wants is an option of
# stable rustc. The committed inputs of a target are an archive, tests/fuzz/corpus/TARGET.tar.xz,
# which is unpacked to target/fuzz/kept/TARGET. New inputs go to target/fuzz/corpus, findings to
# target/fuzz/found; only merge and add write an archive. merge keeps as few inputs as cover the
# same. The same inputs always make the same archive.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
runs=${1:?how many executions per target, or merge, add, unpack}
shift
if [ "$runs" = add ]; then
    [ $# -ge 2 ] || {
        echo "fuzz: add takes a target and files: scripts/fuzz.sh add TARGET FILE..." >&2
        exit 1
    }
    targets=("$1")
    shift
else
    targets=("$@")
fi
[ ${#targets[@]} -gt 0 ] || targets=(frame calls engines)

archives=$root/tests/fuzz/corpus
for target in "${targets[@]}"; do
    [ -e "$archives/$target.tar.xz" ] || {
        echo "fuzz: there is no target $target; there are frame, calls and engines" >&2
        exit 1
    }
done
command -v xz >/dev/null || {
    echo "fuzz: the inputs are packed by xz, and there is no xz (Debian: apt install xz-utils)" >&2
    exit 1
}
out=${CARGO_TARGET_DIR:-$root/target}/fuzz

unpack() { # target: the committed inputs, and nothing else, into $out/kept/TARGET
    rm -rf "$out/kept/$1"
    mkdir -p "$out/kept"
    tar -C "$out/kept" -xJf "$archives/$1.tar.xz"
}

pack() { # target: $out/kept/TARGET into the archive; nothing in it says when or by whom
    local made=$archives/$1.tar.xz.new
    (cd "$out/kept" && LC_ALL=C find "$1" -type f -print0 | LC_ALL=C sort -z |
        tar --null --no-recursion --files-from=- --format=ustar --mode=644 --mtime=@0 \
            --owner=0 --group=0 --numeric-owner -cf -) | xz -9e --threads=1 >"$made"
    mv "$made" "$archives/$1.tar.xz"
    echo "fuzz: $1, $(tar -tJf "$archives/$1.tar.xz" | wc -l) inputs"
}

for target in "${targets[@]}"; do
    unpack "$target"
done
if [ "$runs" = unpack ]; then
    echo "fuzz: unpacked to $out/kept"
    exit 0
fi
if [ "$runs" = add ]; then
    for file in "$@"; do
        # As libFuzzer names them.
        cp "$file" "$out/kept/${targets[0]}/$(sha1sum <"$file" | cut -d' ' -f1)"
    done
    pack "${targets[0]}"
    exit 0
fi

command -v c++ >/dev/null || {
    echo "fuzz: libFuzzer is C++, and there is no c++ (Debian: apt install g++)" >&2
    exit 1
}
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
    kept=$out/kept/$target
    found=$out/found/$target
    mkdir -p "$own" "$found"
    binary=$out/$host/release/$target
    if [ "$runs" = merge ]; then
        fresh=$out/fresh/$target
        rm -rf "$fresh"
        mkdir -p "$fresh"
        # By edges alone: how often each is taken makes five times as many inputs.
        "$binary" -merge=1 -use_counters=0 -max_len="${max_len[$target]}" "$fresh" "$kept" "$own"
        rm -rf "$kept"
        mv "$fresh" "$kept"
        pack "$target"
        continue
    fi
    echo "fuzz: $target, $runs executions"
    "$binary" "$own" "$kept" -runs="$runs" -max_len="${max_len[$target]}" -len_control=20 \
        -timeout=20 -print_final_stats=1 -artifact_prefix="$found/"
done
