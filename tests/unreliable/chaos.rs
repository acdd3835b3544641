//! Random messages on UC and UD over a bad network: at most once and in order where the network
//! only loses, whole and known under everything else.
//!
//! `XROCE_SEEDS=n` runs seeds 0 to n - 1 (200 unless said), `XROCE_SEED=n` replays one.

use std::collections::BTreeSet;

use xroce_api::{Ah, EngineError};
use xroce_engine::EngineConfig;
use xroce_net::datapath::Link;
use xroce_net::sim::{Impairment, Rng};
use xroce_proto::qp::QpState;
use xroce_proto::wc::{Completion, WcOpcode, WcStatus};
use xroce_proto::wr::{PostError, SendOp};
use xroce_wire::newtypes::{PathMtu, Qpn};

use crate::common::{Setup, World, pattern, rough_wire};
use crate::{QKEY, connect_uc, datagram, handle, ud_qp};

/// Bytes between two places for a message.
const SLOT: u64 = 16 << 10;
/// Places of each host for sending, receiving and being written, one behind the other.
const SLOTS: u64 = 32;
const MESSAGES: u32 = 120;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Which service a message goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Uc,
    UcWrite,
    Ud,
    /// With a Q_Key the receiver does not have.
    UdForeign,
}

struct Chaos {
    world: World,
    rng: Rng,
    uc: [Qpn; 2],
    ud: [Qpn; 2],
    ah: Ah,
    mtu: PathMtu,
    /// Nothing is repeated or overtaken on the way.
    in_order: bool,
    /// Way and length of each message sent so far.
    messages: Vec<(Way, usize)>,
    /// Last message that arrived on each QP.
    last: [Option<u32>; 2],
    seen: BTreeSet<u32>,
    recvs: [u64; 2],
    completed: u32,
}

fn network(rng: &mut Rng, in_order: bool) -> Impairment {
    rough_wire(rng, in_order, [100_000, 50_000], [5_000, 5_000])
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let in_order = rng.below(2) == 0;
        let v6 = rng.below(2) == 0;
        let setup = Setup {
            seed,
            wires: [network(&mut rng, in_order); 2],
            link: [Link::Ethernet, Link::Udp][rng.index(2)],
            ips: if v6 {
                ["2001:db8::1", "2001:db8::2"]
            } else {
                ["192.0.2.1", "192.0.2.2"]
            },
            engine: EngineConfig {
                rx_budget: [1, 16, 64][rng.index(3)],
                tx_budget: [1, 3, 64][rng.index(3)],
                quantum: [1, 16][rng.index(2)],
                ..EngineConfig::default()
            },
            memory: (SLOT * SLOTS * 3) as usize,
            ..Setup::default()
        };
        let mut world = setup.build();
        let mtu = PathMtu::ALL[rng.index(PathMtu::ALL.len())];
        let psns = [0xff_ff00 + rng.below(512) as u32, 1];
        let uc = connect_uc(&mut world, mtu, psns);
        let ud = [0, 1].map(|i| ud_qp(&mut world, i, QKEY));
        let ah = handle(&mut world, 0);
        Self {
            world,
            rng,
            uc,
            ud,
            ah,
            mtu,
            in_order,
            messages: Vec::new(),
            last: [None; 2],
            seen: BTreeSet::new(),
            recvs: [0; 2],
            completed: 0,
        }
    }

    /// What message `n` carries.
    fn data(n: u32, len: usize) -> Vec<u8> {
        pattern(u64::from(n) + 1, len)
    }

    fn post(&mut self) {
        let n = self.messages.len() as u32;
        let ways = [
            Way::Uc,
            Way::Uc,
            Way::UcWrite,
            Way::Ud,
            Way::Ud,
            Way::UdForeign,
        ];
        let way = ways[self.rng.index(ways.len())];
        let most = if matches!(way, Way::Uc | Way::UcWrite) {
            (self.mtu.bytes() as u64 * 6).min(SLOT)
        } else {
            4096
        };
        let len = self.rng.below(most + 1) as usize;
        let at = u64::from(n) % SLOTS * SLOT;
        let [left, right] = &mut self.world.hosts;
        left.region.write_at(at, &Self::data(n, len)).unwrap();
        let sge = left.sge(at, len as u32);
        let imm = n.to_be_bytes();
        let op = match way {
            Way::UcWrite => SendOp::WriteImm {
                va: right.va((2 * SLOTS + u64::from(n) % SLOTS) * SLOT),
                rkey: right.mr.rkey,
                imm,
            },
            _ => SendOp::SendImm(imm),
        };
        match way {
            Way::Uc | Way::UcWrite => left.post_send(self.uc[0], u64::from(n), op, &[sge]),
            Way::Ud | Way::UdForeign => {
                let qkey = if way == Way::Ud { QKEY } else { QKEY ^ 4 };
                datagram(left, self.ud[0], (self.ah, self.ud[1], qkey), op, &[sge]).unwrap();
            }
        }
        self.messages.push((way, len));
    }

    /// Receives are scarce now and then.
    fn post_recvs(&mut self) {
        for (i, qpn) in [self.uc[1], self.ud[1]].into_iter().enumerate() {
            for _ in 0..self.rng.below(3) {
                let n = self.recvs[i];
                let half = SLOTS / 2;
                let at = (SLOTS + i as u64 * half + n % half) * SLOT;
                let host = &mut self.world.hosts[1];
                let sges = [host.sge(at, 1000), host.sge(at + 1000, SLOT as u32 - 1000)];
                let wr = xroce_proto::wr::RecvWr {
                    wr_id: at,
                    sges: &sges,
                };
                match host.engine.post_recv(qpn, &wr) {
                    Ok(()) => self.recvs[i] += 1,
                    Err(EngineError::Post(PostError::QueueFull { .. })) => break,
                    Err(e) => panic!("{e}"),
                }
            }
        }
    }

    fn collect(&mut self) {
        for wc in self.world.hosts[0].completions() {
            assert_eq!(wc.status, WcStatus::Success);
            self.completed += 1;
        }
        for wc in self.world.hosts[1].completions() {
            self.received(&wc);
        }
    }

    fn received(&mut self, wc: &Completion) {
        assert_eq!(wc.status, WcStatus::Success);
        let n = u32::from_be_bytes(wc.imm);
        let (way, len) = self.messages[n as usize];
        let (qp, grh, at) = match way {
            Way::Uc => (0, 0, wc.wr_id),
            Way::UcWrite => (0, 0, (2 * SLOTS + u64::from(n) % SLOTS) * SLOT),
            Way::Ud => (1, 40, wc.wr_id),
            Way::UdForeign => panic!("message {n} has the wrong key"),
        };
        let opcode = match way {
            Way::UcWrite => WcOpcode::RecvRdmaWithImm,
            _ => WcOpcode::Recv,
        };
        assert_eq!(wc.opcode, opcode);
        assert_eq!(wc.qpn, [self.uc[1], self.ud[1]][qp]);
        assert_eq!(wc.byte_len as usize, grh + len, "message {n}");
        let bytes = self.world.hosts[1].bytes(at + grh as u64, len);
        // A repeated or late WRITE of another message may have gone over the same place.
        assert!(
            bytes == Self::data(n, len) || (way == Way::UcWrite && !self.in_order),
            "message {n} is mixed"
        );
        if self.in_order {
            assert!(self.seen.insert(n), "message {n} twice");
            assert!(
                self.last[qp].is_none_or(|last| last < n),
                "{n} out of order"
            );
        }
        self.last[qp] = Some(n);
    }

    fn run(mut self) -> u64 {
        while self.messages.len() < MESSAGES as usize {
            self.post_recvs();
            for _ in 0..self.rng.below(4) {
                self.post();
            }
            // Never more under way than there are places.
            self.world.idle(20_000 + self.rng.below(100_000));
            self.collect();
        }
        self.world.idle(10_000_000);
        self.collect();
        assert_eq!(self.completed as usize, self.messages.len());
        for (i, host) in self.world.hosts.iter_mut().enumerate() {
            assert_eq!(host.engine.next_deadline(), None);
            assert_eq!(host.engine.poll_event(), None);
            let stats = host.engine.stats();
            let sum = stats.delivered
                + stats.bad_frames
                + stats.bad_packets
                + stats.icrc_errors
                + stats.unknown_qp;
            assert_eq!(stats.rx_frames, sum, "{stats:?}");
            for qpn in [self.uc[i], self.ud[i]] {
                assert_eq!(host.engine.qp_state(qpn), Some(QpState::Rts));
            }
        }
        let engine = &self.world.hosts[1].engine;
        let counters = [self.uc[1], self.ud[1]].map(|q| engine.qp_counters(q).unwrap());
        counters.iter().map(|c| c.recvs_completed).sum()
    }
}

#[test]
fn random_messages_over_a_bad_network() {
    if let Some(seed) = number("XROCE_SEED") {
        Chaos::new(seed).run();
        return;
    }
    let seeds = number("XROCE_SEEDS").unwrap_or(200);
    let mut received = 0;
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(|| Chaos::new(seed).run());
        received += run.unwrap_or_else(|_| panic!("XROCE_SEED={seed} failed"));
    }
    assert!(received > seeds * u64::from(MESSAGES) / 4, "{received}");
}
