//! Two live engines, and a script of what happens to them: forged frames, frames on their way
//! changed, lost, doubled and overtaken, time, work and commands on the attacked queue pairs. Both
//! pairs may have agreed to selective retransmission, or only one end of the attacked ones.
//!
//! What must hold: no panic; nothing is written outside what was granted, and nothing at all once
//! the grant is taken back; a pair that is not attacked goes on and gets its data right;
//! completions come once and in order; every frame is in exactly one counter.

mod forge;
mod innocent;
mod victim;

use xroce_api::EngineStats;
use xroce_engine::{Engine, EngineConfig};
use xroce_proto::cc::{CongestionControl, Rate};
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::recovery::{Reliability, SelectiveParams};
use xroce_proto::time::Instant;
use xroce_proto::wc::Cq;
use xroce_shm::Region;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{Gid, MacAddr, PathMtu, Psn, Qpn};
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;

use crate::bytes::Bytes;
use crate::port::{Port, Queue};
use innocent::Innocent;
use victim::Victim;

/// Everything a peer may do.
pub(crate) const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

const MTU: PathMtu = PathMtu::Mtu256;
pub(crate) const SRC_PORT: u16 = 0xc123;

/// Bytes of each host's memory.
const MEMORY: usize = 16 << 10;
/// What the attacked QPs work on; the peer may do everything there.
const OPEN: u64 = 4096;
const OPEN_LEN: u64 = 4096;
/// What the peer of the attacked QPs may read, and nobody writes.
const READABLE: u64 = 8256;
const READABLE_LEN: u64 = 1024;

/// Frames lost on the way of the pair that has to live: fewer than it retries.
const LOSSES_MAX: u32 = 3;
/// Frames on their way, at most.
const ROOM: usize = 64;
/// Bytes of a script that are looked at.
const SCRIPT_MAX: usize = 1024;

type E = Engine<Port>;

/// One end.
struct Host {
    engine: E,
    gid: Gid,
    mac: MacAddr,
    region: Region,
    pd: Pd,
    cq: Cq,
    /// Frames on their way to it.
    inn: Queue,
}

impl Host {
    fn path_to(&self, peer: &Self) -> AddressVector {
        AddressVector {
            src: self.gid,
            dst: peer.gid,
            src_mac: self.mac,
            dst_mac: peer.mac,
            vlan: None,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            src_port: SRC_PORT,
        }
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read_at(at, &mut out).unwrap();
        out
    }
}

/// What a byte of memory is before anything happens.
fn filler(at: usize) -> u8 {
    (at ^ at >> 8).wrapping_mul(0x9d) as u8
}

thread_local! {
    /// Mapping memory takes longer than a script: it is done once.
    static REGIONS: [Region; 2] = [0, 1].map(|_| Region::anonymous(MEMORY).unwrap());
    static FILL: Vec<u8> = (0..MEMORY).map(filler).collect();
}

struct Field {
    hosts: [Host; 2],
    now: u64,
    innocent: Innocent,
    victim: Victim,
    losses: u32,
    /// Frames put in by the script rather than by an engine.
    forged: [u64; 2],
}

/// Plays one script.
pub fn engines(data: &[u8]) {
    let data = data.get(..SCRIPT_MAX).unwrap_or(data);
    let mut bytes = Bytes::new(data);
    let mut field = Field::new(bytes.u8());
    while !bytes.is_empty() {
        field.act(&mut bytes);
    }
    field.finish();
}

impl Field {
    fn new(how: u8) -> Self {
        let queues = [Queue::default(), Queue::default()];
        let config = EngineConfig {
            rx_budget: if how & 1 == 0 { 4 } else { 1 },
            tx_budget: if how & 2 == 0 { 16 } else { 2 },
            quantum: if how & 4 == 0 { 16 } else { 1 },
            ..EngineConfig::default()
        };
        let mut hosts = [0, 1].map(|i: usize| {
            let port = Port::new(1024, ROOM, &queues[1 - i], &queues[i]);
            let mut engine = Engine::new(port, config);
            let region = REGIONS.with(|r| r[i].clone());
            FILL.with(|fill| region.write_at(0, fill)).unwrap();
            let (pd, n) = (engine.alloc_pd(), i as u8 + 1);
            Host {
                cq: engine.create_cq(64).unwrap(),
                engine,
                gid: Gid::from_v4([192, 0, 2, n]),
                mac: MacAddr::new([2, 0, 0, 0, 0, n]),
                region,
                pd,
                inn: queues[i].clone(),
            }
        });
        let innocent = Innocent::new(&mut hosts, &Manner::innocent(how));
        let victim = Victim::new(&mut hosts, Manner::victim(how));
        Self {
            hosts,
            now: 1_000_000,
            innocent,
            victim,
            losses: 0,
            forged: [0; 2],
        }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        let to = usize::from(what >> 7);
        match what & 0xf {
            0..=4 => self.forge(to, bytes),
            5 => self.change(to, bytes),
            6 => self.shuffle(to, bytes),
            7 => self.poll(to),
            8 => {
                self.poll(to);
                self.poll(1 - to);
            }
            9 => self.now += 1 << bytes.below(21),
            10 => self.victim.post_send(&mut self.hosts, to, bytes),
            11 => self.victim.post_recv(&mut self.hosts, to, bytes),
            12 => self.victim.command(&mut self.hosts, to, bytes),
            13 => self.innocent.work(&mut self.hosts, to, bytes),
            14 => self.victim.reconnect(&mut self.hosts, bytes),
            _ => self.turn(),
        }
    }

    /// Everybody receives, answers and receives again.
    fn turn(&mut self) {
        for _ in 0..2 {
            self.poll(0);
            self.poll(1);
        }
    }

    fn poll(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        let now = Instant::from_nanos(self.now);
        host.engine.poll_once(now).unwrap();
        self.innocent.collect(&mut self.hosts, i);
        self.victim.collect(&mut self.hosts[i], i);
    }

    /// A frame from nobody, at one end of the queue.
    fn forge(&mut self, to: usize, bytes: &mut Bytes<'_>) {
        let frame = self.victim.frame(&self.hosts, to, &self.innocent, bytes);
        self.put(to, frame, bytes.flag());
    }

    fn put(&mut self, to: usize, mut frame: Vec<u8>, front: bool) {
        self.spare(to, &mut frame);
        let mut queue = self.hosts[to].inn.borrow_mut();
        if front {
            queue.push_front(frame);
        } else {
            queue.push_back(frame);
        }
        self.forged[to] += 1;
    }

    /// Who knows all numbers of a connection can disturb it: what is made for the pair that has to
    /// live is never whole.
    fn spare(&self, to: usize, frame: &mut [u8]) {
        if self.is_innocent(to, frame) {
            forge::spoil(frame);
        }
    }

    fn is_innocent(&self, to: usize, frame: &[u8]) -> bool {
        let Ok(frame) = Frame::parse_ethernet(frame) else {
            return false;
        };
        let pkt = Packet::parse(frame.transport());
        pkt.is_ok_and(|p| p.dest_qp() == self.innocent.qpns[to])
    }

    /// Changes a frame on its way.
    fn change(&mut self, to: usize, bytes: &mut Bytes<'_>) {
        let (which, at, mask) = (bytes.u8(), bytes.u16(), bytes.u8());
        let (seal, resize) = (bytes.flag(), bytes.u8());
        let queue = self.hosts[to].inn.clone();
        let n = queue.borrow().len();
        let Some(n) = usize::from(which).checked_rem(n) else {
            return;
        };
        let mut frame = queue.borrow_mut()[n].clone();
        if self.is_innocent(to, &frame) && !self.may_lose() {
            return;
        }
        if resize & 0x80 != 0 {
            let len = (frame.len() + 64).saturating_sub(usize::from(resize & 0x7f));
            frame.resize(len.min(1024), 0x5a);
        }
        let len = frame.len();
        if let Some(byte) = usize::from(at).checked_rem(len) {
            frame[byte] ^= mask;
        }
        if seal {
            forge::seal(&mut frame);
        }
        self.spare(to, &mut frame);
        queue.borrow_mut()[n] = frame;
    }

    fn may_lose(&mut self) -> bool {
        self.losses += 1;
        self.losses <= LOSSES_MAX
    }

    /// Loses a frame, doubles it, or lets others overtake it.
    fn shuffle(&mut self, to: usize, bytes: &mut Bytes<'_>) {
        let (which, how) = (bytes.u8(), bytes.below(3));
        let queue = self.hosts[to].inn.clone();
        let n = queue.borrow().len();
        let Some(n) = usize::from(which).checked_rem(n) else {
            return;
        };
        let frame = queue.borrow()[n].clone();
        if self.is_innocent(to, &frame) && !self.may_lose() {
            return;
        }
        let mut queue = queue.borrow_mut();
        match how {
            0 => {
                queue.remove(n);
            }
            1 if queue.len() < ROOM => queue.push_back(frame),
            _ => {
                let frame = queue.remove(n).unwrap();
                queue.push_back(frame);
            }
        }
    }

    /// Lets everything come to rest, then checks what must hold.
    fn finish(mut self) {
        for _ in 0..20_000 {
            self.turn();
            let quiet = self.hosts.iter().all(|h| h.inn.borrow().is_empty());
            if !quiet {
                continue;
            }
            if self.innocent.is_done() {
                break;
            }
            let deadlines = self.hosts.iter().filter_map(|h| h.engine.next_deadline());
            match deadlines.map(Instant::as_nanos).min() {
                Some(at) => self.now = at.max(self.now + 1),
                None => break,
            }
        }
        assert!(self.innocent.is_done(), "{:?}", self.innocent);
        self.innocent.check(&self.hosts);
        self.victim.check(&self.hosts);
        for (i, host) in self.hosts.iter_mut().enumerate() {
            let (stats, port) = (host.engine.stats(), host.engine.port_stats());
            count(&stats, port.rx_frames);
            check_memory(host, i);
        }
    }
}

/// Every frame is in exactly one counter.
pub(crate) fn count(stats: &EngineStats, received: u64) {
    let sum = stats.delivered
        + stats.bad_frames
        + stats.bad_packets
        + stats.icrc_errors
        + stats.unknown_qp;
    assert_eq!(
        (stats.rx_frames, stats.rx_frames),
        (sum, received),
        "{stats:?}"
    );
}

/// Nothing was written but what may have been.
fn check_memory(host: &Host, i: usize) {
    let memory = host.bytes(0, MEMORY);
    FILL.with(|fill| {
        let mut start = 0;
        let end = MEMORY as u64;
        for written in [OPEN..OPEN + OPEN_LEN, innocent::WRITTEN, end..end] {
            let between = start as usize..written.start as usize;
            // As a whole: byte by byte takes longer than the script.
            assert!(
                memory[between.clone()] == fill[between.clone()],
                "host {i}: something was written in {between:x?}"
            );
            start = written.end;
        }
    });
}

/// How a pair repairs losses and is governed.
pub(crate) struct Manner {
    reliability: [Reliability; 2],
    control: Option<CongestionControl>,
}

impl Manner {
    fn innocent(how: u8) -> Self {
        Self {
            reliability: [repair(how & 0x20 != 0); 2],
            control: None,
        }
    }

    fn victim(how: u8) -> Self {
        let line = Rate::bits_per_second(10_000_000_000);
        let name = ["", "dcqcn", "swift", "nscc"][usize::from(how >> 6)];
        Self {
            reliability: [repair(how & 8 != 0), repair(how & 0x18 == 8)],
            control: CongestionControl::by_name(name, line, &[]).ok(),
        }
    }
}

/// So small that every limit is met.
fn repair(selectively: bool) -> Reliability {
    if !selectively {
        return Reliability::GoBackN;
    }
    Reliability::Selective(SelectiveParams {
        range: 128,
        window: 16,
        tolerance: 3,
        store: 4,
        ..SelectiveParams::default()
    })
}

/// Takes a pair of connected QPs to RTS.
fn connect(hosts: &mut [Host; 2], qpns: [Qpn; 2], psns: [u32; 2], timeout: u8, manner: &Manner) {
    for i in [0, 1] {
        let path = hosts[i].path_to(&hosts[1 - i]);
        let mut rtr = QpAttr::rtr(path, MTU, qpns[1 - i], Psn::new(psns[1 - i]));
        rtr.max_dest_rd_atomic = Some(4);
        rtr.reliability = Some(manner.reliability[i]);
        let mut rts = QpAttr::rts(Psn::new(psns[i]));
        (rts.max_rd_atomic, rts.timeout) = (Some(4), Some(timeout));
        rts.congestion.clone_from(&manner.control);
        for attr in [QpAttr::init(ALL_ACCESS), rtr, rts] {
            hosts[i].engine.modify_qp(qpns[i], &attr).unwrap();
        }
    }
}

fn capacities(init: &mut QpInit) {
    (init.max_send_wr, init.max_recv_wr) = (8, 8);
    (init.max_send_sge, init.max_recv_sge) = (2, 2);
}
