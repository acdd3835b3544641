//! What the parts cost, one by one: headers and ICRC, requester and responder alone, two engines.
//!
//! `cargo bench --bench micro -- [part of a name]`. Short on purpose: under a minute for all, so
//! that it is run; `docs/performance.md` has the ratios that count.
#![allow(missing_docs, reason = "a bench")]

mod support;

use std::hint::black_box;
use std::time::Duration as StdDuration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use support::{Op, Pair};
use xroce_net::datapath::Link;
use xroce_proto::memory::{Access, AtomicError, AtomicOp, Grant, KeyError, Memory, Pd, Revoked};
use xroce_proto::qp::{Arrival, Cx, Qp, QpAttr, QpInit};
use xroce_proto::time::Instant;
use xroce_proto::wc::{Completion, Cq, Event, Sink};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_wire::aeth::Aeth;
use xroce_wire::frame::Frame;
use xroce_wire::icrc::{IcrcState, icrc_portable};
use xroce_wire::newtypes::{Gid, LKey, MacAddr, Msn, PKey, PathMtu, Psn, Qpn, RKey, Va};
use xroce_wire::opcode::Opcode;
use xroce_wire::packet::Packet;
use xroce_wire::path::AddressVector;
use xroce_wire::reth::Reth;
use xroce_wire::syndrome::Syndrome;
use xroce_wire::template::{Emit, HeaderTemplate, Lower};

const SIZES: [usize; 3] = [64, 1024, 4096];
const OWN: Qpn = Qpn::new(0x11);
const PEER: Qpn = Qpn::new(0x12);
/// Messages between two acknowledgements in the benches of one side.
const BURST: u32 = 32;

fn path() -> AddressVector {
    AddressVector {
        src: Gid::from_v4([10, 0, 0, 1]),
        dst: Gid::from_v4([10, 0, 0, 2]),
        src_mac: MacAddr::new([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
        vlan: None,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        src_port: 0xc000,
    }
}

fn reversed() -> AddressVector {
    let p = path();
    AddressVector {
        src: p.dst,
        dst: p.src,
        ..p
    }
}

fn emit(opcode: Opcode, psn: u32, payload_len: usize) -> Emit {
    Emit {
        opcode,
        psn: Psn::new(psn),
        ack_req: psn % BURST == BURST - 1,
        solicited: false,
        payload_len,
    }
}

fn wire(c: &mut Criterion) {
    let template = HeaderTemplate::new(Lower::Ethernet, &path(), PEER, PKey::DEFAULT);
    let template = template.expect("a path");
    let mut frame = vec![0u8; 4300];
    let mut group = c.benchmark_group("emit");
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let e = black_box(emit(Opcode::RcSendOnly, 7, size));
                template.start(&mut frame, &e).map(|out| out.finish())
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("parse");
    for size in SIZES {
        let out = template.start(&mut frame, &emit(Opcode::RcSendOnly, 7, size));
        let len = out.expect("room").finish();
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                let frame = Frame::parse_ethernet(black_box(&frame[..len])).expect("a frame");
                let psn = Packet::parse(frame.transport()).expect("a packet").psn();
                assert!(frame.icrc_ok());
                psn
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("icrc");
    for size in SIZES {
        let bytes = &frame[..size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("fast", size), |b| {
            b.iter(|| IcrcState::START.update(black_box(bytes)).finish());
        });
        group.bench_function(BenchmarkId::new("portable", size), |b| {
            b.iter(|| icrc_portable(black_box(bytes)));
        });
    }
    group.finish();
}

/// One region that grants everything: what is measured is the core, not the check of keys.
struct FlatMemory(Vec<u8>);

impl FlatMemory {
    const SIZE: usize = 1 << 16;
}

fn start(grant: &Grant, offset: u32) -> usize {
    usize::try_from(grant.offset()).map_or(usize::MAX, |at| at + offset as usize)
}

impl Memory for FlatMemory {
    fn check_local(&self, _: Pd, _: LKey, va: Va, len: u32, _: Access) -> Result<Grant, KeyError> {
        Ok(Grant::issue(0, 0, va.value(), len))
    }

    fn check_remote(
        &self,
        _: Pd,
        _: Qpn,
        _: RKey,
        va: Va,
        len: u32,
        _: Access,
    ) -> Result<Grant, KeyError> {
        Ok(Grant::issue(0, 0, va.value(), len))
    }

    fn read(&self, grant: &Grant, offset: u32, dst: &mut [u8]) -> Result<(), Revoked> {
        let at = start(grant, offset);
        dst.copy_from_slice(self.0.get(at..at + dst.len()).ok_or(Revoked)?);
        Ok(())
    }

    fn write(&mut self, grant: &Grant, offset: u32, src: &[u8]) -> Result<(), Revoked> {
        let at = start(grant, offset);
        let dst = self.0.get_mut(at..at + src.len()).ok_or(Revoked)?;
        dst.copy_from_slice(src);
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
        Ok(())
    }
}

/// The last completion.
struct Last(Completion);

impl Sink for Last {
    fn complete(&mut self, _: Cq, wc: Completion) {
        self.0 = wc;
    }

    fn event(&mut self, _: Qpn, _: Event) {}
}

/// One QP in RTS and what a driver lends it; the packets of its peer come from a template.
struct Side {
    qp: Qp,
    mem: FlatMemory,
    sink: Last,
    peer: HeaderTemplate,
    psn: u32,
    packet: Vec<u8>,
}

impl Side {
    fn new() -> Self {
        let mut init = QpInit::rc(Pd(1), Cq(0), Cq(1));
        init.max_send_wr = 128;
        init.max_recv_wr = 128;
        let mut sink = Last(Completion::EMPTY);
        let mut qp = Qp::new(OWN, init, Lower::Ethernet).expect("a QP");
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        for attr in [
            QpAttr::init(access),
            QpAttr::rtr(path(), PathMtu::Mtu4096, PEER, Psn::new(0)),
            QpAttr::rts(Psn::new(0)),
        ] {
            qp.modify(&attr, &mut sink).expect("the next state");
        }
        let peer = HeaderTemplate::new(Lower::Udp, &reversed(), OWN, PKey::DEFAULT);
        Self {
            qp,
            mem: FlatMemory(vec![7; FlatMemory::SIZE]),
            sink,
            peer: peer.expect("a path"),
            psn: 0,
            packet: vec![0; 4200],
        }
    }

    fn post_send(&mut self, len: u32) {
        let sges = [sge(len)];
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&sges),
        };
        self.qp.post_send(&wr, &mut self.sink).expect("room");
    }

    /// Writes everything the QP wants to send into `frame`; how many packets.
    fn transmit(&mut self, frame: &mut [u8]) -> u32 {
        let mut cx = Cx {
            now: Instant::from_nanos(1),
            mem: &mut self.mem,
            sink: &mut self.sink,
        };
        let mut sent = 0;
        while self.qp.poll_transmit(&mut cx, frame).is_some() {
            sent += 1;
        }
        sent
    }

    /// Feeds the first `len` bytes of `packet`.
    fn receive(&mut self, len: usize) {
        let mut cx = Cx {
            now: Instant::from_nanos(1),
            mem: &mut self.mem,
            sink: &mut self.sink,
        };
        let from = Arrival {
            src: path().dst,
            dst: path().src,
            vid: 0,
            ce: false,
        };
        let pkt = Packet::parse(&self.packet[..len]).expect("a packet");
        self.qp.handle_packet(&mut cx, &from, &pkt);
    }

    /// A burst of SENDs, all acknowledged by one packet.
    fn send_burst(&mut self, len: u32, frame: &mut [u8]) {
        for _ in 0..BURST {
            self.post_send(len);
        }
        assert_eq!(self.transmit(frame), BURST);
        self.psn = (self.psn + BURST) & 0x00ff_ffff;
        let psn = self.psn.wrapping_sub(1) & 0x00ff_ffff;
        let mut out = self
            .peer
            .start(&mut self.packet, &emit(Opcode::RcAcknowledge, psn, 0))
            .expect("room");
        out.aeth(&Aeth {
            syndrome: Syndrome::ACK,
            msn: Msn::new(0),
        });
        // The ICRC is checked before a packet gets here.
        let len = out.finish();
        self.receive(len);
    }

    /// The packet every request of a burst is a copy of, but for PSN and AckReq. Its length.
    fn request(&mut self, opcode: Opcode, len: usize) -> usize {
        let mut out = self
            .peer
            .start(&mut self.packet, &emit(opcode, 0, len))
            .expect("room");
        if opcode == Opcode::RcWriteOnly {
            out.reth(&Reth {
                va: Va::new(0),
                rkey: RKey::new(1),
                len: u32::try_from(len).expect("short"),
            });
        }
        out.finish()
    }

    /// A burst of requests, acknowledged once.
    fn answer_burst(&mut self, len: usize, needs_receive: bool, frame: &mut [u8]) {
        for _ in 0..BURST {
            if needs_receive {
                let sges = [sge(4096)];
                let wr = RecvWr {
                    wr_id: 0,
                    sges: &sges,
                };
                self.qp.post_recv(&wr, &mut self.sink).expect("room");
            }
            // BTH: AckReq in byte 8, PSN in bytes 9 to 11.
            let psn = self.psn.to_be_bytes();
            let ack_req = self.psn % BURST == BURST - 1;
            self.packet[8..12].copy_from_slice(&psn);
            self.packet[8] = u8::from(ack_req) << 7;
            self.receive(len);
            self.psn = (self.psn + 1) & 0x00ff_ffff;
        }
        assert_eq!(self.transmit(frame), 1);
    }
}

fn sge(len: u32) -> Sge {
    Sge {
        lkey: LKey::new(1),
        va: Va::new(0),
        len,
    }
}

fn one_side(c: &mut Criterion) {
    let mut frame = vec![0u8; 4300];
    let mut group = c.benchmark_group("requester");
    group.throughput(Throughput::Elements(BURST.into()));
    for size in SIZES {
        let mut side = Side::new();
        let len = u32::try_from(size).expect("short");
        group.bench_function(BenchmarkId::new("SEND", size), |b| {
            b.iter(|| side.send_burst(len, &mut frame));
        });
    }
    group.finish();
    let mut group = c.benchmark_group("responder");
    group.throughput(Throughput::Elements(BURST.into()));
    for (name, opcode, needs_receive) in [
        ("SEND", Opcode::RcSendOnly, true),
        ("WRITE", Opcode::RcWriteOnly, false),
    ] {
        for size in SIZES {
            let mut side = Side::new();
            let len = side.request(opcode, size);
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| side.answer_burst(len, needs_receive, &mut frame));
            });
        }
    }
    group.finish();
}

fn two_engines(c: &mut Criterion) {
    let mut group = c.benchmark_group("engines");
    for (name, op, size, count) in [
        ("SEND 64 B", Op::Send, 64, 1024),
        ("READ 64 B", Op::Read, 64, 1024),
        ("WRITE 1 MB", Op::Write, 1 << 20, 4),
        ("READ 1 MB", Op::Read, 1 << 20, 4),
    ] {
        let mut pair = Pair::in_memory(Link::Ethernet, PathMtu::Mtu4096, 1);
        group.throughput(if size < 4096 {
            Throughput::Elements(count as u64)
        } else {
            Throughput::Bytes(u64::from(size) * count as u64)
        });
        group.bench_function(name, |b| b.iter(|| pair.stream(op, size, count)));
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(StdDuration::from_millis(300))
        .measurement_time(StdDuration::from_millis(800))
        .without_plots()
}

criterion_group! {
    name = benches;
    config = quick();
    targets = wire, one_side, two_engines
}
criterion_main!(benches);
