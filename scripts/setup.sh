#!/usr/bin/env bash
# Installs what is missing, and only that.
#
#   scripts/setup.sh build   to build with AF_XDP and to run the demo
#   scripts/setup.sh test    also what the tests use
#   scripts/setup.sh bench   also what the benches measure with and against (make bench)
#   scripts/setup.sh interop also what runs a Linux with rdma_rxe as the peer (make interop)
#
# Looks for the things themselves, not for package names, so that it is content on any
# distribution that has them. Installing needs Debian's apt-get and root; without either it says
# what is missing and goes on: xroce then builds without AF_XDP (scripts/features.sh), and tests
# that need an absent tool say so and are skipped.
set -euo pipefail

mode=${1:-build}
minimum_rust=1.89

have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
header() {
    local multiarch
    multiarch=$(gcc -print-multiarch 2>/dev/null || true)
    [ -e "/usr/include/$1" ] || { [ -n "$multiarch" ] && [ -e "/usr/include/$multiarch/$1" ]; }
}

# Debian's package is for Debian's python3, which need not be the first in PATH.
scapy() {
    python3 -c 'import scapy' 2>/dev/null || /usr/bin/python3 -c 'import scapy' 2>/dev/null
}

if ! have cargo; then
    echo "xroce: cargo is missing: install a Rust toolchain, $minimum_rust or later (rustup," \
        "or your distribution's package)" >&2
    exit 1
fi
rust=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$minimum_rust" "$rust" | sort -V | head -n1)" != "$minimum_rust" ]; then
    echo "xroce: Rust $rust is too old: $minimum_rust or later is needed (rustup update)" >&2
    exit 1
fi

missing=()
need() { # package, then a command that succeeds if it is there
    local package=$1
    shift
    "$@" || missing+=("$package")
}

# To compile the XDP program and to build libbpf and libxdp from source.
need gcc have gcc
need binutils have ld
need libc6-dev header stdio.h
need make have make
need clang have clang
need libelf-dev header libelf.h
need zlib1g-dev header zlib.h
need m4 have m4
need pkg-config have pkg-config
# For the network namespaces of the demo.
need iproute2 have ip

if [ "$mode" = test ]; then
    need ethtool have ethtool
    need iperf3 have iperf3
    need iputils-ping have ping
    need tshark have tshark
    need python3 have python3
    need python3-scapy scapy
    need prometheus have prometheus
    need strace have strace
    need valgrind have valgrind
fi

# callgrind counts the instructions of D6 and D9, iperf3 is the peer of D4, ethtool takes its
# offloads away, qemu runs both machines of D8.
if [ "$mode" = bench ]; then
    need ethtool have ethtool
    need iperf3 have iperf3
    need valgrind have valgrind
    need qemu-system-x86 have qemu-system-x86_64
    need dpkg have dpkg-deb
fi

# The peer's kernel and programs are not installed: tools/vm keeps them in its cache.
if [ "$mode" = interop ]; then
    need qemu-system-x86 have qemu-system-x86_64
    need dpkg have dpkg-deb
    need tshark have tshark
    need python3 have python3
fi

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if ! have apt-get; then
    echo "xroce: missing here: ${missing[*]} (names of Debian's packages); going on without" >&2
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "xroce: missing, and only root can install: ${missing[*]}; going on without" >&2
    exit 0
fi

echo "xroce: installing ${missing[*]}"
# Another apt-get may be at work on a fresh machine: wait for it.
apt=(apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    echo "xroce: apt-get could not install ${missing[*]}; going on without" >&2
fi
