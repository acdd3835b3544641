//! A host: a production engine behind a NIC.

use std::io;

use xroce_api::{EngineError, Mr};
use xroce_engine::{Engine, EngineConfig, NotifyConfig};
use xroce_proto::cc::Rate;
use xroce_proto::counters::Counters;
use xroce_proto::memory::{Access, Pd};
use xroce_proto::qp::{QpAttr, QpInit};
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Completion, Cq};
use xroce_proto::wr::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use xroce_shm::Region;
use xroce_wire::newtypes::{MacAddr, Psn, Qpn, VlanTci};
use xroce_wire::path::{AddressVector, Flow as PathFlow, HOP_LIMIT_DEFAULT};

use crate::flow::{Class, Op, Transport};
use crate::frame::{DscpMap, address};
use crate::nic::{NicConfig, NicPort};
use crate::units::Time;

/// Frames of one poll, each of which can complete all that a queue pair has posted, and both
/// sends and receives: completions are taken after every poll.
const COMPLETIONS_PER_DEPTH: u32 = 2 * 64;

/// What a queue pair's peer may do.
const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ);

/// Marks the `wr_id` of a receive.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Hosts, all alike.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Queues of the port.
    pub nic: NicConfig,
    /// The engine.
    pub engine: EngineConfig,
    /// From the arrival of a frame until the engine sees it.
    pub delay: Time,
    /// The engine looks for arrivals no more often; 0 is at once.
    pub poll_interval: Time,
    /// Priorities by DSCP, of hosts and switches.
    pub dscp_map: DscpMap,
}

impl Default for HostConfig {
    /// No delays, queue pairs take turns frame by frame, and notifications are 50 µs apart, as in the
    /// DCQCN paper.
    fn default() -> Self {
        Self {
            nic: NicConfig::default(),
            engine: EngineConfig {
                quantum: 1,
                notify: NotifyConfig {
                    min_time_between_cnps: Duration::from_micros(50),
                    ..NotifyConfig::default()
                },
                ..EngineConfig::default()
            },
            delay: Time::ZERO,
            poll_interval: Time::ZERO,
            dscp_map: DscpMap::default(),
        }
    }
}

/// The bytes that all hosts send, and those that all of them receive into. Shared, so that memory
/// does not grow with the fabric and stays in the cache.
#[derive(Debug)]
pub(crate) struct Memory {
    source: Region,
    sink: Region,
    /// Longest message that has arrived.
    pub(crate) arrived: u64,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes.max(1)).map_err(io::Error::other)?;
        let memory = Self {
            source: Region::anonymous(len)?,
            sink: Region::anonymous(len)?,
            arrived: 0,
        };
        for (i, chunk) in chunks(len) {
            let bytes = pattern(i);
            // Cannot be out of range.
            let _ = memory.source.write_at(i, &bytes[..chunk]);
        }
        Ok(memory)
    }

    /// Whether what arrived is what was sent.
    pub(crate) fn is_right(&self) -> bool {
        let len = usize::try_from(self.arrived).unwrap_or(0);
        let mut got = [0; CHUNK];
        chunks(len).all(|(i, n)| {
            self.sink.read_at(i, &mut got[..n]).is_ok() && got[..n] == pattern(i)[..n]
        })
    }
}

const CHUNK: usize = 4096;

fn chunks(len: usize) -> impl Iterator<Item = (u64, usize)> {
    (0..len)
        .step_by(CHUNK)
        .map(move |i| (i as u64, CHUNK.min(len - i)))
}

/// Never 0, and different in every chunk.
fn pattern(offset: u64) -> [u8; CHUNK] {
    let mut rng = xroce_net::sim::Rng::new(offset);
    let mut bytes = [0; CHUNK];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&(rng.next_u64() | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) engine: Engine<NicPort>,
    /// The lane from it into the fabric.
    pub(crate) lane: u32,
    /// When it is to be polled; what the queue of events says besides is stale.
    pub(crate) poll_at: Time,
    pub(crate) last_poll: Time,
    /// The engine has more to send than the port takes.
    pub(crate) blocked: bool,
    number: u32,
    pd: Pd,
    cq: Cq,
    source: Mr,
    sink: Mr,
}

/// One end of a queue pair to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) peer: u32,
    pub(crate) own: Qpn,
    pub(crate) theirs: Qpn,
    pub(crate) class: &'a Class,
    pub(crate) rate_limit: Option<Rate>,
    /// Whether this end sends the data.
    pub(crate) sends_data: bool,
}

fn mac(host: u32) -> MacAddr {
    let [a, b, c, d] = host.to_be_bytes();
    MacAddr::new([2, 0, a, b, c, d])
}

/// First PSN of a queue pair: any will do, close to the wrap-around finds more.
const FIRST_PSN: Psn = Psn::new(0xff_ff00);

impl Host {
    pub(crate) fn new(
        number: u32,
        lane: u32,
        config: &HostConfig,
        memory: &Memory,
        depth: u32,
    ) -> Result<Self, EngineError> {
        let port = NicPort::new(format!("h{number}"), &config.nic, config.dscp_map);
        let mut engine = Engine::new(port, config.engine);
        let pd = engine.alloc_pd();
        let cq = engine.create_cq(COMPLETIONS_PER_DEPTH * depth)?;
        let source = engine.reg_mr(pd, &memory.source, ACCESS)?;
        let sink = engine.reg_mr(pd, &memory.sink, ACCESS)?;
        Ok(Self {
            engine,
            lane,
            poll_at: Time::MAX,
            last_poll: Time::ZERO,
            blocked: false,
            number,
            pd,
            cq,
            source,
            sink,
        })
    }

    /// A queue pair in RESET with room for so many messages.
    pub(crate) fn create_qp(&mut self, depth: u32) -> Result<Qpn, EngineError> {
        let mut init = QpInit::rc(self.pd, self.cq, self.cq);
        init.max_send_wr = depth;
        init.max_recv_wr = depth;
        self.engine.create_qp(&init)
    }

    /// Takes it to RTS.
    pub(crate) fn connect(
        &mut self,
        end: &End<'_>,
        t: &Transport,
        cc: &xroce_proto::cc::CongestionControl,
    ) -> Result<(), EngineError> {
        let dscp = if end.sends_data {
            end.class.dscp
        } else {
            end.class.ack_dscp
        };
        let ect0 = u8::from(end.sends_data && end.class.ecn) << 1;
        let flow = PathFlow::Connected {
            local: end.own,
            peer: end.theirs,
        };
        let path = AddressVector {
            src: address(self.number),
            dst: address(end.peer),
            src_mac: mac(self.number),
            dst_mac: mac(end.peer),
            vlan: end.class.pcp.map(|pcp| VlanTci::tagged(0, pcp)),
            traffic_class: (dscp << 2) | ect0,
            hop_limit: HOP_LIMIT_DEFAULT,
            flow_label: 0,
            src_port: flow.src_port(0),
        };
        let mut rts = QpAttr::rts(FIRST_PSN);
        rts.timeout = Some(t.timeout);
        rts.retry_cnt = Some(t.retry_cnt);
        rts.congestion = Some(cc.clone());
        rts.rate_limit = end.rate_limit;
        let mut rtr = QpAttr::rtr(path, t.path_mtu, end.theirs, FIRST_PSN);
        t.recovery.apply(&mut rtr);
        let steps = [QpAttr::init(ACCESS), rtr, rts];
        steps
            .iter()
            .try_for_each(|attr| self.engine.modify_qp(end.own, attr))
    }

    /// Posts one message of a flow.
    pub(crate) fn post(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        op: Op,
        len: u32,
        peer: &Self,
    ) -> Result<(), EngineError> {
        let local = if op == Op::Read {
            self.sink
        } else {
            self.source
        };
        let (va, rkey) = (peer.sink.va, peer.sink.rkey);
        let op = match op {
            Op::Write => SendOp::Write { va, rkey },
            Op::WriteImm => SendOp::WriteImm {
                va,
                rkey,
                imm: [0; 4],
            },
            Op::Send => SendOp::Send,
            Op::Read => SendOp::Read {
                va: peer.source.va,
                rkey: peer.source.rkey,
            },
        };
        let sges = [Sge {
            lkey: local.lkey,
            va: local.va,
            len,
        }];
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&sges),
        };
        self.engine.post_send(qpn, &wr)
    }

    /// Posts the receive for one.
    pub(crate) fn post_receive(
        &mut self,
        qpn: Qpn,
        wr_id: u64,
        len: u32,
    ) -> Result<(), EngineError> {
        let sges = [Sge {
            lkey: self.sink.lkey,
            va: self.sink.va,
            len,
        }];
        let wr_id = wr_id | RECEIVE;
        self.engine.post_recv(qpn, &RecvWr { wr_id, sges: &sges })
    }

    /// Completions, up to 64 at a time.
    pub(crate) fn completions(&mut self, into: &mut Vec<Completion>) {
        let mut batch = [Completion::EMPTY; 64];
        loop {
            let n = self.engine.poll_cq(self.cq, &mut batch);
            into.extend_from_slice(&batch[..n]);
            if n < batch.len() {
                return;
            }
        }
    }

    /// Counters of a queue pair, none if it does not exist.
    pub(crate) fn counters(&self, qpn: Qpn) -> Counters {
        self.engine.qp_counters(qpn).unwrap_or_default()
    }

    /// When the engine has to be polled again, not before 1 ns has passed: one that is blocked,
    /// for its timers, after a tick of its wheel.
    pub(crate) fn next_poll(&self, now: Time) -> Time {
        const TICK: Time = Time::from_ns(8192);
        if self.blocked {
            return now + TICK;
        }
        let deadline = self.engine.next_deadline().map(Instant::as_nanos);
        deadline.map_or(Time::MAX, |ns| {
            Time::from_ns(ns).max(now + Time::from_ns(1))
        })
    }
}
