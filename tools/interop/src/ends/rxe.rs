//! The end in the virtual machine: Linux rdma_rxe, driven through the guest's agent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xroce_vm::{Agent, Answer, Completion};
use xroce_wire::newtypes::Gid;

use super::{
    AhId, Bind, Bound, Connect, CqId, End, Happened, Mr, MrId, Mw, Op, Piece, QpId, QpSpec, Recv,
    Send, Service, SrqId, Subject, Wc,
};
use crate::fabric::Route;

/// How long an answer may take beyond what was asked for.
const PATIENCE: Duration = Duration::from_secs(30);
/// `IBV_SEND_SIGNALED`.
const SIGNALED: u32 = 2;
/// Host number in the addresses of the virtual machine.
const HOST: u8 = 2;
/// Bit of the opcodes of receives.
const RECV: u32 = 128;
/// `IBV_WC_GRH`.
const GRH: u32 = 1;
/// `IBV_WC_WITH_IMM`.
const WITH_IMM: u32 = 2;

/// `IBV_WC_WITH_INV` as rxe has it.
const WITH_INV: u32 = 4;
/// `IBV_SEND_FENCE`.
const FENCE: u32 = 1;
/// Kinds that events are of.
const KINDS: [&str; 2] = ["qp", "srq"];

/// The agent, alone or shared with another end in the same guest.
enum Line<'v> {
    Alone(&'v mut Agent),
    Shared(&'v RefCell<&'v mut Agent>),
}

/// rdma_rxe in the guest.
pub(crate) struct Rxe<'v> {
    line: Line<'v>,
    /// The highest id in use.
    next: u32,
    /// Where its ids start.
    base: u32,
    /// Host number of the other end.
    peer: u8,
    /// Requests that go with the next one.
    later: Vec<String>,
    /// Whether what has no answer waits for what has.
    lazy: bool,
    /// GID index of a network.
    index: Option<(Route, u32)>,
}

impl<'v> Rxe<'v> {
    /// The device of this guest, with the objects it has.
    pub(crate) fn new(agent: &'v mut Agent) -> Self {
        Self::on(Line::Alone(agent))
    }

    fn on(line: Line<'v>) -> Self {
        Self {
            line,
            next: 0,
            base: 0,
            peer: 1,
            later: Vec::new(),
            lazy: false,
            index: None,
        }
    }

    /// Posts and the like wait for the next call that has an answer, and go with it.
    pub(crate) fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Two ends on one device, for queue pairs that are connected with each other. Resetting the
    /// first one destroys the objects of both.
    pub(crate) fn twins(agent: &'v RefCell<&'v mut Agent>) -> [Self; 2] {
        [0, 512].map(|base| Self {
            next: base,
            base,
            peer: HOST,
            ..Self::on(Line::Shared(agent)).lazy()
        })
    }

    fn with<T>(&mut self, job: impl FnOnce(&mut Agent) -> T) -> T {
        match &mut self.line {
            Line::Alone(agent) => job(agent),
            Line::Shared(agent) => job(&mut agent.borrow_mut()),
        }
    }

    /// All that waits, with this behind it.
    fn call(&mut self, verb: &str, args: &str) -> Result<Answer> {
        if self.later.is_empty() {
            return self.with(|agent| agent.call(verb, args, None, PATIENCE));
        }
        let mut requests = std::mem::take(&mut self.later);
        requests.push(format!("{verb} {args}"));
        let mut answers = self.with(|agent| agent.batch(&requests, PATIENCE))?;
        answers.pop().context("no answer")
    }

    /// A request whose answer says nothing.
    fn order(&mut self, verb: &str, args: &str) -> Result<()> {
        if self.lazy {
            self.later.push(format!("{verb} {args}"));
            return Ok(());
        }
        self.call(verb, args).map(drop)
    }

    fn gid_index(&mut self, route: Route) -> Result<u32> {
        match self.index {
            Some((of, index)) if of == route => Ok(index),
            _ => {
                let index = self.with(|agent| gid_index(agent, route))?;
                self.index = Some((route, index));
                Ok(index)
            }
        }
    }

    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Makes a queue pair of a type; returns its id and number.
    fn make_qp(&mut self, kind: &str, spec: &QpSpec) -> Result<(u32, u32)> {
        let id = self.id();
        let (scq, rcq, depth, sges) = (spec.send_cq.0, spec.recv_cq.0, spec.depth, spec.sges);
        let mut args = format!(
            "id={id} type={kind} scq={scq} rcq={rcq} swr={depth} rwr={depth} ssge={sges} \
             rsge={sges} inline=0"
        );
        if let Some(srq) = spec.srq {
            write!(args, " srq={}", srq.0)?;
        }
        let answer = self.call("qp", &args)?;
        Ok((id, u32::try_from(answer.num("qpn")?).context("qpn")?))
    }
}

/// Waits until a program of the guest listens on a TCP port.
pub(crate) fn wait_for_port(agent: &mut Agent, port: u16) -> Result<()> {
    let script = format!(
        "for i in $(seq 400); do grep -qE ':{port:04X} [0-9A-F]+:0000 0A ' /proc/net/tcp \
         /proc/net/tcp6 && exit 0; sleep 0.05; done; exit 1"
    );
    let output = agent.exec(&script, PATIENCE)?;
    output.ok().context("nothing listens")?;
    Ok(())
}

fn pieces(list: &[Piece]) -> String {
    if list.is_empty() {
        return "-".to_owned();
    }
    let texts: Vec<String> = list
        .iter()
        .map(|p| format!("{}:{}:{}", p.mr.0, p.off, p.len))
        .collect();
    texts.join(",")
}

/// Fields of receives.
fn receives(recv: &Recv) -> String {
    format!(
        "wr={} sge={} n={} wrstep=1 stride={} raw=1",
        recv.wr,
        pieces(&recv.pieces),
        recv.count,
        recv.stride
    )
}

/// `NUMBER:KIND:ID`.
fn event(text: &str) -> Result<Happened> {
    let parts: Vec<&str> = text.split(':').collect();
    ensure!(parts.len() == 3, "{text:?} is no event");
    let id = parts[2].parse()?;
    Ok(Happened {
        event: parts[0].parse()?,
        of: match KINDS.iter().position(|kind| *kind == parts[1]) {
            Some(0) => Subject::Qp(QpId(id)),
            Some(_) => Subject::Srq(SrqId(id)),
            None => Subject::Other,
        },
    })
}

/// As scenarios see a completion.
fn completion(wc: &Completion) -> Wc {
    let is_recv = wc.opcode & RECV != 0;
    Wc {
        wr: wc.wr_id,
        status: wc.status,
        opcode: wc.opcode,
        len: wc.byte_len,
        imm: (wc.flags & WITH_IMM != 0).then_some(wc.imm),
        inv: (wc.flags & WITH_INV != 0).then_some(wc.imm),
        // rxe says IBV_WC_GRH for every receive, and a source only for datagrams.
        datagram_from: (is_recv && wc.flags & GRH != 0 && wc.src_qp != 0).then_some(wc.src_qp),
    }
}

/// Index of our machine's address on a network in the GID table, as RoCEv2.
pub(crate) fn gid_index(agent: &mut Agent, route: Route) -> Result<u32> {
    let wanted = match route.ip(HOST) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let gids = agent.gids()?;
    let found = gids.iter().find(|gid| gid.v2 && gid.addr == wanted);
    let index = found.map(|gid| gid.index);
    index.with_context(|| format!("rxe has no GID {wanted}; it has {gids:?}"))
}

impl End for Rxe<'_> {
    fn name(&self) -> &'static str {
        "rxe"
    }

    fn reset(&mut self) -> Result<()> {
        self.next = self.base;
        self.later.clear();
        if self.base > 0 {
            return Ok(());
        }
        self.call("reset", "").map(drop)
    }

    fn gid(&self, route: Route) -> Gid {
        Gid::from(route.ip(HOST))
    }

    fn mr(&mut self, len: u64, access: u32) -> Result<Mr> {
        let id = self.id();
        let answer = self.call("mr", &format!("id={id} len={len} access={access}"))?;
        Ok(Mr {
            id: MrId(id),
            va: answer.num("addr")?,
            rkey: u32::try_from(answer.num("rkey")?).context("rkey")?,
        })
    }

    fn fill(&mut self, mr: MrId, off: u64, len: u64, seed: u64) -> Result<()> {
        let args = format!("mr={} off={off} len={len} seed={seed}", mr.0);
        self.order("fill", &args)
    }

    fn hash(&mut self, mr: MrId, off: u64, len: u64) -> Result<u64> {
        let answer = self.call("hash", &format!("mr={} off={off} len={len}", mr.0))?;
        answer.num("fnv")
    }

    fn cq(&mut self, depth: u32) -> Result<CqId> {
        let id = self.id();
        self.order("cq", &format!("id={id} depth={depth}"))?;
        Ok(CqId(id))
    }

    fn qp(&mut self, spec: &QpSpec, access: u32) -> Result<(QpId, u32)> {
        let kind = match spec.service {
            Service::Rc => "rc",
            Service::Uc => "uc",
        };
        let (id, qpn) = self.make_qp(kind, spec)?;
        self.order("modify", &format!("qp={id} state=init access={access}"))?;
        Ok((QpId(id), qpn))
    }

    fn datagram_qp(&mut self, spec: &QpSpec, qkey: u32) -> Result<(QpId, u32)> {
        let (id, qpn) = self.make_qp("ud", spec)?;
        self.order("modify", &format!("qp={id} state=init qkey={qkey:#x}"))?;
        self.order("modify", &format!("qp={id} state=rtr"))?;
        self.order("modify", &format!("qp={id} state=rts sq_psn=0xfffffe"))?;
        Ok((QpId(id), qpn))
    }

    fn ah(&mut self, route: Route, group: Option<Gid>) -> Result<AhId> {
        let id = self.id();
        let index = self.gid_index(route)?;
        let dgid = group.unwrap_or_else(|| Gid::from(route.ip(self.peer)));
        let dgid = u128::from_be_bytes(dgid.bytes());
        let args = format!("id={id} gid_index={index} dgid={dgid:032x} hop=64");
        self.order("ah", &args)?;
        Ok(AhId(id))
    }

    fn attach(&mut self, qp: QpId, group: Gid) -> Result<()> {
        let gid = u128::from_be_bytes(group.bytes());
        let args = format!("qp={} gid={gid:032x} attach=1", qp.0);
        self.call("mcast", &args).map(drop)
    }

    fn peek(&mut self, mr: MrId, off: u64, len: u64) -> Result<Vec<u8>> {
        let answer = self.call("peek", &format!("mr={} off={off} len={len}", mr.0))?;
        let hex = answer.text("hex")?;
        let byte = |at: usize| {
            let pair = hex.get(at..at + 2).context("odd hex")?;
            u8::from_str_radix(pair, 16).context("hex")
        };
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    fn connect(&mut self, qp: QpId, to: &Connect) -> Result<()> {
        let index = self.gid_index(to.route)?;
        let dgid = u128::from_be_bytes(Gid::from(to.route.ip(self.peer)).bytes());
        let t = to.tuning;
        let mut rtr = format!(
            "qp={} state=rtr mtu={} dqpn={:#x} rq_psn={:#x} gid_index={index} dgid={dgid:032x} \
             hop=64 tclass=0 flow=0 sl=0",
            qp.0, to.mtu as u8, to.dest_qpn, to.rq_psn
        );
        let mut rts = format!("qp={} state=rts sq_psn={:#x}", qp.0, to.sq_psn);
        if to.service == Service::Rc {
            write!(rtr, " rd_in={} rnr_timer={}", t.reads, t.rnr_timer)?;
            write!(
                rts,
                " timeout={} retry={} rnr={} rd_out={}",
                t.timeout, t.retry, t.rnr_retry, t.reads
            )?;
        }
        self.order("modify", &rtr)?;
        self.order("modify", &rts)
    }

    fn send(&mut self, qp: QpId, send: &Send) -> Result<()> {
        let op = match send.op {
            Op::Send => "send",
            Op::SendImm => "send_imm",
            Op::Write => "write",
            Op::WriteImm => "write_imm",
            Op::Read => "read",
            Op::CompareSwap => "cas",
            Op::FetchAdd => "fadd",
            Op::SendInv => "send_inv",
            Op::AtomicWrite => "atomic_write",
            Op::Flush => "flush",
            Op::LocalInv => "local_inv",
        };
        let fence = if send.fence { FENCE } else { 0 };
        let flags = fence | if send.signaled { SIGNALED } else { 0 };
        let mut args = format!(
            "qp={} wr={} op={op} flags={flags} sge={} n={} wrstep=1 stride={} raw=1",
            qp.0,
            send.wr,
            pieces(&send.pieces),
            send.count,
            send.stride
        );
        if send.op.has_imm() {
            write!(args, " imm={:#x}", send.imm)?;
        }
        if send.op.is_remote() {
            let (va, rkey, stride) = (send.va, send.rkey, send.stride);
            write!(args, " rva={va:#x} rkey={rkey:#x} rstride={stride}")?;
        }
        if matches!(send.op, Op::CompareSwap | Op::FetchAdd) {
            let [compare, swap] = send.operands;
            write!(args, " cmp={compare:#x} swap={swap:#x}")?;
        }
        if matches!(send.op, Op::SendInv | Op::LocalInv) {
            write!(args, " inv={:#x}", send.inv)?;
        }
        if send.op == Op::Flush {
            let f = send.flush;
            let kind = if f.persistent { 2 } else { 1 };
            write!(
                args,
                " length={} type={kind} level={}",
                f.len,
                u8::from(f.whole)
            )?;
        }
        if let Some(to) = send.to {
            let (ah, qpn, qkey) = (to.ah.0, to.qpn, to.qkey);
            write!(args, " ah={ah} rqpn={qpn:#x} rqkey={qkey:#x}")?;
        }
        self.order("send", &args)
    }

    fn recv(&mut self, qp: QpId, recv: &Recv) -> Result<()> {
        self.order("recv", &format!("qp={} {}", qp.0, receives(recv)))
    }

    fn poll(&mut self, cq: CqId, min: u32, max: u32, timeout: Duration) -> Result<Vec<Wc>> {
        self.settle()?;
        let (min, max) = (min as usize, max as usize);
        let all = self.with(|agent| agent.poll_up_to(cq.0, min, max, timeout))?;
        Ok(all.iter().map(completion).collect())
    }

    fn srq(&mut self, depth: u32, sges: u8) -> Result<SrqId> {
        let id = self.id();
        self.order("srq", &format!("id={id} wr={depth} sge={sges}"))?;
        Ok(SrqId(id))
    }

    fn srq_recv(&mut self, srq: SrqId, recv: &Recv) -> Result<()> {
        self.order("recv", &format!("srq={} {}", srq.0, receives(recv)))
    }

    fn srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        self.order("limit", &format!("srq={} limit={limit}", srq.0))
    }

    fn events(&mut self, timeout: Duration) -> Result<Vec<Happened>> {
        let answer = self.call("events", &format!("timeout_ms={}", timeout.as_millis()))?;
        answer.all("event").map(event).collect()
    }

    fn mw(&mut self, type2: bool) -> Result<Mw> {
        let id = self.id();
        let kind = if type2 { 2 } else { 1 };
        let answer = self.call("mw", &format!("id={id} type={kind}"))?;
        Ok(Mw {
            id,
            rkey: answer.num32("rkey")?,
        })
    }

    fn bind(&mut self, qp: QpId, mw: Mw, bind: &Bind) -> Result<Bound> {
        let args = format!(
            "qp={} mw={} mr={} off={} len={} access={} wr={}",
            qp.0, mw.id, bind.mr.0, bind.off, bind.len, bind.access, bind.wr
        );
        Ok(Bound {
            rkey: self.call("bind", &args)?.num32("rkey")?,
            completes: true,
        })
    }

    fn free_mw(&mut self, mw: Mw) -> Result<()> {
        self.order("destroy", &format!("kind=mw id={}", mw.id))
    }

    fn settle(&mut self) -> Result<()> {
        if self.later.is_empty() {
            return Ok(());
        }
        let requests = std::mem::take(&mut self.later);
        self.with(|agent| agent.batch(&requests, PATIENCE))
            .map(drop)
    }

    fn state(&mut self, qp: QpId) -> Result<String> {
        let answer = self.call("query", &format!("qp={}", qp.0))?;
        Ok(answer.text("state")?.to_owned())
    }

    fn hashes(&mut self, ranges: &[(MrId, u64, u64)]) -> Result<Vec<u64>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        self.settle()?;
        let request = |&(mr, off, len): &(MrId, u64, u64)| {
            let mr = mr.0;
            format!("hash mr={mr} off={off} len={len}")
        };
        let requests: Vec<String> = ranges.iter().map(request).collect();
        let answers = self.with(|agent| agent.batch(&requests, PATIENCE))?;
        answers.iter().map(|answer| answer.num("fnv")).collect()
    }

    fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        self.settle()?;
        self.with(Agent::counters)
    }

    fn failure(&mut self, _qp: QpId) -> Result<Option<String>> {
        // rxe says nothing beyond the status.
        Ok(None)
    }
}
