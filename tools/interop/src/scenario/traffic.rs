//! Messages of all kinds between two ends, with their contents and completions checked.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use xroce_wire::newtypes::PathMtu;

use crate::clock;
use crate::ends::{
    Connect, CqId, End, Mr, Op, Piece, QpId, QpSpec, Recv, Send, Service, Tuning, Wc, access, fnv1a,
};
use crate::fabric::Route;
use crate::fabric::peer::ReadPsns;

/// Distance of buffers: odd, so that no address is aligned, and so that a byte written too far
/// lands where zeroes are expected.
const GAP: u64 = 13;
/// How long completions of one run may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);
/// How long is waited for completions that must not come.
const SILENCE: Duration = Duration::from_millis(30);
/// Start PSNs of the two ends: both wrap after a few packets.
pub(crate) const PSNS: [u32; 2] = [0x00ff_fff0, 0x00ff_fff8];
/// `wr_id` of a receive has this bit.
const RECV_BIT: u64 = 1 << 40;

/// `count` messages of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Operation.
    pub op: Op,
    /// Bytes of each.
    pub size: u32,
    /// Pieces of local memory each is gathered from, or scattered to.
    pub pieces: u32,
    /// How many.
    pub count: u32,
}

impl Batch {
    /// One message in one piece.
    pub(crate) fn one(op: Op, size: u32) -> Self {
        Self {
            op,
            size,
            pieces: 1,
            count: 1,
        }
    }

    fn stride(&self) -> u64 {
        u64::from(self.size) + GAP
    }
}

/// What to send, the same on each queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Network.
    pub route: Route,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Queue pairs.
    pub qps: u32,
    /// In this order.
    pub batches: Vec<Batch>,
    /// Retry parameters.
    pub tuning: Tuning,
    /// Both ends send at the same time.
    pub both: bool,
    /// Of all queue pairs; unreliable ones have no READ.
    pub service: Service,
    /// Messages of a batch posted before their completions are waited for.
    pub window: u32,
}

impl Plan {
    fn messages(&self) -> u32 {
        self.batches.iter().map(|b| b.count).sum()
    }

    /// Bytes of the area of one direction and queue pair.
    fn area(&self) -> u64 {
        let all: u64 = self
            .batches
            .iter()
            .map(|b| u64::from(b.count) * b.stride())
            .sum();
        all + GAP
    }

    fn directions(&self) -> u64 {
        if self.both { 2 } else { 1 }
    }

    /// Message `wr` of the first queue pair of end `from`, if it is a READ: what it is, its PSNs and
    /// its offset.
    fn read(&self, from: usize, wr: u64) -> Option<(Batch, ReadPsns, u64)> {
        let mtu = u32::try_from(self.mtu.bytes()).ok()?;
        let psns = |batch: Batch| batch.size.div_ceil(mtu).max(1);
        let mut first = *PSNS.get(from)?;
        for (batch, at, number) in placed(self, from, 0) {
            let nth = wr.checked_sub(number)?;
            if nth < u64::from(batch.count) {
                let skipped = psns(batch) * u32::try_from(nth).ok()?;
                let of_it = ReadPsns {
                    first: first.wrapping_add(skipped) & 0x00ff_ffff,
                    count: psns(batch),
                };
                let at = at + nth * batch.stride();
                return (batch.op == Op::Read).then_some((batch, of_it, at));
            }
            first = first.wrapping_add(psns(batch) * batch.count) & 0x00ff_ffff;
        }
        None
    }

    /// Bytes of payload in all.
    pub(crate) fn bytes(&self) -> u64 {
        let one: u64 = self
            .batches
            .iter()
            .map(|b| u64::from(b.count) * u64::from(b.size))
            .sum();
        one * u64::from(self.qps) * self.directions()
    }
}

/// A work request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{end}: work request {wr} failed with status {status}{why}")]
pub(crate) struct Failed {
    /// Name of the end that posted it.
    pub end: &'static str,
    /// Its number.
    pub wr: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// What the end says about it.
    why: String,
    /// The READ before it, if it is one, which succeeded by its completion.
    pub read_before: Option<ReadBefore>,
}

/// A READ that succeeded, and the next request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadBefore {
    /// Its responses.
    pub psns: ReadPsns,
    /// Its bytes are there, all of them.
    pub whole: bool,
}

/// One end, set up.
struct Side {
    source: Mr,
    target: Mr,
    send_cq: CqId,
    recv_cq: CqId,
    qps: Vec<(QpId, u32)>,
}

/// Runs the plan from `a` to `b` (and back, if it says both). Afterwards all contents, all gaps
/// between them and all completions were as they must be.
///
/// # Errors
/// What was not.
pub(crate) fn run(a: &mut dyn End, b: &mut dyn End, plan: &Plan) -> Result<Duration> {
    a.reset()?;
    b.reset()?;
    let sides = [set_up(a, plan, 0)?, set_up(b, plan, 1)?];
    connect(a, b, &sides, plan)?;
    let started = clock::now();
    let turns: &[(usize, usize)] = if plan.both {
        &[(0, 1), (1, 0)]
    } else {
        &[(0, 1)]
    };
    let mut ends: [&mut dyn End; 2] = [a, b];
    for &(from, to) in turns {
        for qp in 0..plan.qps {
            post_receives(ends[to], &sides[to], plan, from, qp)?;
        }
    }
    let mut reapers = Vec::new();
    for &(from, to) in turns {
        let mut sends = Reaper::new(plan, false);
        for qp in 0..plan.qps {
            post_sends(&mut ends, &sides, plan, (from, to), qp, &mut sends)?;
        }
        reapers.push(((from, to), sends));
    }
    for ((from, to), mut sends) in reapers {
        if let Err(e) = sends.reap(ends[from], &sides[from], u32::MAX) {
            return Err(with_read_before(e, &mut ends, &sides, plan, (from, to)));
        }
        Reaper::new(plan, true).reap(ends[to], &sides[to], u32::MAX)?;
    }
    let took = started.elapsed();
    for (end, side) in ends.iter_mut().zip(&sides) {
        let late = end.poll(side.send_cq, 1, 8, SILENCE)?;
        ensure!(late.is_empty(), "{} completed twice: {late:?}", end.name());
        let late = end.poll(side.recv_cq, 1, 8, SILENCE)?;
        ensure!(late.is_empty(), "{} received twice: {late:?}", end.name());
    }
    for &(from, to) in turns {
        for qp in 0..plan.qps {
            check(&mut ends, &sides, plan, from, to, qp)?;
        }
    }
    Ok(took)
}

/// Adds to a failure what became of the READ before it.
fn with_read_before(
    mut error: anyhow::Error,
    ends: &mut [&mut dyn End; 2],
    sides: &[Side; 2],
    plan: &Plan,
    (from, to): (usize, usize),
) -> anyhow::Error {
    if let Some(failed) = error.downcast_mut::<Failed>()
        && plan.qps == 1
        && let Some((read, psns, at)) = failed.wr.checked_sub(1).and_then(|wr| plan.read(from, wr))
    {
        let size = u64::from(read.size);
        // An end that does not answer has failed in another way, which shows next.
        if let Ok(hash) = ends[from].hash(sides[from].target.id, at, size) {
            let whole = hash == fnv1a(slice(seed(to), at, size));
            failed.read_before = Some(ReadBefore { psns, whole });
        }
    }
    error
}

fn set_up(end: &mut dyn End, plan: &Plan, index: usize) -> Result<Side> {
    let len = plan.area() * plan.directions() * u64::from(plan.qps);
    let source = end.mr(len, access::ALL)?;
    let target = end.mr(len, access::ALL)?;
    end.fill(source.id, 0, len, seed(index))?;
    let total = (plan.messages() + 1) * plan.qps;
    let (send_cq, recv_cq) = (end.cq(total)?, end.cq(total)?);
    let spec = QpSpec {
        send_cq,
        recv_cq,
        depth: plan.messages() + 1,
        sges: 4,
        service: plan.service,
        srq: None,
    };
    let qps = (0..plan.qps)
        .map(|_| end.qp(&spec, plan.tuning.access))
        .collect::<Result<_>>()?;
    Ok(Side {
        source,
        target,
        send_cq,
        recv_cq,
        qps,
    })
}

/// Seed of the pattern in the source of end `index`.
fn seed(index: usize) -> u64 {
    0x5eed + 2 * index as u64
}

fn connect(a: &mut dyn End, b: &mut dyn End, sides: &[Side; 2], plan: &Plan) -> Result<()> {
    let to = |qpn: u32, own: u32, other: u32| Connect {
        route: plan.route,
        mtu: plan.mtu,
        dest_qpn: qpn,
        sq_psn: own,
        rq_psn: other,
        tuning: plan.tuning,
        service: plan.service,
    };
    for (qa, qb) in sides[0].qps.iter().zip(&sides[1].qps) {
        b.connect(qb.0, &to(qa.1, PSNS[1], PSNS[0]))?;
        a.connect(qa.0, &to(qb.1, PSNS[0], PSNS[1]))?;
    }
    Ok(())
}

/// Start of an area: that of the direction from end `from` on queue pair `qp`.
fn area(plan: &Plan, from: usize, qp: u32) -> u64 {
    (from as u64 * u64::from(plan.qps) + u64::from(qp)) * plan.area() + GAP
}

/// Batches with the offset and the message number at which each starts.
fn placed(plan: &Plan, from: usize, qp: u32) -> impl Iterator<Item = (Batch, u64, u64)> {
    let mut at = area(plan, from, qp);
    let mut number = 0;
    plan.batches.iter().map(move |&batch| {
        let place = (batch, at, number);
        at += u64::from(batch.count) * batch.stride();
        number += u64::from(batch.count);
        place
    })
}

/// Cuts a message into uneven pieces.
fn pieces(mr: Mr, off: u64, batch: Batch) -> Vec<Piece> {
    if batch.size == 0 && batch.pieces < 2 {
        return Vec::new();
    }
    let mut left = batch.size;
    let mut at = off;
    (1..=batch.pieces)
        .map(|n| {
            let len = if n == batch.pieces {
                left
            } else {
                (batch.size / batch.pieces / 2 + n).min(left)
            };
            let piece = Piece {
                mr: mr.id,
                off: at,
                len,
            };
            left -= len;
            at += u64::from(len);
            piece
        })
        .collect()
}

fn wr(qp: u32, number: u64) -> u64 {
    u64::from(qp) << 20 | number
}

fn imm(qp: u32, number: u64) -> u32 {
    0xa000_0000 | qp << 16 | u32::try_from(number & 0xffff).unwrap_or(0)
}

fn post_receives(end: &mut dyn End, side: &Side, plan: &Plan, from: usize, qp: u32) -> Result<()> {
    let (id, _) = *side.qps.get(qp as usize).context("queue pair")?;
    for (batch, at, number) in placed(plan, from, qp) {
        if !batch.op.takes_recv() {
            continue;
        }
        // A WRITE with immediate takes a receive but not its buffer.
        let list = if batch.op == Op::WriteImm {
            Vec::new()
        } else {
            pieces(side.target, at, batch)
        };
        end.recv(
            id,
            &Recv {
                wr: RECV_BIT | wr(qp, number),
                pieces: list,
                count: batch.count,
                stride: batch.stride(),
            },
        )?;
    }
    Ok(())
}

fn post_sends(
    ends: &mut [&mut dyn End; 2],
    sides: &[Side; 2],
    plan: &Plan,
    (from, to): (usize, usize),
    qp: u32,
    reaper: &mut Reaper,
) -> Result<()> {
    let (own, other) = (&sides[from], &sides[to]);
    let (id, _) = *own.qps.get(qp as usize).context("queue pair")?;
    for (batch, at, number) in placed(plan, from, qp) {
        let (local, remote) = if batch.op == Op::Read {
            (own.target, other.source)
        } else {
            (own.source, other.target)
        };
        let what = format!("{} × {} of {} B", batch.count, batch.op.name(), batch.size);
        let mut posted = 0;
        while posted < batch.count {
            let count = plan.window.min(batch.count - posted);
            let at = at + u64::from(posted) * batch.stride();
            let send = Send {
                imm: imm(qp, number),
                va: remote.va + at,
                rkey: remote.rkey,
                pieces: pieces(local, at, batch),
                count,
                stride: batch.stride(),
                ..Send::new(wr(qp, number) + u64::from(posted), batch.op)
            };
            ends[from].send(id, &send).context(what.clone())?;
            posted += count;
            if plan.window < batch.count {
                reaper.reap(ends[from], own, count)?;
            }
        }
    }
    Ok(())
}

/// Completions still to come of one queue, by queue pair, the next one last.
struct Reaper {
    expected: Vec<Vec<Wc>>,
    receives: bool,
}

impl Reaper {
    fn new(plan: &Plan, receives: bool) -> Self {
        let mut expected: Vec<Vec<Wc>> =
            (0..plan.qps).map(|qp| wanted(plan, qp, receives)).collect();
        for list in &mut expected {
            list.reverse();
        }
        Self { expected, receives }
    }

    /// Takes `count` completions, or all that are left: each message of each queue pair once, in
    /// order, right.
    fn reap(&mut self, end: &mut dyn End, side: &Side, count: u32) -> Result<()> {
        let cq = if self.receives {
            side.recv_cq
        } else {
            side.send_cq
        };
        let all: usize = self.expected.iter().map(Vec::len).sum();
        let total = all.min(count as usize);
        let until = clock::now() + PATIENCE;
        let mut got = 0;
        while got < total {
            let left = u32::try_from(total - got)?;
            let batch = end.poll(cq, left.min(64), left, Duration::from_secs(2))?;
            for wc in &batch {
                let qp = usize::try_from((wc.wr & !RECV_BIT) >> 20)?;
                let next = self.expected.get_mut(qp).and_then(Vec::pop);
                compare(end, side, qp, wc, next)?;
                got += 1;
            }
            if batch.is_empty() && clock::now() > until {
                let what = if self.receives { "receives" } else { "sends" };
                bail!(
                    "{}: {got} of {total} {what} completed within {PATIENCE:?}",
                    end.name()
                );
            }
        }
        Ok(())
    }
}

fn compare(end: &mut dyn End, side: &Side, qp: usize, got: &Wc, wanted: Option<Wc>) -> Result<()> {
    let name = end.name();
    let Some(wanted) = wanted else {
        bail!("{name} completed one more than there was: {got:?}");
    };
    if got.status != 0 {
        let id = side.qps.get(qp).map(|q| q.0);
        let why = id.map(|id| end.failure(id)).transpose()?.flatten();
        bail!(Failed {
            end: name,
            wr: got.wr,
            status: got.status,
            why: why.map(|w| format!(": {w}")).unwrap_or_default(),
            read_before: None,
        });
    }
    // The length of a send completion is not defined but for READ, and rxe marks the immediate
    // data that it sent.
    let mut seen = *got;
    if seen.opcode < 2 {
        seen.len = 0;
        seen.imm = None;
    }
    ensure!(
        seen == wanted,
        "{name} completed {seen:?}, expected {wanted:?}"
    );
    Ok(())
}

/// The completions one queue pair must see.
fn wanted(plan: &Plan, qp: u32, receives: bool) -> Vec<Wc> {
    let mut list = Vec::new();
    for (batch, _, first) in placed(plan, 0, qp) {
        if receives && !batch.op.takes_recv() {
            continue;
        }
        let opcode = match (batch.op, receives) {
            (Op::Send | Op::SendImm, false) => 0,
            (Op::Write | Op::WriteImm, false) => 1,
            (Op::Read, _) => 2,
            (Op::CompareSwap, _) => 3,
            (Op::FetchAdd, _) => 4,
            (Op::SendInv, false) => 0,
            (Op::LocalInv, _) => 6,
            (Op::Flush, _) => 8,
            (Op::AtomicWrite, _) => 9,
            (Op::WriteImm, true) => 129,
            (_, true) => 128,
        };
        for n in 0..u64::from(batch.count) {
            let bit = if receives { RECV_BIT } else { 0 };
            let shows_len = receives || batch.op == Op::Read;
            list.push(Wc {
                wr: bit | (wr(qp, first) + n),
                status: 0,
                opcode,
                len: if shows_len { batch.size } else { 0 },
                imm: (receives && batch.op.has_imm()).then_some(imm(qp, first)),
                inv: None,
                datagram_from: None,
            });
        }
    }
    list
}

/// Compares the target areas of both ends with what must be there.
fn check(
    ends: &mut [&mut dyn End; 2],
    sides: &[Side; 2],
    plan: &Plan,
    from: usize,
    to: usize,
    qp: u32,
) -> Result<()> {
    // The whole area in one hash first; only if that is wrong, message by message.
    for (end, reads) in [(to, false), (from, true)] {
        // READs fetch from the other end's source.
        let source = if reads { to } else { from };
        let content = seed(source);
        let start = area(plan, from, qp) - GAP;
        let len = plan.area();
        let bytes = expected_area(plan, from, qp, reads, content);
        let got = ends[end].hash(sides[end].target.id, start, len)?;
        if got == fnv1a(bytes) {
            continue;
        }
        for (batch, at, number) in placed(plan, from, qp) {
            if (batch.op == Op::Read) != reads {
                continue;
            }
            for n in 0..u64::from(batch.count) {
                let at = at + n * batch.stride();
                let got = ends[end].hash(sides[end].target.id, at, u64::from(batch.size))?;
                let right = fnv1a(slice(content, at, u64::from(batch.size)));
                ensure!(
                    got == right,
                    "{}: message {} of queue pair {qp} ({} of {} B) has other bytes than sent",
                    ends[end].name(),
                    number + n,
                    batch.op.name(),
                    batch.size
                );
            }
        }
        bail!(
            "{}: bytes between the messages of queue pair {qp} were written",
            ends[end].name()
        );
    }
    Ok(())
}

/// Bytes `at..at + len` of a pattern.
fn slice(seed: u64, at: u64, len: u64) -> impl Iterator<Item = u8> {
    (at..at + len).map(move |p| crate::ends::pattern_byte(seed, p))
}

/// The bytes of an area as they must be: messages where they belong, zeroes between.
fn expected_area(plan: &Plan, from: usize, qp: u32, reads: bool, content: u64) -> Vec<u8> {
    let start = area(plan, from, qp) - GAP;
    let mut bytes = Vec::new();
    for (batch, at, _) in placed(plan, from, qp) {
        let mine = (batch.op == Op::Read) == reads;
        for n in 0..u64::from(batch.count) {
            let at = at + n * batch.stride();
            while start + (bytes.len() as u64) < at {
                bytes.push(0);
            }
            if mine {
                bytes.extend(slice(content, at, u64::from(batch.size)));
            }
        }
    }
    while (bytes.len() as u64) < plan.area() {
        bytes.push(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_found_by_its_number() {
        let batch = |op, size, count| Batch {
            count,
            ..Batch::one(op, size)
        };
        let plan = Plan {
            route: Route::V4,
            mtu: PathMtu::Mtu1024,
            qps: 1,
            batches: vec![
                batch(Op::Read, 9_000, 2),
                batch(Op::Write, 500, 1),
                batch(Op::Read, 1_100, 3),
            ],
            tuning: Tuning::default(),
            both: false,
            service: Service::Rc,
            window: u32::MAX,
        };
        let psns = |wr| plan.read(0, wr).map(|(_, p, at)| (p.first, p.count, at));
        assert_eq!(psns(0), Some((0x00ff_fff0, 9, 13)));
        assert_eq!(psns(1), Some((0x00ff_fff9, 9, 13 + 9_013)));
        assert_eq!(psns(2), None);
        assert_eq!(psns(4), Some((5, 2, 13 + 2 * 9_013 + 513 + 1_113)));
        assert_eq!(psns(6), None);
    }
}
