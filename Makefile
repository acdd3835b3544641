# Thin names over cargo. The first two install what they lack (see scripts/setup.sh).
#
#   make demo    two software RNICs exchange verified SEND, WRITE and READ
#   make test    everything that is not a bench
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo
# Seeds of a long simulation run (XROCE_SEED=n replays one), the first of them; executions of each
# fuzz target and hostile frames of a long fuzz run.
SEEDS ?= 1000
FIRST_SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
FUZZ_RUNS ?= 3000000
FRAMES ?= 10000000
# Evaluated when a recipe runs, after the set-up: empty, or what leaves AF_XDP out.
FLAGS = $(shell scripts/features.sh)
# Members that need clang stay out of a build without AF_XDP.
WORKSPACE = --workspace $(if $(FLAGS),--exclude xroce-xdp-prog --exclude xroce-interop)
# Options of the interop suite, such as INTEROP="--filter outage --kernel 6.1".
INTEROP ?=

.PHONY: help setup setup-test setup-bench setup-interop build demo demo-daemon test fmt lint doc unit deny \
    bench bench-peer micro gate soak boundary \
    daemon-soak hop sim paper fuzz interop interop-build interop-daemon interop-smoke interop-rate deb \
    deb-smoke msrv miri asan \
    package clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh test

setup-bench:
	@scripts/setup.sh bench

build: setup ## xroce and xroced, optimised: target/release/xroce, xroced
	$(CARGO) build --locked --release -p xroce -p xroced $(FLAGS)

demo: build ## two RNICs in two namespaces (as root), or over UDP on loopback
	@target/release/xroce demo

demo-daemon: build ## two daemons with three processes each, every operation: AF_XDP as root, UDP anyhow
	@target/release/xroce demo --daemon
	@target/release/xroce demo --daemon --backend udp

test: setup-test fmt lint doc unit ## everything that is not a bench

fmt:
	$(CARGO) fmt --all --check

lint: setup-test ## clippy, all warnings are errors
	$(CARGO) clippy --locked $(WORKSPACE) $(FLAGS) --all-targets -- -D warnings
	@scripts/client-alone.sh

doc: setup-test
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked $(WORKSPACE) $(FLAGS) --no-deps --quiet

# One build for all: the command, the examples in the documentation, the tests. nextest runs each
# test in a process of its own and keeps those that load the machine apart (.config/nextest.toml);
# without it `cargo test` does.
TESTS = $(WORKSPACE) $(FLAGS) --lib --bins --tests
# The property tests take the same cases in every run: a change is judged by what it changes.
# `make sim` draws others.
PROPTEST_RNG_SEED ?= 20261129
unit: export PROPTEST_RNG_SEED := $(PROPTEST_RNG_SEED)
unit: setup-test ## all tests
	$(CARGO) test --locked $(TESTS) --no-run
	@scripts/decode-smoke.sh
	$(CARGO) test --locked $(WORKSPACE) $(FLAGS) --doc --quiet
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	    set -x; $(CARGO) nextest run --locked $(TESTS); \
	else \
	    set -x; $(CARGO) test --locked $(TESTS); \
	fi

deny: ## licences, sources and duplicates of the dependencies (offline)
	@scripts/deny.sh

# As root also over AF_XDP and, for D8, between two virtual machines. BENCH passes options on, such
# as BENCH="--quick" or BENCH="--rounds 9 --only D1,D3".
BENCH ?=
# The programs of D8; without root, or where they cannot be built, its rows say so.
bench-peer: setup-bench
	@if [ "$$(id -u)" -eq 0 ] && [ -z "$(FLAGS)" ]; then \
	    $(CARGO) build --locked --release -p xroce -p xroce-interop || \
	        echo "xroce: going on without the virtual machines of D8" >&2; \
	fi

bench: bench-peer ## every performance target in one run: report in target/bench, table in the docs
	$(CARGO) bench --locked $(FLAGS) --bench suite -- \
	    --document README.md --document docs/performance.md $(BENCH)

micro: setup-test ## criterion benches: parse, emit, ICRC, requester and responder alone
	$(CARGO) bench --locked $(FLAGS) --bench micro

# Valgrind and strace count; the same on every machine with the same compiler and processor.
gate: setup-test ## instructions, allocations, system calls and sizes against benches/gate/baseline.toml
	$(CARGO) bench --locked $(FLAGS) --bench gate -- $(if $(BLESS),--bless)

# Seconds.
SOAK ?= 600
soak: setup-test ## SOAK seconds (600) at full rate: no timeout, nothing sent again, memory flat
	XROCE_SOAK_SECONDS=$(SOAK) $(CARGO) bench --locked $(FLAGS) --bench soak

boundary: setup-test ## the traffic of `xroce perf` over an engine in the process and through a daemon
	$(CARGO) bench --locked $(FLAGS) -p xroce --bench boundary

# Rounds of each kind of harm, and processes of the crowd.
ROUNDS ?= 1000
CROWD ?= 1000
daemon-soak: setup-test ## a daemon among processes that die, scribble, stall, come and go: ROUNDS (1000) of each
	XROCE_DAEMON_ROUNDS=$(ROUNDS) XROCE_DAEMON_CROWD=$(CROWD) \
	    $(CARGO) test --locked --release $(FLAGS) --test daemon -- --nocapture --test-threads 1

hop: setup-test ## incast and loss over real frames: the tables of docs/congestion.md
	$(CARGO) bench --locked $(FLAGS) --bench hop -- $(BENCH)

sim: ## random work over a random network, SEEDS seeds (1000) from FIRST_SEED (random); property tests too
	PROPTEST_CASES=20000 $(CARGO) test --locked --release $(FLAGS) -p xroce-proto -p xroce-wire
	XROCE_FIRST_SEED=$(FIRST_SEED) XROCE_SEEDS=$(SEEDS) $(CARGO) test --locked --release $(FLAGS) --test chaos -- --nocapture

paper: ## loss and congestion against theory and papers (L1 to L8), into docs/paper.txt
	XROCE_PAPER=1 $(CARGO) test --locked --release $(FLAGS) --test paper -- --nocapture

fuzz: ## libFuzzer, FUZZ_RUNS executions per target (3 million); FRAMES hostile frames (10 million)
	scripts/fuzz.sh $(FUZZ_RUNS)
	XROCE_FUZZ_FRAMES=$(FRAMES) $(CARGO) test --locked --release $(FLAGS) --test hostile -- --nocapture

# A machine with Linux' rdma_rxe as the peer; as root. Packages are fetched once, into the cache
# folder of the user (XROCE_CACHE says where else).
setup-interop: setup
	@scripts/setup.sh interop

interop-build: setup-interop
	$(CARGO) build --locked --release -p xroce -p xroce-interop

interop: interop-build ## xroce against rdma_rxe in a virtual machine: everything, on two kernels
	@target/release/xroce-interop --document docs/interop.md $(INTEROP)

interop-daemon: interop-build ## the same with a daemon and a process attached to it in place of xroce's engine
	@target/release/xroce-interop --daemon $(INTEROP)

interop-smoke: interop-build ## a handful of that, on one kernel, without and with a daemon
	@target/release/xroce-interop --smoke $(INTEROP)
	@target/release/xroce-interop --smoke --daemon $(INTEROP)

interop-rate: interop-build ## rxe and xroce between two virtual machines, side by side
	@target/release/xroce-interop rate $(INTEROP)

deb: build ## a Debian package: target/xroce_*.deb
	@scripts/deb.sh

deb-smoke: build ## installs it into a root of its own, runs it there, purges it (as root)
	@scripts/deb-smoke.sh

# CLIENT=1: no more than what a client of the daemon builds, in a third of the time.
msrv: setup ## the oldest compiler that Cargo.toml promises builds libraries and programs
	@scripts/msrv.sh $(if $(CLIENT),client)

# What Miri can run of them; on a nightly compiler.
miri: setup ## undefined behaviour in the tests of crc, wire, abi and shm
	@scripts/miri.sh

asan: setup-test ## AddressSanitizer over adoption, the daemon's memory and AF_XDP
	@scripts/asan.sh

# VERIFY=1 also builds each from its package, which takes minutes.
package: setup ## the public crates as for a registry: target/package/*.crate
	@scripts/package.sh $(if $(VERIFY),verify)

clean: ## removes what was built
	$(CARGO) clean
