//! What a tap shows of real traffic, with filters and without; and that the port sees no difference.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails may panic"
)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;

use pcap_file::pcap::PcapReader;
use proptest::prelude::*;
use xroce_api::clock;
use xroce_api::message::{CaptureSpec, CaptureStats, Direction, SNAPLEN_MAX};
use xroce_control::capture::{self, Header};
use xroce_net::datapath::Link;
use xroce_shm::{Consumer, ParkWord, Region};
use xroce_wire::frame::{Frame, UdpMeta};
use xroce_wire::opcode::{Operation, Service};
use xroce_wire::packet::Packet;
use xroce_wire::syndrome::Syndrome;

use super::*;
use crate::bell::Bell;

const MAX_FRAME: usize = 9_000;
/// Everything, in a ring that is quickly made.
const ALL: CaptureSpec = CaptureSpec {
    qp: None,
    peer: None,
    direction: None,
    errors: false,
    sample: 1,
    snaplen: SNAPLEN_MAX,
    entries: 512,
};

/// A port that receives what it is told to and keeps what it sends.
struct Fake {
    caps: Caps,
    inbox: VecDeque<(Option<UdpMeta>, Vec<u8>)>,
    frame: Vec<u8>,
    sent: Vec<(TxMeta, Vec<u8>)>,
    full: bool,
}

impl Fake {
    fn new(link: Link) -> Self {
        Self {
            caps: Caps {
                link,
                mtu: 8_000,
                max_frame: MAX_FRAME,
                name: "fake".to_owned(),
            },
            inbox: VecDeque::new(),
            frame: vec![0; MAX_FRAME],
            sent: Vec::new(),
            full: false,
        }
    }
}

impl Datapath for Fake {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let count = budget.min(self.inbox.len());
        for (meta, bytes) in self.inbox.drain(..count) {
            each(match meta {
                Some(meta) => Rx::Udp(meta, &bytes),
                None => Rx::Ethernet(&bytes),
            });
        }
        Ok(count)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        (!self.full).then_some(&mut self.frame)
    }

    fn tx_commit(&mut self, meta: &TxMeta, len: usize) {
        self.sent.push((*meta, self.frame[..len].to_vec()));
        self.frame.fill(0xee);
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        PortStats::default()
    }
}

/// A frame of a capture, as one of its two hosts sees it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    direction: Direction,
    udp: Option<UdpMeta>,
    bytes: Vec<u8>,
}

impl Seen {
    fn frame(&self) -> Option<Frame<'_>> {
        match &self.udp {
            Some(meta) => Some(Frame::from_udp(meta, &self.bytes)),
            None => Frame::dissect_ethernet(&self.bytes).ok(),
        }
    }

    fn peer(&self) -> Option<Gid> {
        let frame = self.frame()?;
        Some(match self.direction {
            Direction::In => frame.src(),
            Direction::Out => frame.dst(),
        })
    }
}

/// All captures of the repository, seen from the host with the lower address; over UDP without
/// what is no RoCE.
fn traffic(link: Link) -> Vec<Vec<Seen>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/captures");
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    names.sort();
    let all: Vec<_> = names.iter().map(|name| seen(name, link)).collect();
    assert!(all.len() > 30);
    all
}

fn seen(file: &Path, link: Link) -> Vec<Seen> {
    let mut reader = PcapReader::new(std::fs::File::open(file).unwrap()).unwrap();
    let mut all = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let bytes = packet.unwrap().data.into_owned();
        let Ok(frame) = Frame::dissect_ethernet(&bytes) else {
            if link == Link::Ethernet {
                let direction = Direction::In;
                let udp = None;
                all.push(Seen {
                    direction,
                    udp,
                    bytes,
                });
            }
            continue;
        };
        let direction = if frame.src().bytes() < frame.dst().bytes() {
            Direction::Out
        } else {
            Direction::In
        };
        // As a socket tells it.
        let meta = UdpMeta {
            src: frame.src(),
            dst: frame.dst(),
            src_port: frame.src_port(),
            tos: frame.tos(),
            hop_limit: frame.hop_limit().filter(|_| direction == Direction::In),
        };
        let (udp, bytes) = match link {
            Link::Udp => (Some(meta), frame.transport().to_vec()),
            Link::Ethernet => (None, bytes.clone()),
        };
        all.push(Seen {
            direction,
            udp,
            bytes,
        });
    }
    all
}

const WHO: Who = Who {
    session: 7,
    pid: 70,
};

/// A tap, its reader, and the memory between.
struct Listening {
    tap: Tap<Fake>,
    ring: Consumer,
    memory: Region,
    _bell: std::os::fd::OwnedFd,
}

impl Listening {
    fn new(link: Link, spec: &CaptureSpec, own: Option<Own>) -> Self {
        let capacity = capture::ring_for(spec).unwrap();
        let geometry = capture::ring(capacity).unwrap();
        let bytes = usize::try_from(geometry.bytes()).unwrap();
        let memory = Region::anonymous(bytes).unwrap();
        let (bell, theirs) = Bell::new().unwrap();
        let made = Capture::new(WHO, spec, (&memory, capacity), bell, own, MAX_FRAME).unwrap();
        let mut tap = Tap::new(Fake::new(link));
        tap.begin(Box::new(made)).unwrap();
        let ring = Consumer::new(&memory, 0, geometry).unwrap();
        Self {
            tap,
            ring,
            memory,
            _bell: theirs,
        }
    }

    fn pass(&mut self, seen: &Seen) {
        match seen.direction {
            Direction::In => {
                let inbox = &mut self.tap.port.inbox;
                inbox.push_back((seen.udp, seen.bytes.clone()));
                let mut came = Vec::new();
                let count = self.tap.rx_burst(32, &mut |rx| match rx {
                    Rx::Ethernet(bytes) => came.push((None, bytes.to_vec())),
                    Rx::Udp(meta, bytes) => came.push((Some(meta), bytes.to_vec())),
                });
                assert_eq!(count.unwrap(), 1);
                assert_eq!(came, [(seen.udp, seen.bytes.clone())]);
            }
            Direction::Out => {
                let meta = TxMeta {
                    dst: seen.udp.map_or_else(Gid::default, |udp| udp.dst),
                    tos: seen.udp.map_or(3, |udp| udp.tos),
                };
                let room = self.tap.tx_begin().unwrap();
                assert_eq!(room.len(), MAX_FRAME);
                room[..seen.bytes.len()].copy_from_slice(&seen.bytes);
                self.tap.tx_commit(&meta, seen.bytes.len());
                self.tap.tx_flush().unwrap();
                let (sent, bytes) = self.tap.port.sent.pop().unwrap();
                assert_eq!((sent.dst, sent.tos), (meta.dst, meta.tos));
                assert_eq!(bytes, seen.bytes);
            }
        }
    }

    fn records(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut all = Vec::new();
        let mut frame = Vec::new();
        while let Some(header) = capture::next(&mut self.ring, &mut frame).unwrap() {
            all.push((header, frame.clone()));
        }
        all
    }

    fn stats(&mut self) -> CaptureStats {
        self.tap.of(WHO.session).unwrap().stats()
    }
}

/// What a capture shows of some traffic.
fn captured(all: &[Seen], link: Link, spec: &CaptureSpec) -> (Vec<Seen>, CaptureStats) {
    let own = all.iter().find(|s| s.direction == Direction::Out);
    let own = own.and_then(|s| s.udp).map(|udp| Own {
        gid: udp.src,
        src_port: udp.src_port,
    });
    let mut listening = Listening::new(link, spec, own);
    for (local, to) in connections(all) {
        listening.tap.connected(local, Some(to));
    }
    let mut shown = Vec::new();
    for seen in all {
        // A socket has one port; these captures are of stacks that have many.
        if let (Some(udp), Some(own)) = (seen.udp, own)
            && seen.direction == Direction::Out
            && udp.src_port != own.src_port
        {
            continue;
        }
        listening.pass(seen);
        shown.extend(listening.records());
    }
    assert!(shown.is_sorted_by_key(|(header, _)| header.ts_ns));
    let each = shown.into_iter().map(|(header, bytes)| {
        assert_eq!(header.kept, header.len.min(spec.snaplen));
        Seen {
            direction: header.direction,
            udp: header.udp,
            bytes,
        }
    });
    (each.collect(), listening.stats())
}

/// What is connected to what: a guess from the ACKs, as good as any for this.
fn connections(all: &[Seen]) -> Vec<(Qpn, Connection)> {
    let mut ends: HashMap<Direction2, Vec<Qpn>> = HashMap::new();
    for seen in all {
        let Some(frame) = seen.frame() else { continue };
        let Ok(packet) = Packet::parse(frame.transport()) else {
            continue;
        };
        if packet.info().service != Service::Rc {
            continue;
        }
        let way = seen.direction == Direction::In;
        let known = ends.entry((way, seen.peer().unwrap())).or_default();
        if !known.contains(&packet.dest_qp()) {
            known.push(packet.dest_qp());
        }
    }
    let mut found = Vec::new();
    for ((way, peer), locals) in &ends {
        let remotes = ends.get(&(false, *peer)).filter(|_| *way);
        for (local, remote) in locals.iter().zip(remotes.into_iter().flatten()) {
            let (peer, qpn) = (*peer, *remote);
            found.push((*local, Connection { peer, qpn }));
        }
    }
    found
}

type Direction2 = (bool, Gid);

/// The filters once more, over a list and without any economy.
struct Reference {
    connected: Vec<(Qpn, Connection)>,
    highest: HashMap<(bool, Gid, Qpn), i64>,
    reads: HashMap<(bool, Gid, Qpn), (i64, u64, u32)>,
}

impl Reference {
    fn wants(&mut self, spec: &CaptureSpec, seen: &Seen) -> bool {
        if spec.direction.is_some_and(|d| d != seen.direction) {
            return false;
        }
        let packet = seen.frame().map(|f| Packet::parse(f.transport()).ok());
        let Some(packet) = packet else {
            return spec.peer.is_none() && spec.qp.is_none();
        };
        let peer = seen.peer().unwrap();
        if spec.peer.is_some_and(|wanted| wanted != peer) {
            return false;
        }
        let Some(packet) = packet else {
            return spec.qp.is_none();
        };
        if spec.qp.is_some_and(|qp| !self.is_of(qp, seen, &packet)) {
            return false;
        }
        !spec.errors || self.is_trouble(seen, &packet)
    }

    /// Whether either end of a packet is this queue pair.
    fn is_of(&self, qp: Qpn, seen: &Seen, packet: &Packet<'_>) -> bool {
        let peer = seen.peer().unwrap();
        let to = packet.dest_qp();
        let mut ends = HashSet::from([to]);
        ends.extend(packet.deth().map(|h| h.src_qp));
        for (local, other) in &self.connected {
            match seen.direction {
                Direction::In if to == *local => drop(ends.insert(other.qpn)),
                Direction::Out if (other.qpn, other.peer) == (to, peer) => {
                    ends.insert(*local);
                }
                Direction::In | Direction::Out => {}
            }
        }
        ends.contains(&qp)
    }

    fn is_trouble(&mut self, seen: &Seen, packet: &Packet<'_>) -> bool {
        let operation = packet.info().operation;
        let negative = packet.aeth().is_some_and(|h| {
            matches!(
                h.syndrome,
                Syndrome::Nak(_) | Syndrome::RnrNak { .. } | Syndrome::Reserved(_)
            )
        });
        let special = [Operation::Cnp, Operation::Sack, Operation::Probe];
        if negative || special.contains(&operation) {
            return true;
        }
        let service = packet.info().service;
        if !packet.info().is_request || ![Service::Rc, Service::Xrc].contains(&service) {
            return false;
        }
        let way = seen.direction == Direction::In;
        let key = (way, seen.peer().unwrap(), packet.dest_qp());
        let psn = i64::from(packet.psn().value());
        let before = self.highest.get(&key).copied();
        // Serial numbers of 24 bits.
        let ahead = before.map(|high| (psn - high).rem_euclid(1 << 24));
        if ahead.is_some_and(|n| n == 0 || n >= 1 << 23) {
            return true;
        }
        self.highest.insert(key, psn);
        let Some(reth) = packet
            .reth()
            .filter(|_| operation == Operation::ReadRequest)
        else {
            return false;
        };
        let now = (psn, reth.va.value(), reth.len);
        let then = self.reads.insert(key, now);
        then.is_some_and(|then| {
            let packets = (now.0 - then.0).rem_euclid(1 << 24) as u64;
            let moved = now.1.wrapping_sub(then.1);
            let mtus = [256, 512, 1024, 2048, 4096];
            u64::from(then.2) == moved.wrapping_add(u64::from(now.2))
                && mtus.iter().any(|mtu| packets * mtu == moved)
        })
    }
}

fn spec_of(all: &[Seen]) -> impl Strategy<Value = CaptureSpec> + use<> {
    let mut qps = HashSet::new();
    let mut peers = HashSet::new();
    for seen in all {
        peers.extend(seen.peer());
        let frame = seen.frame();
        let packet = frame.as_ref().map(|f| Packet::parse(f.transport()));
        if let Some(Ok(packet)) = packet {
            qps.insert(packet.dest_qp().value());
            qps.extend(packet.deth().map(|h| h.src_qp.value()));
        }
    }
    for (local, to) in connections(all) {
        qps.extend([local.value(), to.qpn.value()]);
    }
    // One that nobody is.
    qps.insert(0x00ab_cdef);
    peers.insert(Gid::from_v4([192, 0, 2, 99]));
    let mut qps: Vec<u32> = qps.into_iter().collect();
    qps.sort_unstable();
    let mut peers: Vec<Gid> = peers.into_iter().collect();
    peers.sort_unstable_by_key(|gid| gid.bytes());
    let way = prop_oneof![Just(Direction::In), Just(Direction::Out)];
    let filters = (
        proptest::option::of(proptest::sample::select(qps)),
        proptest::option::of(proptest::sample::select(peers)),
        proptest::option::of(way),
        any::<bool>(),
    );
    let amounts = (
        prop_oneof![Just(1), 2..5u32],
        prop_oneof![Just(SNAPLEN_MAX), 1..300u32],
    );
    (filters, amounts).prop_map(
        |((qp, peer, direction, errors), (sample, snaplen))| CaptureSpec {
            qp: qp.map(Qpn::new),
            peer,
            direction,
            errors,
            sample,
            snaplen,
            ..ALL
        },
    )
}

/// What is captured with a filter is the filter applied to what is captured without.
fn filtered_is_filtered(all: &[Seen], whole: &[Seen], link: Link, spec: &CaptureSpec) {
    let (got, stats) = captured(all, link, spec);
    let mut reference = Reference {
        connected: connections(all),
        highest: HashMap::new(),
        reads: HashMap::new(),
    };
    let mut wanted: Vec<Seen> = whole
        .iter()
        .filter(|seen| reference.wants(spec, seen))
        .cloned()
        .collect();
    let passed = wanted.len() as u64;
    wanted = wanted.into_iter().step_by(spec.sample as usize).collect();
    for seen in &mut wanted {
        seen.bytes.truncate(spec.snaplen as usize);
    }
    assert_eq!(got, wanted, "{spec:?}");
    assert_eq!(
        stats,
        CaptureStats {
            seen: whole.len() as u64,
            filtered: whole.len() as u64 - passed,
            unsampled: passed - got.len() as u64,
            captured: got.len() as u64,
            dropped: 0,
            broken: None,
        }
    );
}

fn over(link: Link) {
    for all in traffic(link) {
        let config = ProptestConfig::with_cases(24);
        let (whole, everything) = captured(&all, link, &ALL);
        assert_eq!(everything.captured, whole.len() as u64);
        assert_eq!(everything.seen, everything.captured);
        let mut runner = proptest::test_runner::TestRunner::new(config);
        runner
            .run(&spec_of(&all), |spec| {
                filtered_is_filtered(&all, &whole, link, &spec);
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn filters_hold_over_ethernet() {
    over(Link::Ethernet);
}

#[test]
fn filters_hold_over_udp() {
    over(Link::Udp);
}

#[test]
fn requests_sent_again_are_among_the_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/captures");
    let mut caught = 0;
    for name in std::fs::read_dir(folder).unwrap() {
        let name = name.unwrap().path();
        if !name.to_string_lossy().contains("retr") && !name.to_string_lossy().contains("nak") {
            continue;
        }
        let all = seen(&name, Link::Ethernet);
        let spec = CaptureSpec {
            errors: true,
            ..ALL
        };
        caught += captured(&all, Link::Ethernet, &spec).0.len();
    }
    assert!(caught > 0);
}

fn plain(direction: Direction, len: usize) -> Seen {
    Seen {
        direction,
        udp: None,
        bytes: (0..len).map(|n| n.to_le_bytes()[0]).collect(),
    }
}

#[test]
fn frames_of_every_length_come_through() {
    let mut listening = Listening::new(Link::Ethernet, &CaptureSpec::default(), None);
    for len in (0..1200).chain([2048, 4154, 8999, MAX_FRAME]) {
        for direction in [Direction::In, Direction::Out] {
            let frame = plain(direction, len);
            listening.pass(&frame);
            let [(header, bytes)] = listening.records().try_into().unwrap();
            assert_eq!(header.direction, direction);
            assert_eq!((header.len as usize, bytes), (len, frame.bytes));
        }
    }
}

#[test]
fn who_never_reads_loses_what_does_not_fit() {
    let spec = CaptureSpec {
        entries: 512,
        ..CaptureSpec::default()
    };
    let mut listening = Listening::new(Link::Ethernet, &spec, None);
    // 17 entries each: 30 fit.
    for n in 0..100 {
        let direction = [Direction::In, Direction::Out][n % 2];
        listening.pass(&plain(direction, 4154));
    }
    let stats = listening.stats();
    assert_eq!((stats.seen, stats.captured, stats.dropped), (100, 30, 70));
    let records = listening.records();
    assert!(records.len() == 30 && records.iter().all(|(h, _)| h.lost == 0));
    listening.pass(&plain(Direction::In, 64));
    let [(header, _)] = listening.records().try_into().unwrap();
    assert_eq!(header.lost, 70, "the next record tells");
}

#[test]
fn who_spoils_its_ring_has_none_any_more() {
    let mut listening = Listening::new(Link::Ethernet, &CaptureSpec::default(), None);
    listening.pass(&plain(Direction::In, 64));
    listening.memory.write_at(0, &[0xff; 4096]).unwrap();
    // The index is looked at when the ring seems full, and nothing is written from then on.
    for _ in 0..70_000 {
        listening.pass(&plain(Direction::In, 64));
    }
    let stats = listening.stats();
    let reason = stats.broken.unwrap();
    assert!(reason.contains("consumer index"), "{reason}");
    assert_eq!(stats.captured + stats.dropped, 70_001);
    let ended = listening.tap.end(WHO.session).unwrap();
    assert!(ended.stats().broken.is_some());
    listening.pass(&plain(Direction::Out, 64));
}

#[test]
fn a_reader_that_always_wants_to_be_woken_is_woken_now_and_then() {
    let mut listening = Listening::new(Link::Ethernet, &CaptureSpec::default(), None);
    let began = clock::now();
    let park = ParkWord::new(&listening.memory, xroce_shm::PARK_AT).unwrap();
    for _ in 0..20_000 {
        park.park();
        listening.pass(&plain(Direction::In, 64));
        listening.records();
    }
    let mut bytes = vec![0; 1 << 16];
    let rings = rustix::io::read(&listening._bell, &mut bytes).unwrap();
    let limit = clock::now().since(began).as_nanos() / 1_000_000 + 1;
    assert!(rings > 0 && rings as u64 <= limit, "{rings} in {limit} ms");
}

#[test]
fn there_is_one_capture_at_a_time() {
    let spec = CaptureSpec::default();
    let mut listening = Listening::new(Link::Ethernet, &spec, None);
    let second = Listening::new(Link::Ethernet, &spec, None).tap.capture;
    let (there, _) = listening.tap.begin(second.unwrap()).unwrap_err();
    assert_eq!(there, WHO);
    assert!(listening.tap.end(8).is_none(), "of another session");
    assert!(listening.tap.end(WHO.session).is_some());
    assert!(listening.tap.end(WHO.session).is_none());
}

#[test]
fn a_port_that_is_full_lends_nothing() {
    let mut listening = Listening::new(Link::Ethernet, &CaptureSpec::default(), None);
    listening.tap.port.full = true;
    assert!(listening.tap.tx_begin().is_none());
    listening.tap.port.full = false;
    // Lent and not committed: given back.
    listening.tap.tx_begin().unwrap()[0] = 9;
    listening.pass(&plain(Direction::Out, 100));
    assert_eq!(listening.records().len(), 1);
}
