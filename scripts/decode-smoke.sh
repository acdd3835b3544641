#!/usr/bin/env bash
# `xroce decode` on every capture in the repository, text, JSON and summary: all must end well,
# and all JSON must be JSON. Uses the command as built for the tests.
set -euo pipefail

xroce=${CARGO_TARGET_DIR:-target}/debug/xroce
count=0
for file in tests/data/captures/*.pcap tests/data/vectors/*.pcap; do
    "$xroce" decode "$file" >/dev/null
    "$xroce" decode --summary "$file" >/dev/null
    "$xroce" decode --json "$file" | python3 -c 'import json, sys; [json.loads(l) for l in sys.stdin]'
    count=$((count + 1))
done
echo "xroce: decode read $count captures"
