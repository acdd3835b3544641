//! After warm-up two engines exchange messages without a single allocation.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that fails may panic, and its sizes are small"
)]

mod common;
mod counting;

use std::io::{self, Write as _};
use std::time::Duration;

use common::Host;
use counting::allocations;
use xroce_api::PortStats;
use xroce_net::datapath::{Caps, Datapath, Rx, TxMeta};
use xroce_net::sim::{LoopConfig, LoopPort, SimNet, loop_pair};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::SendOp;
use xroce_wire::newtypes::{PathMtu, Psn, Qpn};

const MTU: PathMtu = PathMtu::Mtu1024;

/// One packet, several, many; none at all.
const SIZES: [u32; 6] = [8, 0, 1024, 1025, 4096, 20_000];

/// Messages in flight.
const DEPTH: u64 = 16;

fn hosts<D: Datapath>(ports: (D, D)) -> [Host<D>; 2] {
    [
        Host::new(ports.0, "192.0.2.1", 1, 1 << 20),
        Host::new(ports.1, "192.0.2.2", 2, 1 << 20),
    ]
}

fn connect<D: Datapath>(hosts: &mut [Host<D>; 2], reliability: Reliability) -> [Qpn; 2] {
    let qpns = [0, 1].map(|i: usize| {
        let host = &mut hosts[i];
        let init = QpInit::rc(host.pd, host.cq, host.cq);
        host.engine.create_qp(&init).unwrap()
    });
    for i in [0, 1] {
        let path = hosts[i].path_to(&hosts[1 - i]);
        let engine = &mut hosts[i].engine;
        let mut rtr = QpAttr::rtr(path, MTU, qpns[1 - i], Psn::new(0xff_fff0));
        rtr.reliability = Some(reliability);
        for attr in [
            QpAttr::init(common::ALL_ACCESS),
            rtr,
            QpAttr::rts(Psn::new(0xff_fff0)),
        ] {
            engine.modify_qp(qpns[i], &attr).unwrap();
        }
    }
    qpns
}

/// Number `n` of a mix of SEND, SEND with immediate, WRITE, WRITE with immediate, READ and atomics
/// of several sizes, with the receive it takes.
fn post<D: Datapath>(hosts: &mut [Host<D>; 2], qpns: [Qpn; 2], n: u64) {
    let [left, right] = hosts;
    let len = match n % 7 {
        5 | 6 => 8,
        _ => SIZES[(n / 7 % 6) as usize],
    };
    let sge = left.sge(0, len);
    let (va, rkey) = (right.va(1 << 16), right.mr.rkey);
    let imm = [1, 2, 3, 4];
    let (compare, swap, add) = (0, n, n);
    let op = match n % 7 {
        0 => SendOp::Send,
        1 => SendOp::SendImm(imm),
        2 => SendOp::Write { va, rkey },
        3 => SendOp::WriteImm { va, rkey, imm },
        4 => SendOp::Read { va, rkey },
        5 => SendOp::CompareSwap {
            va,
            rkey,
            compare,
            swap,
        },
        _ => SendOp::FetchAdd { va, rkey, add },
    };
    if matches!(n % 7, 0 | 1 | 3) {
        let inbox = right.sge(1 << 17, 20_000);
        right.post_recv(qpns[1], n, &[inbox]);
    }
    left.post_send(qpns[0], n, op, &[sge]);
}

/// Exchanges `messages`; both ends are polled in turn.
fn exchange<D: Datapath>(hosts: &mut [Host<D>; 2], qpns: [Qpn; 2], now: &mut u64, messages: u64) {
    let (mut posted, mut done) = (0, 0);
    let mut batch = [Completion::EMPTY; 32];
    while done < messages {
        while posted < messages && posted - done < DEPTH {
            post(hosts, qpns, posted);
            posted += 1;
        }
        for (i, host) in hosts.iter_mut().enumerate() {
            host.engine.poll_once(Instant::from_nanos(*now)).unwrap();
            let n = host.engine.poll_cq(host.cq, &mut batch);
            assert!(batch[..n].iter().all(|c| c.status == WcStatus::Success));
            if i == 0 {
                done += n as u64;
            }
        }
        *now += 1000;
    }
}

fn no_allocation_over<D: Datapath>(what: &str, ports: (D, D), reliability: Reliability) {
    const MESSAGES: u64 = 100_000;
    let mut hosts = hosts(ports);
    let qpns = connect(&mut hosts, reliability);
    let mut now = 0;
    exchange(&mut hosts, qpns, &mut now, 1000);
    let asked = allocations(|| exchange(&mut hosts, qpns, &mut now, MESSAGES));
    // Not `println!`: the number is to be seen although the test passes.
    let line = format!("no_alloc: {asked} allocations for {MESSAGES} messages over {what}");
    let _ = writeln!(io::stderr(), "{line}");
    assert_eq!(asked, 0, "{what}");
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0u8; 9]))), 1);
    assert_eq!(
        allocations(|| {
            std::hint::black_box(1);
        }),
        0
    );
}

#[test]
fn two_engines_back_to_back() {
    let ports = loop_pair(&LoopConfig::default());
    no_allocation_over("loop_pair", ports, Reliability::GoBackN);
}

#[test]
fn two_engines_on_a_simulated_wire() {
    no_allocation_over("SimNet::direct", SimNet::direct(), Reliability::GoBackN);
}

#[test]
fn two_selective_engines_back_to_back() {
    let ports = loop_pair(&LoopConfig::default());
    no_allocation_over("loop_pair, selective", ports, selective());
}

fn selective() -> Reliability {
    Reliability::Selective(SelectiveParams::default())
}

/// A port of which every 40th frame gets lost.
struct Lossy(LoopPort, u32);

impl Datapath for Lossy {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        self.0.rx_burst(budget, each)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        self.0.tx_begin()
    }

    fn tx_commit(&mut self, meta: &TxMeta, len: usize) {
        self.1 += 1;
        if !self.1.is_multiple_of(40) {
            self.0.tx_commit(meta, len);
        }
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        self.0.tx_flush()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.wait(timeout)
    }

    fn stats(&mut self) -> PortStats {
        self.0.stats()
    }
}

/// Holes, packets stored and placed before their turn, SACKs, everything sent again.
#[test]
fn two_selective_engines_that_lose_frames() {
    const MESSAGES: u64 = 20_000;
    let (a, b) = loop_pair(&LoopConfig::default());
    let mut hosts = hosts((Lossy(a, 0), Lossy(b, 0)));
    let qpns = connect(&mut hosts, selective());
    let mut now = 0;
    exchange(&mut hosts, qpns, &mut now, 1000);
    let asked = allocations(|| exchange(&mut hosts, qpns, &mut now, MESSAGES));
    let [left, right] = [0, 1].map(|i| hosts[i].engine.qp_counters(qpns[i]).unwrap());
    assert!(
        right.placed_early > 100 && right.out_of_sequence > 1000,
        "{right:?}"
    );
    assert!(left.retransmits_selective > 1000, "{left:?}");
    assert_eq!(asked, 0);
}
