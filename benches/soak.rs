//! A long run at full rate over a lossless link: two engines over AF_XDP on a veth pair, WRITE of
//! 64 KB one way (the soak of the targets). Fails if a timer fired for an ACK, anything was sent
//! again, a message was lost or memory grew. No rate is asserted.
//!
//! `make soak`, as root; `make soak SOAK=60` for a minute.
#![allow(clippy::print_stdout, reason = "a bench talks")]

#[cfg(feature = "xdp")]
#[path = "../tests/counting/mod.rs"]
mod counting;
#[cfg(feature = "xdp")]
mod support;

use std::process::ExitCode;

#[cfg(feature = "xdp")]
mod run {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration as StdDuration;
    use std::{env, fs, thread};

    use xroce_engine::Engine;
    use xroce_net::datapath::Datapath;
    use xroce_proto::counters::Counters;
    use xroce_proto::time::Duration;
    use xroce_testnet::NetnsPair;
    use xroce_wire::newtypes::PathMtu;

    use super::support::threads::{Load, flood};
    use super::support::{End, Op, Pair, xdp};

    /// Receive chunks: a receiver that loses its core for some milliseconds loses nothing.
    const RING: u32 = 4096;
    /// Memory is looked at from here on: warm by then.
    const WARM: StdDuration = StdDuration::from_secs(5);
    /// And so often.
    const EVERY: StdDuration = StdDuration::from_secs(10);
    /// Growth that is none: a page of a table, a line printed.
    const GROWTH_KIB: u64 = 256;

    /// Resident memory of this process, KiB.
    fn resident() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
        number.unwrap_or_default()
    }

    fn counters<D: Datapath>(end: &End<D>) -> Counters {
        let engine: &Engine<D> = &end.engine;
        let qpn = end.qpns.first().copied();
        qpn.and_then(|q| engine.qp_counters(q)).unwrap_or_default()
    }

    /// # Errors
    /// What was not as it has to be.
    pub(super) fn run() -> Result<(), String> {
        let seconds = env::var("XROCE_SOAK_SECONDS").ok();
        let seconds: u64 = match seconds {
            Some(s) => s
                .parse()
                .map_err(|_| format!("{s}: no number of seconds"))?,
            None => 600,
        };
        let net = NetnsPair::new(4200, 1).map_err(|e| e.to_string())?;
        let open = |ns| xdp::open(ns, RING).map_err(|e| e.to_string());
        let mut pair = Pair::new([open(&net.a)?, open(&net.b)?]);
        let load = Load {
            op: Op::Write,
            size: 65_536,
            mtu: PathMtu::Mtu4096,
            depth: 16,
        };
        let over = AtomicBool::new(false);
        let time = Duration::from_nanos(seconds.saturating_mul(1_000_000_000));
        let (flow, memory) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut seen = Vec::new();
                thread::sleep(WARM);
                while !over.load(Ordering::Acquire) {
                    seen.push(resident());
                    println!("{} KiB resident", seen.last().copied().unwrap_or_default());
                    thread::sleep(EVERY);
                }
                seen
            });
            let flow = flood(&mut pair, load, time, super::counting::asked);
            over.store(true, Ordering::Release);
            (flow, watch.join().unwrap_or_default())
        });
        let [from, to] = [0, 1].map(|i: usize| counters(&pair.ends[i]));
        let [sent, received] = [0, 1].map(|i: usize| pair.ends[i].engine.port_stats());
        let first = memory.first().copied().unwrap_or_default();
        let most = memory.iter().copied().max().unwrap_or_default();
        println!(
            "{} messages of 64 KB in {:.1} s ({:.2} Gb/s), {} packets; sent again {}, timeouts {}, \
             out of sequence {}, frames dropped {}; allocations after warm-up {}; memory {first} KiB \
             at first, {most} KiB at most",
            flow.messages,
            flow.seconds,
            flow.messages_per_second() * 65_536.0 * 8.0 / 1e9,
            from.tx_packets,
            from.retransmits,
            from.timeouts,
            to.out_of_sequence,
            sent.rx_dropped + received.rx_dropped,
            flow.allocations,
        );
        let clean = [
            ("packets sent again", from.retransmits),
            ("ACK timeouts", from.timeouts),
            ("packets out of sequence", to.out_of_sequence),
            ("allocations", flow.allocations),
            ("KiB grown", most.saturating_sub(first + GROWTH_KIB)),
        ];
        match clean.iter().find(|(_, n)| *n != 0) {
            Some((what, n)) => Err(format!("{what}: {n}, none is right on a lossless link")),
            None if flow.messages == 0 => Err(String::from("nothing was sent")),
            None => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "xdp")]
    let done = run::run();
    #[cfg(not(feature = "xdp"))]
    let done: Result<(), String> = Err(String::from("needs AF_XDP: build with the feature xdp"));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
