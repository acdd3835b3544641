//! Transcripts: one QP of this stack against a scripted peer.
//!
//! A test feeds packets and compares what comes out, packet by packet, as text:
//! `SEND Only 100 A [3]` is an RC SEND Only with PSN 0x100, AckReq and 3 payload bytes.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test: sizes are small, and what fails, fails it"
)]

mod adaptive;
mod atomic;
mod bind;
mod completer;
mod message_len;
mod modify;
mod replay_model;
mod requester;
mod responder;
mod rules;
mod run;
mod selective;
mod srq;
mod uc;
mod uc_model;
mod ud;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use xroce_wire::aeth::Aeth;
use xroce_wire::atomic::{AtomicAckEth, AtomicEth};
use xroce_wire::deth::Deth;
use xroce_wire::ext::{Meth, Peth, SackCause, Seth};
use xroce_wire::feth::Feth;
use xroce_wire::newtypes::{
    Gid, LKey, MacAddr, Msn, PKey, PathMtu, Psn, QKey, Qpn, RKey, Srqn, Va,
};
use xroce_wire::opcode::{Headers, Opcode};
use xroce_wire::packet::{Packet, PacketBuf};
use xroce_wire::path::AddressVector;
use xroce_wire::reth::Reth;
use xroce_wire::syndrome::Syndrome;
use xroce_wire::template::{Emit, HeaderTemplate, Lower};
use xroce_wire::xrceth::XrcEth;

use super::{Arrival, Cx, Qp, QpAttr, QpInit, QpState, QpType, RecvQueue};
use crate::memory::{
    Access, AtomicError, AtomicOp, Bind, BindError, Grant, KeyError, Memory, Pd, Revoked,
};
use crate::srq::{SharedReceiveQueue, Take};
use crate::time::{Duration, Instant};
use crate::wc::{Completion, Cq, Event, Sink, Srq, WcStatus};
use crate::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};

const PD: Pd = Pd(7);
const SEND_CQ: Cq = Cq(0);
const RECV_CQ: Cq = Cq(1);
/// Start of the one region, its size and its key.
const BASE: u64 = 0x1_0000;
const SIZE: usize = 0x1_0000;
const KEY: u32 = 0x1234;
const OWN: Qpn = Qpn::new(0x11);
const PEER: Qpn = Qpn::new(0x12);
const MTU: usize = 1024;
/// Of every UD QP here.
const QKEY: u32 = 0x1111_1111;

/// The slow and obvious twin of the engine's memory: one region in a vector.
struct VecMemory {
    bytes: Vec<u8>,
    access: Access,
    alive: bool,
    /// BIND_MW that succeeded: those of keys 0x500 ..= 0x5ff.
    binds: Vec<(Pd, Qpn, RKey, Bind)>,
    /// Atomics and FLUSHes executed, the latter with whether of the whole region, and how far.
    atomics: u32,
    flushes: Vec<(bool, Access)>,
}

impl VecMemory {
    fn check(&self, key: u32, pd: Pd, va: Va, len: u32, need: Access) -> Result<Grant, KeyError> {
        if key != KEY || !self.alive {
            return Err(KeyError::Unknown);
        }
        if pd != PD {
            return Err(KeyError::Pd);
        }
        if !self.access.contains(need) {
            return Err(KeyError::Rights);
        }
        let first = u128::from(va.value());
        let end = first + u128::from(len);
        if first < u128::from(BASE) || end > u128::from(BASE) + SIZE as u128 {
            return Err(KeyError::Range);
        }
        Ok(Grant::issue(0, 1, va.value() - BASE, len))
    }
}

impl Memory for VecMemory {
    fn check_local(
        &self,
        pd: Pd,
        key: LKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError> {
        self.check(key.value(), pd, va, len, need)
    }

    fn check_remote(
        &self,
        pd: Pd,
        _qpn: Qpn,
        key: RKey,
        va: Va,
        len: u32,
        need: Access,
    ) -> Result<Grant, KeyError> {
        self.check(key.value(), pd, va, len, need)
    }

    fn read(&self, grant: &Grant, offset: u32, dst: &mut [u8]) -> Result<(), Revoked> {
        if !self.alive || offset as usize + dst.len() > grant.len() as usize {
            return Err(Revoked);
        }
        let at = grant.offset() as usize + offset as usize;
        dst.copy_from_slice(&self.bytes[at..at + dst.len()]);
        Ok(())
    }

    fn write(&mut self, grant: &Grant, offset: u32, src: &[u8]) -> Result<(), Revoked> {
        if !self.alive || offset as usize + src.len() > grant.len() as usize {
            return Err(Revoked);
        }
        let at = grant.offset() as usize + offset as usize;
        self.bytes[at..at + src.len()].copy_from_slice(src);
        Ok(())
    }

    fn bind_window(&mut self, pd: Pd, qpn: Qpn, rkey: RKey, bind: &Bind) -> Result<(), BindError> {
        if rkey.value() >> 8 != 5 {
            return Err(BindError::NoWindow);
        }
        self.binds.push((pd, qpn, rkey, *bind));
        Ok(())
    }

    fn atomic(&mut self, grant: &Grant, op: AtomicOp) -> Result<u64, AtomicError> {
        let mut bytes = [0; 8];
        self.read(grant, 0, &mut bytes)?;
        let old = u64::from_ne_bytes(bytes);
        self.write(grant, 0, &op.apply(old).to_ne_bytes())?;
        self.atomics += 1;
        Ok(old)
    }

    fn flush(
        &mut self,
        pd: Pd,
        qpn: Qpn,
        key: RKey,
        range: Option<(Va, u32)>,
        need: Access,
    ) -> Result<(), KeyError> {
        let (va, len) = range.unwrap_or((Va::new(BASE), SIZE as u32));
        self.check_remote(pd, qpn, key, va, len, need)?;
        self.flushes.push((range.is_none(), need));
        Ok(())
    }

    fn invalidate(&mut self, key: RKey, _qpn: Qpn, pd: Pd) -> Result<(), KeyError> {
        self.check(key.value(), pd, Va::new(BASE), 0, Access::INVALIDATE)?;
        self.alive = false;
        Ok(())
    }
}

#[derive(Default)]
struct Log {
    sends: Vec<Completion>,
    recvs: Vec<Completion>,
    events: Vec<Event>,
    srq: Option<SharedReceiveQueue>,
}

impl Sink for Log {
    fn complete(&mut self, cq: Cq, wc: Completion) {
        if cq == SEND_CQ {
            self.sends.push(wc)
        } else {
            self.recvs.push(wc)
        }
    }

    fn event(&mut self, _qpn: Qpn, event: Event) {
        self.events.push(event);
    }

    fn take_shared(&mut self, _: Srq, into: &mut RecvQueue) -> bool {
        let Some(srq) = &mut self.srq else {
            return false;
        };
        let take = srq.take_into(into);
        if take == Take::TakenLimitReached {
            self.events.push(Event::SrqLimitReached);
        }
        take != Take::Empty
    }
}

/// One QP and its scripted peer.
struct Bench {
    qp: Qp,
    mem: VecMemory,
    log: Log,
    now: Instant,
    peer: HeaderTemplate,
}

fn path() -> AddressVector {
    AddressVector {
        src: Gid::from_v4([192, 0, 2, 1]),
        dst: Gid::from_v4([192, 0, 2, 2]),
        src_mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
        vlan: None,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        src_port: 0xc000,
    }
}

/// Attributes of the transition to RTR and RTS, for tests to bend.
struct Setup {
    init: QpInit,
    rtr: QpAttr,
    rts: QpAttr,
    access: Access,
}

impl Default for Setup {
    /// Expects PSN 0x100 and sends from PSN 0x100, path MTU 1024, timeout code 14, 7 retries.
    fn default() -> Self {
        let mut init = QpInit::rc(PD, SEND_CQ, RECV_CQ);
        init.max_send_sge = 4;
        init.max_recv_sge = 4;
        Self {
            init,
            rtr: QpAttr::rtr(path(), PathMtu::Mtu1024, PEER, Psn::new(0x100)),
            rts: QpAttr::rts(Psn::new(0x100)),
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        }
    }
}

impl Setup {
    fn build(self) -> Bench {
        let mut log = Log::default();
        let mut qp = Qp::new(OWN, self.init, Lower::Udp).unwrap();
        let first = match self.init.qp_type {
            QpType::Ud => QpAttr::init_ud(QKey::new(QKEY)),
            _ => QpAttr::init(self.access),
        };
        qp.modify(&first, &mut log).unwrap();
        qp.modify(&self.rtr, &mut log).unwrap();
        qp.modify(&self.rts, &mut log).unwrap();
        let back = AddressVector {
            src: path().dst,
            dst: path().src,
            ..path()
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Bench {
            qp,
            mem: VecMemory {
                bytes: (0..SIZE).map(|i| (i * 7 + (i >> 8)) as u8).collect(),
                access,
                alive: true,
                binds: Vec::new(),
                atomics: 0,
                flushes: Vec::new(),
            },
            log,
            now: Instant::from_nanos(1_000_000),
            peer: HeaderTemplate::new(Lower::Udp, &back, OWN, PKey::DEFAULT).unwrap(),
        }
    }
}

/// A packet of the scripted peer.
#[derive(Clone)]
struct P {
    opcode: Opcode,
    psn: u32,
    ack_req: bool,
    reth: Option<Reth>,
    aeth: Option<Syndrome>,
    atomic: AtomicEth,
    original: u64,
    feth: Feth,
    inv: u32,
    msn: u16,
    seth: Seth,
    probe_id: u16,
    solicited: bool,
    payload: Vec<u8>,
}

fn p(opcode: Opcode, psn: u32) -> P {
    P {
        opcode,
        psn,
        ack_req: false,
        reth: None,
        aeth: None,
        atomic: AtomicEth {
            va: Va::new(BASE),
            rkey: RKey::new(KEY),
            swap_add: 1,
            compare: 0,
        },
        original: 0,
        feth: Feth {
            placement: 1,
            selectivity: 0,
        },
        inv: 0,
        msn: 0,
        seth: Seth {
            cause: SackCause::Probe(0),
            cack_psn: Psn::new(0),
            mpr: 0,
            sack_offset: 0,
            bitmap: 0,
        },
        probe_id: 0,
        solicited: false,
        payload: Vec::new(),
    }
}

impl P {
    fn a(mut self) -> Self {
        self.ack_req = true;
        self
    }

    fn reth(mut self, va: u64, rkey: u32, len: u32) -> Self {
        self.reth = Some(Reth {
            va: Va::new(va),
            rkey: RKey::new(rkey),
            len,
        });
        self
    }

    fn atomic(mut self, va: u64, rkey: u32, swap_add: u64, compare: u64) -> Self {
        self.atomic = AtomicEth {
            va: Va::new(va),
            rkey: RKey::new(rkey),
            swap_add,
            compare,
        };
        self
    }

    fn feth(mut self, placement: u8, selectivity: u8) -> Self {
        self.feth = Feth {
            placement,
            selectivity,
        };
        self
    }

    fn inv(mut self, rkey: u32) -> Self {
        self.inv = rkey;
        self
    }

    fn msn(mut self, msn: u16) -> Self {
        self.msn = msn;
        self
    }

    fn se(mut self) -> Self {
        self.solicited = true;
        self
    }

    fn bytes(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    fn len(mut self, len: usize) -> Self {
        self.payload = vec![0xaa; len];
        self
    }
}

fn ack(psn: u32) -> P {
    syndrome(psn, Syndrome::ACK)
}

fn nak(psn: u32, byte: u8) -> P {
    syndrome(psn, Syndrome::from_u8(byte))
}

fn syndrome(psn: u32, syndrome: Syndrome) -> P {
    P {
        aeth: Some(syndrome),
        ..p(Opcode::RcAcknowledge, psn)
    }
}

/// READ response with an AETH where the opcode has one.
fn response(opcode: Opcode, psn: u32, len: usize) -> P {
    let aeth = opcode.info().aeth_offset().map(|_| Syndrome::ACK);
    P {
        aeth,
        ..p(opcode, psn)
    }
    .len(len)
}

fn text(pkt: &Packet<'_>) -> String {
    let mut s = format!(
        "{} {:x}",
        pkt.opcode().name()[3..].trim_start(),
        pkt.psn().value()
    );
    s += if pkt.ack_req() { " A" } else { "" };
    s += if pkt.solicited() { " SE" } else { "" };
    if let Some(r) = pkt.reth() {
        s += &format!(
            " va={:x} rkey={:x} len={}",
            r.va.value(),
            r.rkey.value(),
            r.len
        );
    }
    if let Some(f) = pkt.feth() {
        s += &format!(" plt={} sel={}", f.placement, f.selectivity);
    }
    if let Some(a) = pkt.atomic() {
        let (va, rkey) = (a.va.value(), a.rkey.value());
        s += &format!(" va={va:x} rkey={rkey:x} swap_add={:x}", a.swap_add);
        s += &format!(" compare={:x}", a.compare);
    }
    if let Some(rkey) = pkt.ieth() {
        s += &format!(" inv={:x}", rkey.value());
    }
    if let Some(a) = pkt.aeth() {
        s += &format!(" syn={:02x} msn={}", a.syndrome.to_u8(), a.msn.value());
    }
    if let Some(d) = pkt.deth() {
        s += &format!(" qkey={:x} src={:x}", d.qkey.value(), d.src_qp.value());
    }
    if let Some(a) = pkt.atomic_ack() {
        s += &format!(" original={:x}", a.original);
    }
    if let Some(meth) = pkt.meth() {
        s += &format!(" msn={}", meth.msn);
    }
    if let Some(h) = pkt.seth() {
        s += &match h.cause {
            SackCause::Probe(id) => format!(" for probe {id}"),
            SackCause::Packet { again, .. } => {
                let again = if again { " again" } else { "" };
                format!(" for {:x}{again}", h.ack_psn().unwrap_or_default().value())
            }
        };
        let (base, bits) = (h.base().value(), h.bitmap);
        s += &format!(" mpr={} from {base:x}: {bits:b}", h.mpr);
    }
    if let Some(h) = pkt.peth() {
        s += &format!(" id={}", h.probe_id);
    }
    if let Some(imm) = pkt.imm() {
        s += &format!(" imm={imm:02x?}");
    }
    if !pkt.payload().is_empty() {
        s += &format!(" [{}]", pkt.payload().len());
    }
    s
}

impl Bench {
    fn new() -> Self {
        Setup::default().build()
    }

    fn cx<R>(&mut self, f: impl FnOnce(&mut Qp, &mut Cx<'_, VecMemory, Log>) -> R) -> R {
        let mut cx = Cx {
            now: self.now,
            mem: &mut self.mem,
            sink: &mut self.log,
        };
        f(&mut self.qp, &mut cx)
    }

    /// Feeds a packet of the peer.
    fn rx(&mut self, packet: P) {
        let mut frame = [0; 5000];
        let emit = Emit {
            opcode: packet.opcode,
            psn: Psn::new(packet.psn),
            ack_req: packet.ack_req,
            solicited: packet.solicited,
            payload_len: packet.payload.len(),
        };
        let mut out = self.peer.start(&mut frame, &emit).unwrap();
        fill_headers(&mut out, &packet);
        out.payload_mut().copy_from_slice(&packet.payload);
        let len = out.finish();
        let pkt = Packet::parse(&frame[..len]).unwrap();
        self.cx(|qp, cx| qp.handle_packet(cx, &arrival(), &pkt));
    }

    /// The next packet the QP sends, whole.
    fn tx_frame(&mut self) -> Option<Vec<u8>> {
        let mut frame = [0; 5000];
        let transmit = self.cx(|qp, cx| qp.poll_transmit(cx, &mut frame))?;
        Some(frame[..transmit.len].to_vec())
    }

    /// Everything the QP sends now, as text.
    fn tx(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(frame) = self.tx_frame() {
            all.push(text(&Packet::parse(&frame).unwrap()));
            assert!(all.len() < 5000, "it never stops sending");
        }
        all
    }

    /// Expects exactly these packets now.
    #[track_caller]
    fn expect(&mut self, packets: &[&str]) {
        assert_eq!(self.tx(), packets);
    }

    #[track_caller]
    fn expect_silence(&mut self) {
        self.expect(&[]);
    }

    /// Lets time pass and timers fire at their time.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.qp.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.cx(|qp, cx| qp.handle_timeout(cx));
            if self.qp.wants_to_send(self.now) {
                return;
            }
            if self.qp.poll_timeout().is_some_and(|next| next <= at) {
                break;
            }
        }
        self.now = end;
    }

    fn send(&mut self, wr_id: u64, op: SendOp, len: u32) {
        self.send_flags(wr_id, op, len, SendFlags::SIGNALED);
    }

    fn send_flags(&mut self, wr_id: u64, op: SendOp, len: u32, flags: SendFlags) {
        self.send_sges(wr_id, op, &[sge(0, len)], flags);
    }

    fn send_sges(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data: Data::Sges(sges),
        };
        self.qp.post_send(&wr, &mut self.log).unwrap();
    }

    fn recv(&mut self, wr_id: u64, len: u32) {
        self.qp
            .post_recv(
                &RecvWr {
                    wr_id,
                    sges: &[sge(0, len)],
                },
                &mut self.log,
            )
            .unwrap();
    }

    /// `wr_id` and status of the sends completed since last asked.
    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.log
            .sends
            .drain(..)
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    /// The same for receives.
    fn received(&mut self) -> Vec<(u64, WcStatus)> {
        self.log
            .recvs
            .drain(..)
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    fn events(&mut self) -> Vec<Event> {
        self.log.events.drain(..).collect()
    }
}

/// Writes every header the opcode has: what the test gave, else zeros.
fn fill_headers(out: &mut PacketBuf<'_>, packet: &P) {
    let headers = packet.opcode.info().headers;
    let zero = Reth {
        va: Va::new(0),
        rkey: RKey::new(0),
        len: 0,
    };
    if headers.contains(Headers::RETH) {
        out.reth(packet.reth.as_ref().unwrap_or(&zero));
    }
    if headers.contains(Headers::AETH) {
        let syndrome = packet.aeth.unwrap_or(Syndrome::ACK);
        out.aeth(&Aeth {
            syndrome,
            msn: Msn::new(0),
        });
    }
    if headers.contains(Headers::IMM) {
        out.imm([0; 4]);
    }
    if headers.contains(Headers::DETH) {
        out.deth(&Deth {
            qkey: QKey::new(0),
            src_qp: PEER,
        });
    }
    if headers.contains(Headers::XRCETH) {
        out.xrceth(&XrcEth { srqn: Srqn::new(0) });
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        out.atomic(&packet.atomic);
    }
    if headers.contains(Headers::ATOMIC_ACK) {
        let original = packet.original;
        out.atomic_ack(&AtomicAckEth { original });
    }
    if headers.contains(Headers::FETH) {
        out.feth(&packet.feth);
    }
    if headers.contains(Headers::IETH) {
        out.ieth(RKey::new(packet.inv));
    }
    if headers.contains(Headers::METH) {
        let (rqmsn, msn) = (0, packet.msn);
        out.meth(&Meth { rqmsn, msn });
    }
    if headers.contains(Headers::SETH) {
        out.seth(&packet.seth);
    }
    if headers.contains(Headers::PETH) {
        let probe_id = packet.probe_id;
        out.peth(&Peth { probe_id });
    }
}

fn sge(offset: u64, len: u32) -> Sge {
    Sge {
        lkey: LKey::new(KEY),
        va: Va::new(BASE + offset),
        len,
    }
}

fn write(len_at: u64) -> SendOp {
    SendOp::Write {
        va: Va::new(len_at),
        rkey: RKey::new(0x77),
    }
}

/// Where the peer's packets come from.
fn arrival() -> Arrival {
    Arrival {
        src: path().dst,
        dst: path().src,
        vid: 0,
        ce: false,
    }
}

fn read(va: u64) -> SendOp {
    SendOp::Read {
        va: Va::new(va),
        rkey: RKey::new(0x77),
    }
}

/// Expected text of a train of packets with consecutive PSNs.
fn train(psn: u32, parts: &[&str]) -> Vec<String> {
    let number = |(i, part): (usize, &&str)| {
        let psn = Psn::new(psn).add(i as u32).value();
        part.replace('#', &format!("{psn:x}")).to_string()
    };
    parts.iter().enumerate().map(number).collect()
}
