//! Real rdma_rxe traffic played to a queue pair of this stack: it must answer as rxe did, and ask
//! as rxe did.

use xroce_proto::memory::{Access, AtomicError, AtomicOp, Grant, KeyError, Memory, Pd, Revoked};
use xroce_proto::qp::{Arrival, Cx, Qp, QpAttr, QpInit};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, Event, Sink, WcStatus};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::aeth::Aeth;
use xroce_wire::atomic::AtomicEth;
use xroce_wire::frame::Frame;
use xroce_wire::newtypes::{LKey, MacAddr, PathMtu, Psn, Qpn, RKey, Va};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::template::Lower;

use crate::captured::frames;
use crate::common::gid;

const REQUESTER: &str = "10.77.0.10";
const RESPONDER: &str = "10.77.0.11";

/// First PSN of both sides in all these captures.
const FIRST: Psn = Psn::new(0xff_fffc);

/// Own buffers are at address 0, under this key.
const LOCAL: LKey = LKey::new(1);

/// A region at the address and with the key the capture has, and one for own buffers.
struct CapturedMemory {
    va: u64,
    rkey: RKey,
    remote: Vec<u8>,
    local: Vec<u8>,
    invalidated: bool,
}

impl CapturedMemory {
    fn bytes(&self, grant: &Grant, offset: u32, len: usize) -> Result<&[u8], Revoked> {
        let of = [&self.local, &self.remote][grant.region() as usize];
        let at = grant.offset() as usize + offset as usize;
        of.get(at..at + len).ok_or(Revoked)
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.remote[at..at + 8].try_into().unwrap())
    }
}

impl Memory for CapturedMemory {
    fn check_local(
        &self,
        _: Pd,
        key: LKey,
        va: Va,
        len: u32,
        _: Access,
    ) -> Result<Grant, KeyError> {
        if key != LOCAL {
            return Err(KeyError::Unknown);
        }
        Ok(Grant::issue(0, 0, va.value(), len))
    }

    fn check_remote(
        &self,
        _: Pd,
        _: Qpn,
        key: RKey,
        va: Va,
        len: u32,
        _: Access,
    ) -> Result<Grant, KeyError> {
        if key != self.rkey || self.invalidated {
            return Err(KeyError::Unknown);
        }
        let offset = va.value().checked_sub(self.va).ok_or(KeyError::Range)?;
        Ok(Grant::issue(1, 0, offset, len))
    }

    fn read(&self, grant: &Grant, offset: u32, dst: &mut [u8]) -> Result<(), Revoked> {
        dst.copy_from_slice(self.bytes(grant, offset, dst.len())?);
        Ok(())
    }

    fn write(&mut self, grant: &Grant, offset: u32, src: &[u8]) -> Result<(), Revoked> {
        self.bytes(grant, offset, src.len())?;
        let of = [&mut self.local, &mut self.remote];
        let at = grant.offset() as usize + offset as usize;
        of[grant.region() as usize][at..at + src.len()].copy_from_slice(src);
        Ok(())
    }

    fn atomic(&mut self, grant: &Grant, op: AtomicOp) -> Result<u64, AtomicError> {
        let mut bytes = [0; 8];
        self.read(grant, 0, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(grant, 0, &op.apply(old).to_ne_bytes())?;
        Ok(old)
    }

    fn flush(
        &mut self,
        _: Pd,
        _: Qpn,
        _: RKey,
        _: Option<(Va, u32)>,
        _: Access,
    ) -> Result<(), KeyError> {
        Err(KeyError::Rights)
    }

    fn invalidate(&mut self, key: RKey, qpn: Qpn, pd: Pd) -> Result<(), KeyError> {
        self.check_remote(pd, qpn, key, Va::new(self.va), 0, Access::empty())?;
        self.invalidated = true;
        Ok(())
    }
}

#[derive(Default)]
struct Log(Vec<Completion>);

impl Sink for Log {
    fn complete(&mut self, _: Cq, wc: Completion) {
        self.0.push(wc);
    }

    fn event(&mut self, _: Qpn, _: Event) {}
}

/// What a packet says, without what the network adds.
type Said = (
    Opcode,
    Psn,
    Qpn,
    bool,
    Option<Aeth>,
    Option<u64>,
    Option<AtomicEth>,
);

fn said(pkt: &Packet<'_>) -> Said {
    (
        pkt.opcode(),
        pkt.psn(),
        pkt.dest_qp(),
        pkt.ack_req(),
        pkt.aeth(),
        pkt.atomic_ack().map(|a| a.original),
        pkt.atomic(),
    )
}

/// This stack in the place of one of the two hosts of a capture.
struct Actor {
    qp: Qp,
    mem: CapturedMemory,
    log: Log,
    ip: &'static str,
    peer: &'static str,
}

impl Actor {
    fn new(ip: &'static str, qpn: u32, dest: u32, va: u64, rkey: u32) -> Self {
        let peer = if ip == RESPONDER {
            REQUESTER
        } else {
            RESPONDER
        };
        let mut log = Log::default();
        let mut init = QpInit::rc(Pd(1), Cq(0), Cq(1));
        init.max_inline = 0;
        let mut qp = Qp::new(Qpn::new(qpn), init, Lower::Ethernet).unwrap();
        let path = AddressVector {
            src: gid(ip),
            dst: gid(peer),
            src_mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
            vlan: None,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            src_port: 0xc000,
        };
        for attr in [
            QpAttr::init(crate::common::ALL_ACCESS),
            QpAttr::rtr(path, PathMtu::Mtu1024, Qpn::new(dest), FIRST),
            QpAttr::rts(FIRST),
        ] {
            qp.modify(&attr, &mut log).unwrap();
        }
        let mem = CapturedMemory {
            va,
            rkey: RKey::new(rkey),
            remote: vec![0; 4096],
            local: vec![0; 65_536],
            invalidated: false,
        };
        Self {
            qp,
            mem,
            log,
            ip,
            peer,
        }
    }

    fn hears(&mut self, pkt: &Packet<'_>) {
        let from = Arrival {
            src: gid(self.peer),
            dst: gid(self.ip),
            vid: 0,
            ce: false,
        };
        let mut cx = Cx {
            now: Instant::from_nanos(1),
            mem: &mut self.mem,
            sink: &mut self.log,
        };
        self.qp.handle_packet(&mut cx, &from, pkt);
    }

    fn says(&mut self) -> Vec<Said> {
        let mut all = Vec::new();
        let mut frame = [0; 2048];
        loop {
            let mut cx = Cx {
                now: Instant::from_nanos(1),
                mem: &mut self.mem,
                sink: &mut self.log,
            };
            let Some(sent) = self.qp.poll_transmit(&mut cx, &mut frame) else {
                return all;
            };
            let parsed = Frame::parse_ethernet(&frame[..sent.len]).unwrap();
            all.push(said(&Packet::parse(parsed.transport()).unwrap()));
        }
    }

    /// Hears the requests of a capture, without every `drop`th; what it answered, and what rxe did.
    fn answers(&mut self, name: &str, drop: usize) -> [Vec<Said>; 2] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut requests = 0;
        for bytes in frames(name) {
            let Ok(frame) = Frame::parse_ethernet(&bytes) else {
                continue;
            };
            let pkt = Packet::parse(frame.transport()).unwrap();
            if frame.src() != gid(REQUESTER) {
                theirs.push(said(&pkt));
                continue;
            }
            requests += 1;
            if requests % drop != 0 {
                self.hears(&pkt);
                ours.extend(self.says());
            }
        }
        [ours, theirs]
    }
}

/// The words the program `atomic` starts from, as the first answers tell.
fn with_atomic_words(mut actor: Actor) -> Actor {
    for (at, word) in [
        (0x40, 0x1122_3344_5566_7788_u64),
        (0x48, 0x1215_181b_1e21_2427),
    ] {
        actor.mem.remote[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    actor
}

#[test]
fn atomics_of_rxe_are_answered_as_rxe_did() {
    let actor = Actor::new(RESPONDER, 0x15, 0x15, 0x7f54_dde2_c000, 0x621);
    let mut actor = with_atomic_words(actor);
    let [ours, theirs] = actor.answers("rc_atomic_v4_mtu1024.pcap", usize::MAX);
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), 8);
    assert_eq!(actor.mem.word(0x40), 0xa1a2_a3a4_a5a6_a7b7);
    assert_eq!(actor.mem.word(0x48), 0x1215_181b_1e21_242b);
}

#[test]
fn atomics_of_rxe_with_every_third_lost_are_answered_as_rxe_did() {
    let actor = Actor::new(RESPONDER, 0x35, 0x36, 0x7fdb_64f8_a000, 0x2af2);
    let mut actor = with_atomic_words(actor);
    let [ours, theirs] = actor.answers("loss_atomic_req_v4.pcap", 3);
    assert_eq!(ours, theirs);
    assert_eq!(actor.mem.word(0x48), 0x1215_181b_1e21_242b, "each once");
}

#[test]
fn a_send_with_invalidate_of_rxe_kills_the_key_and_later_use_is_refused() {
    let mut actor = Actor::new(RESPONDER, 0x21, 0x21, 0x7f99_1e13_4000, 0x0800_01ea);
    for wr_id in 0..4 {
        let sge = Sge {
            lkey: LOCAL,
            va: Va::new(wr_id * 8192),
            len: 8192,
        };
        let wr = RecvWr {
            wr_id,
            sges: &[sge],
        };
        actor.qp.post_recv(&wr, &mut actor.log).unwrap();
    }
    let [ours, theirs] = actor.answers("rc_sendinv_mw_v4.pcap", usize::MAX);
    assert_eq!(ours, theirs);
    assert!(actor.mem.invalidated);
    let statuses: Vec<(u64, WcStatus)> = actor.log.0.iter().map(|c| (c.wr_id, c.status)).collect();
    let (done, flushed) = (WcStatus::Success, WcStatus::WrFlushErr);
    assert_eq!(statuses, [(0, done), (1, done), (2, flushed), (3, flushed)]);
    assert_eq!(actor.log.0[0].invalidated(), Some(RKey::new(0x0800_01ea)));
    assert_eq!(actor.log.0[1].byte_len, 2049);
}

#[test]
fn the_same_atomics_are_asked_for_and_rxe_s_answers_understood() {
    let mut actor = Actor::new(REQUESTER, 0x15, 0x15, 0, 0);
    let mut results = Vec::new();
    for bytes in frames("rc_atomic_v4_mtu1024.pcap") {
        let frame = Frame::parse_ethernet(&bytes).unwrap();
        let pkt = Packet::parse(frame.transport()).unwrap();
        let Some(eth) = pkt.atomic() else {
            actor.hears(&pkt);
            results.push(pkt.atomic_ack().unwrap().original);
            continue;
        };
        let (va, rkey) = (eth.va, eth.rkey);
        let op = if pkt.opcode() == Opcode::RcCmpSwap {
            SendOp::CompareSwap {
                va,
                rkey,
                compare: eth.compare,
                swap: eth.swap_add,
            }
        } else {
            let add = eth.swap_add;
            SendOp::FetchAdd { va, rkey, add }
        };
        let wr_id = u64::from(FIRST.distance_to(pkt.psn()).unsigned_abs());
        let sge = Sge {
            lkey: LOCAL,
            va: Va::new(wr_id * 8),
            len: 8,
        };
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[sge]),
        };
        actor.qp.post_send(&wr, &mut actor.log).unwrap();
        assert_eq!(actor.says(), [said(&pkt)]);
    }
    assert_eq!(actor.log.0.len(), 8);
    for (i, (wc, original)) in actor.log.0.iter().zip(results).enumerate() {
        assert_eq!((wc.wr_id, wc.status), (i as u64, WcStatus::Success));
        let result = &actor.mem.local[i * 8..i * 8 + 8];
        assert_eq!(result, original.to_ne_bytes());
    }
}
