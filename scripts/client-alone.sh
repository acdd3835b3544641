#!/usr/bin/env bash
# A program that uses the daemon needs neither an engine nor what AF_XDP is built with: xroce-verbs is
# checked with each of its features alone, and what the daemon's brings along is looked at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
for feature in daemon inproc; do
    "$cargo" clippy --locked --quiet -p xroce-verbs --no-default-features --features "$feature" -- -D warnings
done
tree=$("$cargo" tree --locked -p xroce-verbs --no-default-features --features daemon -e normal,build)
if grep -E 'xroce-(engine|net|xdp-prog) |bpf|clang|libelf' <<<"$tree"; then
    echo "xroce: a client of the daemon alone must not need these" >&2
    exit 1
fi
