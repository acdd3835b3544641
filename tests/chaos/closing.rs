//! The receiver of the last message closes in the very look that shows it: what it acknowledged or
//! refused is heard all the same.

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::QpState;
use xroce_proto::wc::{Completion, WcStatus};
use xroce_proto::wr::{SendOp, Sge};
use xroce_wire::newtypes::{LKey, RKey, Va};

use crate::config::pick;
use crate::duo::{Duo, DuoConfig};
use crate::run::{Black, Totals};

/// How the receiver ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Destroy,
    Err,
    Reset,
    /// A send of its own fails for a reason of its own side.
    OwnError,
}

/// What is wrong with the last message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    Nothing,
    /// Longer than its receive.
    TooLong,
    /// Takes back a key that is not there.
    WrongKey,
}

#[derive(Clone, Debug)]
struct Config {
    duo: DuoConfig,
    /// Length, and whether it is a WRITE with immediate.
    messages: Vec<(u32, bool)>,
    last: Last,
    end: End,
}

/// Virtual time in which it must be over, retries of all kinds included, ns.
const LIMIT_NS: u64 = 60_000_000_000;

fn config(rng: &mut Rng) -> Config {
    let wire = |rng: &mut Rng| Impairment {
        rate_bps: pick(rng, &[0, 1_000_000_000, 10_000_000_000]),
        duplicate_ppm: pick(rng, &[0, 0, 300_000]),
        duplicate_delay_ns: 50_000,
        ..Impairment::delay(pick(rng, &[0, 1_000, 20_000]))
    };
    let wires = [wire(rng), wire(rng)];
    let duo = DuoConfig::new(rng, wires);
    let most = 3 * duo.mtu.bytes() as u64;
    let messages = (0..=rng.below(6))
        .map(|_| {
            let most = pick(rng, &[64, most]);
            let len = 1 + u32::try_from(rng.below(most)).unwrap();
            (len, rng.below(3) == 0)
        })
        .collect();
    Config {
        duo,
        messages,
        last: pick(
            rng,
            &[Last::Nothing, Last::Nothing, Last::TooLong, Last::WrongKey],
        ),
        end: pick(rng, &[End::Destroy, End::Err, End::Reset, End::OwnError]),
    }
}

pub(crate) fn run(seed: u64, verbose: bool) -> Totals {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    if verbose {
        eprintln!("seed {seed}: {config:#?}");
    }
    let mut duo = Duo::new(seed, &config.duo, &mut rng);
    let black = Black {
        seed,
        config,
        watch: duo.watch.clone(),
    };
    let config = &black.config;
    post(&mut duo, config);
    let count = config.messages.len();
    let (mut sent, mut received): (Vec<Completion>, usize) = (Vec::new(), 0);
    while sent.len() < count {
        assert!(
            duo.world.net.now() < LIMIT_NS && !duo.is_stuck(),
            "{} of {count} sent, {received} received\n{}",
            sent.len(),
            duo.failures()
        );
        let (host, done) = duo.turn();
        if host == 0 {
            sent.extend(done);
            continue;
        }
        let own = |wc: &&Completion| wc.wr_id < 100;
        for wc in done.iter().filter(own) {
            assert_eq!(wc.wr_id as usize, received);
            let is_last = received + 1 == count;
            assert_eq!(wc.status, receive_status(config, is_last), "{wc:?}");
            received += 1;
            if is_last {
                close(&mut duo, config.end);
            }
        }
    }
    for (n, wc) in sent.iter().enumerate() {
        let expected = match (n + 1 == count, config.last) {
            (true, Last::TooLong) => WcStatus::RemInvReqErr,
            (true, Last::WrongKey) => WcStatus::RemAccessErr,
            _ => WcStatus::Success,
        };
        assert_eq!(wc.status, expected, "{wc:?}\n{}", duo.failures());
    }
    duo.totals()
}

/// The status of a receive.
fn receive_status(config: &Config, is_last: bool) -> WcStatus {
    match (is_last, config.last) {
        (true, Last::TooLong) => WcStatus::LocLenErr,
        (true, Last::WrongKey) => WcStatus::RemInvReqErr,
        _ => WcStatus::Success,
    }
}

/// All receives, and all messages.
fn post(duo: &mut Duo, config: &Config) {
    let [a, b] = duo.qpns;
    let [left, right] = &mut duo.world.hosts;
    let (va, rkey) = (right.va(0), right.mr.rkey);
    let count = config.messages.len();
    for (n, &(len, is_write)) in config.messages.iter().enumerate() {
        let last = if n + 1 == count {
            config.last
        } else {
            Last::Nothing
        };
        let room = if last == Last::TooLong { len - 1 } else { len };
        right.post_recv(b, n as u64, &[right.sge(1 << 20, room)]);
        let op = match (last, is_write) {
            (Last::WrongKey, _) => SendOp::SendInv {
                rkey: RKey::new(0x5a5a),
            },
            (Last::Nothing, true) => SendOp::WriteImm {
                va,
                rkey,
                imm: [7; 4],
            },
            _ => SendOp::Send,
        };
        left.post_send(a, n as u64, op, &[left.sge(0, len)]);
    }
}

fn close(duo: &mut Duo, end: End) {
    match end {
        End::Destroy => {
            let engine = &mut duo.world.hosts[1].engine;
            engine.destroy_qp(duo.qpns[1]).unwrap();
        }
        End::Err => duo.take_to(1, QpState::Err),
        End::Reset => duo.take_to(1, QpState::Reset),
        End::OwnError => {
            let sge = Sge {
                lkey: LKey::new(0x99),
                va: Va::new(0),
                len: 8,
            };
            duo.world.hosts[1].post_send(duo.qpns[1], 100, SendOp::Send, &[sge]);
            duo.wake(1);
        }
    }
}
