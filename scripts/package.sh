#!/usr/bin/env bash
# Packs the crates that others may depend on, as for a registry: target/package/*.crate.
#
#   scripts/package.sh           packs, and looks at manifests and lists of files
#   scripts/package.sh verify    also builds each from its package, which takes minutes
#
# Public is each crate that does not say `publish = false`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=()
for manifest in transport/*/Cargo.toml xdp-prog/Cargo.toml; do
    grep -q '^publish' "$manifest" || packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest")")
done
verify=(--no-verify)
[ "${1:-}" = verify ] && verify=()

# `--allow-dirty`: what is tried is the tree as it is. All dependencies are there: offline it does not
# ask the registry about every crate anew.
"${CARGO:-cargo}" fetch --locked --quiet
said=$("${CARGO:-cargo}" package --locked --offline --allow-dirty "${verify[@]}" "${packages[@]}" 2>&1) || {
    echo "$said" >&2
    exit 1
}
# There is no public place of this project yet that a manifest could name.
other=$(grep -A 3 '^warning' <<<"$said" | grep '^warning' |
    grep -v 'manifest has no documentation, homepage or repository' || true)
if [ -n "$other" ]; then
    echo "$said" >&2
    exit 1
fi
echo "xroce: packed $(grep -c '^ *Packaged' <<<"$said") crates into target/package"
