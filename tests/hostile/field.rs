//! Two hosts with a pair of QPs under attack and a pair that is not, and an attacker on the same
//! switch.

use std::cell::RefCell;
use std::rc::Rc;

use xroce_api::{EngineError, Mr};
use xroce_net::datapath::{Datapath, Link, TxMeta};
use xroce_net::sim::{Fate as Happened, Rng, SimPort};
use xroce_proto::memory::Access;
use xroce_proto::qp::{QpAttr, QpInit, QpState, QpType};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::wc::{Completion, Cq};
use xroce_proto::wr::{Data, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::newtypes::{PathMtu, Psn, QKey, Qpn, RKey};
use xroce_wire::packet::Packet;

use crate::common::lane::{Lane, pools};
use crate::common::model::Model;
use crate::common::script::{Fate, Limits};
use crate::common::{ALL_ACCESS, SRC_PORT, Setup, World};
use crate::frames::{Attack, Shot};

/// Bytes the peer of the attacked QP may write, and bytes it may read only.
const GRANT: u64 = 64 << 10;

const MEMORY: usize = 1 << 20;
const MTU: PathMtu = PathMtu::Mtu1024;

/// Of the attacked UD QPs.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// PSNs of the attacked pair as seen on the wire, for shots that hit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    /// The next one each host will send a request with.
    pub(crate) request: [Psn; 2],
    /// The last one each host has asked something with.
    pub(crate) asked: [Psn; 2],
}

/// The attacked pair.
#[derive(Debug)]
pub(crate) struct Victim {
    pub(crate) qpns: [Qpn; 2],
    cqs: [Cq; 2],
    /// Connected with each other, and datagram QPs: no packet may end them.
    pub(crate) uc: [Qpn; 2],
    pub(crate) ud: [Qpn; 2],
    /// Where each host may be written, and where only read.
    pub(crate) open: [(u64, Mr); 2],
    pub(crate) readable: [(u64, Mr); 2],
    deaths: u64,
    completed: u64,
}

/// Everything.
pub(crate) struct Field {
    pub(crate) world: World,
    pub(crate) link: Link,
    attacker: SimPort,
    model: Model,
    lanes: Vec<Lane>,
    rounds: [u64; 2],
    pub(crate) victim: Victim,
    pub(crate) live: Rc<RefCell<Live>>,
    /// Keys that exist but are of another protection domain.
    pub(crate) foreign: [Vec<RKey>; 2],
    pub(crate) rng: Rng,
}

impl Field {
    /// `peaceful` is how the pair that is left in peace repairs losses; the attacked ones try all ways.
    pub(crate) fn new(seed: u64, link: Link, peaceful: Reliability) -> Self {
        let setup = Setup {
            seed,
            link,
            memory: MEMORY,
            ..Setup::default()
        };
        let (mut world, links, attacker) = setup.build_with_intruder();
        let mut rng = Rng::new(seed);
        let (lanes, foreign) = innocents(&mut world, &mut rng, peaceful);
        let mut victim = Victim::new(&mut world);
        let model = Model::new(&world, seed);
        victim.bring_up(&mut world, &mut rng);
        victim.bring_up_unreliable(&mut world);
        let live = watch(&world, links.map(|l| l.there), link, &victim);
        let mut field = Self {
            world,
            link,
            attacker,
            model,
            lanes,
            rounds: [0; 2],
            victim,
            live,
            foreign,
            rng,
        };
        for host in [0, 1] {
            let piece = (field.victim.open[host].0, GRANT as u32);
            field.model.forget(host, &[piece]);
        }
        field
    }

    pub(crate) fn attack(&mut self) -> Attack<'_> {
        Attack { field: self }
    }

    /// Whether this is a number of the pair that is left in peace.
    pub(crate) fn is_innocent(&self, to: usize, qpn: Qpn) -> bool {
        self.lanes
            .iter()
            .any(|lane| lane.qpns[usize::from(lane.from != to)] == qpn)
    }

    /// The number on a host of the pair that is left in peace.
    pub(crate) fn innocent(&self, host: usize) -> Qpn {
        self.lanes[0].qpns[usize::from(self.lanes[0].from != host)]
    }

    /// Puts a frame on the attacker's wire.
    pub(crate) fn fire(&mut self, shot: &Shot) {
        let host = &self.world.hosts[shot.to];
        let peer = &self.world.hosts[1 - shot.to];
        let bytes = match self.link {
            Link::Ethernet => shot.ethernet(host, peer),
            Link::Udp => shot.udp(&UdpMeta {
                src: peer.gid,
                dst: host.gid,
                src_port: SRC_PORT,
                tos: 2,
                hop_limit: None,
            }),
        };
        let meta = TxMeta {
            dst: host.gid,
            tos: 2,
        };
        let room = self.attacker.tx_begin().unwrap();
        let n = bytes.len().min(room.len());
        room[..n].copy_from_slice(&bytes[..n]);
        self.attacker.tx_commit(&meta, n);
    }

    /// Lets the shots arrive and everybody go on.
    pub(crate) fn turn(&mut self) {
        self.attacker.tx_flush().unwrap();
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            if lane.is_done() {
                lane.again();
                self.rounds[i] += 1;
            }
            lane.pump(&mut self.world, &mut self.model, true);
        }
        self.victim.pump(&mut self.world, &mut self.rng);
        // There and back once, by way of the switch.
        self.world.idle(5_000);
        self.collect();
        self.victim.revive(&mut self.world, &mut self.rng);
    }

    fn collect(&mut self) {
        for host in [0, 1] {
            for wc in self.world.hosts[host].completions() {
                let model = &mut self.model;
                let taken = self
                    .lanes
                    .iter_mut()
                    .any(|lane| lane.completed(host, &wc, model));
                assert!(taken, "{wc:?} belongs to nobody");
            }
            while self.world.hosts[host].engine.poll_event().is_some() {}
        }
        for lane in &mut self.lanes {
            lane.retire(&mut self.world, &mut self.model);
        }
    }

    /// Compares all memory with the model; what the attacked QP may write is not looked at.
    pub(crate) fn check_memory(&self) {
        // Requests under way have written what the model does not know yet, or the reverse.
        if self.lanes.iter().all(Lane::is_done) {
            self.model.check(&self.world);
        }
    }

    /// Ends the attack: the others finish, nothing was lost or counted twice.
    pub(crate) fn finish(mut self) -> String {
        for _ in 0..100_000 {
            if self.lanes.iter().all(Lane::is_done) {
                break;
            }
            for lane in &mut self.lanes {
                lane.pump(&mut self.world, &mut self.model, true);
            }
            self.world.idle(5_000);
            self.collect();
        }
        let unfinished: Vec<_> = self.lanes.iter().map(Lane::progress).collect();
        assert!(self.lanes.iter().all(Lane::is_done), "{unfinished:#?}");
        self.world.idle(1_000_000);
        self.model.check(&self.world);
        let mut refused = 0;
        for lane in &self.lanes {
            let engine = &self.world.hosts[lane.from].engine;
            assert_eq!(engine.qp_state(lane.qpns[0]), Some(QpState::Rts));
            let c = engine.qp_counters(lane.qpns[0]).unwrap();
            // It waits for receives now and then, and for nothing else.
            let disturbed = [
                c.timeouts,
                c.seq_naks_in,
                c.implied_naks,
                c.duplicates,
                c.ghost_responses,
            ];
            assert_eq!(disturbed, [0; 5], "{c:?}");
            refused += c.discards;
        }
        if self.link == Link::Ethernet {
            assert!(
                refused > 0,
                "no frame with a right ICRC and a wrong address"
            );
        }
        let mut text = format!(
            "rounds of the others {:?}, attacked QP died {} times and completed {}",
            self.rounds, self.victim.deaths, self.victim.completed
        );
        text += &self.check_unreliable();
        for host in &mut self.world.hosts {
            let stats = host.engine.stats();
            let port = host.engine.port_stats();
            let sum = stats.delivered
                + stats.bad_frames
                + stats.bad_packets
                + stats.icrc_errors
                + stats.unknown_qp;
            assert_eq!((stats.rx_frames, port.rx_dropped), (sum, 0), "{stats:?}");
            assert_eq!(stats.rx_frames, port.rx_frames);
            text += &format!("\n  {stats:?}");
        }
        assert!(self.rounds.iter().all(|&n| n > 10), "{text}");
        assert!(self.victim.deaths > 100, "{text}");
        text
    }
}

impl Field {
    /// The QPs that answer nothing are as they were, and have seen everything.
    fn check_unreliable(&self) -> String {
        let mut text = String::new();
        for (i, host) in self.world.hosts.iter().enumerate() {
            for qpn in [self.victim.uc[i], self.victim.ud[i]] {
                assert_eq!(host.engine.qp_state(qpn), Some(QpState::Rts));
                let c = host.engine.qp_counters(qpn).unwrap();
                let refused = c.invalid_requests + c.discards;
                // Without L2 the attacker reaches one of the hosts only.
                let hit = self.link == Link::Udp || refused > 0;
                assert!(c.recvs_completed > 0 || self.link == Link::Udp, "{c:?}");
                assert!(hit, "{c:?}");
                assert_eq!(c.acks_out + c.seq_naks_out + c.fatal_naks_out, 0);
                text += &format!("\n  {qpn:?}: {} received", c.recvs_completed);
            }
        }
        text
    }
}

/// A pair nobody attacks, busy both ways.
fn innocents(world: &mut World, rng: &mut Rng, repair: Reliability) -> (Vec<Lane>, [Vec<RKey>; 2]) {
    let pools = pools(world);
    let depths = |init: &mut QpInit| (init.max_send_wr, init.max_recv_wr) = (32, 32);
    let qpns = world.connect(MTU, [0xff_fff0, 0x10], depths, |attr| {
        if attr.state == Some(QpState::Rtr) {
            attr.reliability = Some(repair);
        }
    });
    let limits = Limits {
        mtu: MTU,
        ops: 40,
        max_len: 20_000,
        send_wr: 32,
        recv_wr: 32,
        send_sge: 4,
        recv_sge: 4,
        inline: 64,
        late_ppm: 0,
        late_ns: 0,
        pause_ppm: 0,
        pause_ns: 0,
        writes: true,
        reads: true,
        atomics: true,
        atomic_writes: true,
        flushes: true,
    };
    let lanes: Vec<Lane> = [0, 1]
        .map(|from| {
            let qpns = [qpns[from], qpns[1 - from]];
            Lane::new(world, pools, from, qpns, limits, Fate::Sound, rng)
        })
        .into();
    let keys = [0, 1].map(|i| vec![world.hosts[i].mr.rkey, pools[i].1.rkey]);
    (lanes, keys)
}

impl Victim {
    fn new(world: &mut World) -> Self {
        let pds = [0, 1].map(|i: usize| world.hosts[i].engine.alloc_pd());
        let cqs = [0, 1].map(|i: usize| world.hosts[i].engine.create_cq(4096).unwrap());
        let area = |world: &mut World, i: usize, access| {
            let host = &mut world.hosts[i];
            let (at, old) = host.carve(GRANT, access);
            host.engine.dereg_mr(old.lkey).unwrap();
            let mr = host
                .engine
                .reg_mr_range(pds[i], &host.region, at, GRANT, access);
            (at, mr.unwrap())
        };
        let open = [0, 1].map(|i| area(world, i, ALL_ACCESS));
        let readable = [0, 1].map(|i| area(world, i, Access::REMOTE_READ));
        let qpns = [0, 1].map(|i: usize| {
            world.create_qp(i, |init| {
                init.pd = pds[i];
                init.send_cq = cqs[i];
                init.recv_cq = cqs[i];
            })
        });
        let of_type = |world: &mut World, qp_type| {
            [0, 1].map(|i: usize| {
                world.create_qp(i, |init| {
                    init.qp_type = qp_type;
                    init.pd = pds[i];
                    init.send_cq = cqs[i];
                    init.recv_cq = cqs[i];
                })
            })
        };
        Self {
            uc: of_type(world, QpType::Uc),
            ud: of_type(world, QpType::Ud),
            qpns,
            cqs,
            open,
            readable,
            deaths: 0,
            completed: 0,
        }
    }

    fn bring_up(&mut self, world: &mut World, rng: &mut Rng) {
        let psns = [0, 1].map(|_| rng.below(1 << 24) as u32);
        let selective = Reliability::Selective(SelectiveParams::default());
        // One end alone is a mistake of whoever connects, and no harm to others.
        let first = [Reliability::GoBackN, selective][rng.index(2)];
        let second = if rng.below(4) == 0 { selective } else { first };
        world.bring_up(self.qpns, MTU, psns, |i, attr| match attr.state {
            Some(QpState::Rtr) => attr.reliability = Some([first, second][i]),
            Some(QpState::Rts) => attr.timeout = Some(4),
            _ => {}
        });
    }

    fn bring_up_unreliable(&self, world: &mut World) {
        for i in [0, 1] {
            let path = world.hosts[i].path_to(&world.hosts[1 - i]);
            let engine = &mut world.hosts[i].engine;
            for attr in [
                QpAttr::init(ALL_ACCESS),
                QpAttr::rtr_uc(path, MTU, self.uc[1 - i], Psn::new(0)),
                QpAttr::rts_unreliable(Psn::new(0)),
            ] {
                engine.modify_qp(self.uc[i], &attr).unwrap();
            }
            for attr in [
                QpAttr::init_ud(QKey::new(QKEY)),
                QpAttr::state(QpState::Rtr),
                QpAttr::rts_unreliable(Psn::new(0)),
            ] {
                engine.modify_qp(self.ud[i], &attr).unwrap();
            }
        }
    }

    /// One of the attacked QPs of a host.
    pub(crate) fn target(&self, host: usize, rng: &mut Rng) -> Qpn {
        match rng.below(4) {
            0 => self.uc[host],
            1 => self.ud[host],
            _ => self.qpns[host],
        }
    }

    /// Keeps SENDs, WRITEs and READs going in both directions.
    fn pump(&mut self, world: &mut World, rng: &mut Rng) {
        for i in [0, 1] {
            let (at, mr) = self.open[i];
            let (peer_at, peer_mr) = self.open[1 - i];
            let va = world.hosts[1 - i].va(peer_at + rng.below(GRANT / 2));
            let host = &mut world.hosts[i];
            let recv = Sge {
                lkey: mr.lkey,
                va: host.va(at),
                len: 4096,
            };
            let wr = RecvWr {
                wr_id: 0,
                sges: &[recv],
            };
            for qpn in [self.qpns[i], self.uc[i], self.ud[i]].repeat(4) {
                match host.engine.post_recv(qpn, &wr) {
                    Ok(()) | Err(EngineError::Post(PostError::QueueFull { .. })) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            if host.engine.sends_posted(self.qpns[i]).unwrap() >= 8 {
                continue;
            }
            let rkey = peer_mr.rkey;
            let op = match rng.below(5) {
                0 => SendOp::Send,
                1 => SendOp::SendImm([1; 4]),
                2 => SendOp::Write { va, rkey },
                3 => SendOp::WriteImm {
                    va,
                    rkey,
                    imm: [2; 4],
                },
                _ => SendOp::Read { va, rkey },
            };
            let sge = Sge {
                lkey: mr.lkey,
                va: host.va(at + rng.below(GRANT / 2)),
                len: rng.below(4097) as u32,
            };
            let wr = SendWr {
                wr_id: 0,
                op,
                flags: SendFlags::SIGNALED,
                data: Data::Sges(&[sge]),
            };
            host.engine.post_send(self.qpns[i], &wr).unwrap();
            let wr = SendWr {
                op: SendOp::Send,
                ..wr
            };
            host.engine.post_send(self.uc[i], &wr).unwrap();
        }
    }

    /// A QP that died of an attack is connected anew; now and then it is another QP.
    fn revive(&mut self, world: &mut World, rng: &mut Rng) {
        let mut batch = [Completion::EMPTY; 64];
        for i in [0, 1] {
            loop {
                let n = world.hosts[i].engine.poll_cq(self.cqs[i], &mut batch);
                self.completed += n as u64;
                if n == 0 {
                    break;
                }
            }
        }
        let dead = |i: usize| world.hosts[i].engine.qp_state(self.qpns[i]) != Some(QpState::Rts);
        if !dead(0) && !dead(1) {
            return;
        }
        self.deaths += 1;
        for i in [0, 1] {
            let reset = QpAttr::state(QpState::Reset);
            world.hosts[i]
                .engine
                .modify_qp(self.qpns[i], &reset)
                .unwrap();
        }
        self.bring_up(world, rng);
    }
}

/// Follows the PSNs of the attacked pair.
fn watch(
    world: &World,
    uplinks: [xroce_net::sim::WireId; 2],
    link: Link,
    victim: &Victim,
) -> Rc<RefCell<Live>> {
    let live = Rc::new(RefCell::new(Live::default()));
    let (tap, qpns) = (Rc::clone(&live), victim.qpns);
    world.net.set_tap(move |event| {
        let from = uplinks.iter().position(|&w| w == event.wire);
        let (Some(from), Happened::Sent) = (from, event.fate) else {
            return;
        };
        let transport = match link {
            Link::Ethernet => match Frame::parse_ethernet(event.frame) {
                Ok(frame) => frame.transport(),
                Err(_) => return,
            },
            Link::Udp => event.frame,
        };
        let Ok(pkt) = Packet::parse(transport) else {
            return;
        };
        if pkt.info().is_request && pkt.dest_qp() == qpns[1 - from] {
            let mut live = tap.borrow_mut();
            let psns = pkt.reth().filter(|_| pkt.payload().is_empty());
            let psns = psns.map_or(1, |r| MTU.packets(r.len));
            live.asked[from] = pkt.psn();
            live.request[from] = pkt.psn().add(psns);
        }
    });
    live
}
