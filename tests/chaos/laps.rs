//! Work whose PSNs come again: a lap later, through so many empty WRITEs, or in a new life of the
//! queue pair. What a responder remembers of the old ones answers nothing new.

use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::QpState;
use xroce_proto::wr::{Data, SendFlags, SendOp, SendWr};
use xroce_wire::newtypes::{Psn, RKey, Va};

use crate::config::pick;
use crate::duo::{Duo, DuoConfig};
use crate::resources::{Kind, Work};
use crate::run::{Black, Totals};

/// How the PSNs come to be the old ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// Both queue pairs are reset and start anew.
    Jump,
    /// Empty WRITEs, nearly 2^24 of them.
    #[cfg_attr(debug_assertions, allow(dead_code, reason = "takes too long"))]
    Packets,
}

#[derive(Clone, Debug)]
struct Config {
    duo: DuoConfig,
    /// Before and after.
    ops: [Vec<Kind>; 2],
    rough: Impairment,
}

fn config(rng: &mut Rng) -> Config {
    let clean = [Impairment::delay(1_000); 2];
    let mut duo = DuoConfig::new(rng, clean);
    duo.timeout = 8;
    duo.every = [10_000; 2];
    let most = 16 * duo.mtu.bytes() as u64;
    let mut ops = |count: u64| {
        let one = |_| match rng.below(3) {
            0 => Kind::FetchAdd,
            _ => Kind::Read(u32::try_from(rng.below(most)).unwrap().min(16 << 10)),
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    let ops = [ops(6), ops(10)];
    Config {
        ops,
        rough: Impairment {
            loss_ppm: pick(rng, &[20_000, 100_000]),
            duplicate_ppm: 200_000,
            duplicate_delay_ns: 20_000,
            ..Impairment::delay(1_000)
        },
        duo,
    }
}

pub(crate) fn run(seed: u64, how: How, verbose: bool) -> Totals {
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
    let mut work = Work::new(seed, &duo, 16, &mut rng);
    work.drive(&mut duo, &config.ops[0]);
    // Among the PSNs of the old work.
    let first = Psn::new(config.duo.psns[0]);
    let taken = first.distance_to(duo.watch.borrow().flows[0].next);
    let offset = rng.below(u64::try_from(taken).unwrap());
    let goal = first.add(u32::try_from(offset).unwrap());
    match how {
        How::Jump => {
            // Nothing of the old life is under way when the new one begins.
            duo.world.idle(1_000_000);
            duo.world.hosts[0].completions();
            for host in [0, 1] {
                duo.take_to(host, QpState::Reset);
            }
            let psns = [goal.value(), config.duo.psns[1]];
            duo.start(&config.duo, psns);
        }
        How::Packets => lap(&mut duo, goal, config.ops[0].len()),
    }
    for wire in [duo.world.link.there, duo.world.link.back] {
        duo.world.net.set_impairment(wire, config.rough);
    }
    work.drive(&mut duo, &config.ops[1]);
    work.check_end(&duo);
    duo.totals()
}

/// Empty WRITEs until this is the next PSN, after so many messages.
fn lap(duo: &mut Duo, goal: Psn, messages: usize) {
    for wire in [duo.world.link.there, duo.world.link.back] {
        duo.world.net.set_impairment(wire, Impairment::default());
    }
    let qpn = duo.qpns[0];
    let next = duo.watch.borrow().flows[0].next;
    let mut left = goal.value().wrapping_sub(next.value()) & 0xff_ffff;
    let msn = (messages as u32 + left) & 0xff_ffff;
    duo.world.net.clear_tap();
    let wr = SendWr {
        wr_id: u64::MAX,
        op: SendOp::Write {
            va: Va::new(0),
            rkey: RKey::new(0),
        },
        flags: SendFlags::empty(),
        data: Data::Sges(&[]),
    };
    while left != 0 || duo.world.hosts[0].engine.sends_posted(qpn) != Some(0) {
        let engine = &mut duo.world.hosts[0].engine;
        let room = 256 - engine.sends_posted(qpn).unwrap();
        for _ in 0..room.min(left) {
            engine.post_send(qpn, &wr).unwrap();
        }
        left -= room.min(left);
        duo.world.settle();
        duo.world.net.advance_to(duo.world.net.now() + 1_000);
    }
    let psns = [goal, duo.watch.borrow().flows[1].next];
    duo.watch_from(psns);
    duo.watch.borrow_mut().flows[0].msn = msn;
}
