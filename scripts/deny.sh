#!/usr/bin/env bash
# cargo-deny on the dependency tree, without a download of advisories. Installs cargo-deny if it
# is missing: unoptimised, since it runs for a second and would be built for minutes.
set -euo pipefail

if ! cargo deny --version >/dev/null 2>&1; then
    echo "xroce: installing cargo-deny"
    cargo install --locked --quiet --debug cargo-deny --version '^0.20' </dev/null
fi
cargo deny --log-level error check bans licenses sources
