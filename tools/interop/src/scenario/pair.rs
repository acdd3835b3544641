//! One queue pair between the two ends, for scenarios that post single work requests.

use std::time::Duration;

use anyhow::{Result, ensure};
use xroce_wire::newtypes::PathMtu;

use super::status;
use super::traffic::PSNS;
use crate::ends::{
    Connect, CqId, End, Mr, Op, Piece, QpId, QpSpec, Recv, Send, Service, Tuning, Wc, access,
};
use crate::fabric::Route;

/// Bytes of the region of each end.
pub(super) const REGION: u64 = 64 << 10;
/// Longest wait for one completion.
pub(super) const WAIT: Duration = Duration::from_secs(20);

/// One end of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    /// Its region, filled with the pattern of its seed.
    pub mr: Mr,
    /// Its queue pair.
    pub qp: QpId,
    /// Number of its queue pair.
    pub qpn: u32,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
}

/// How the pair is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// Network.
    pub route: Route,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Of the requester.
    pub requester: Tuning,
    /// Of the responder.
    pub responder: Tuning,
    /// Rights of the responder's region.
    pub mr_access: u32,
}

impl Setting {
    /// The defaults, on a network.
    pub(super) fn new(route: Route, mtu: PathMtu) -> Self {
        Self {
            route,
            mtu,
            requester: Tuning::default(),
            responder: Tuning::default(),
            mr_access: access::ALL,
        }
    }
}

fn half(end: &mut dyn End, mr_access: u32, qp_access: u32, seed: u64) -> Result<Half> {
    let mr = end.mr(REGION, mr_access)?;
    end.fill(mr.id, 0, REGION, seed)?;
    let (send_cq, recv_cq) = (end.cq(64)?, end.cq(64)?);
    let spec = QpSpec {
        send_cq,
        recv_cq,
        depth: 32,
        sges: 2,
        service: Service::Rc,
        srq: None,
    };
    let (qp, qpn) = end.qp(&spec, qp_access)?;
    Ok(Half {
        mr,
        qp,
        qpn,
        send_cq,
        recv_cq,
    })
}

fn to(how: &Setting, dest_qpn: u32, (own, other): (u32, u32), tuning: Tuning) -> Connect {
    Connect {
        route: how.route,
        mtu: how.mtu,
        dest_qpn,
        sq_psn: own,
        rq_psn: other,
        tuning,
        service: Service::Rc,
    }
}

/// Connects requester `a` with responder `b`, after everything else they had is gone.
pub(super) fn connect(a: &mut dyn End, b: &mut dyn End, how: &Setting) -> Result<[Half; 2]> {
    a.reset()?;
    b.reset()?;
    let ha = half(a, access::ALL, how.requester.access, 1)?;
    let hb = half(b, how.mr_access, how.responder.access, 3)?;
    b.connect(hb.qp, &to(how, ha.qpn, (PSNS[1], PSNS[0]), how.responder))?;
    a.connect(ha.qp, &to(how, hb.qpn, (PSNS[0], PSNS[1]), how.requester))?;
    Ok([ha, hb])
}

/// A second queue pair between the two, with the same completion queues.
pub(super) fn second(
    a: &mut dyn End,
    b: &mut dyn End,
    how: &Setting,
    halves: &[Half; 2],
) -> Result<[QpId; 2]> {
    let spec = |half: &Half| QpSpec {
        send_cq: half.send_cq,
        recv_cq: half.recv_cq,
        depth: 8,
        sges: 2,
        service: Service::Rc,
        srq: None,
    };
    let (qa, na) = a.qp(&spec(&halves[0]), how.requester.access)?;
    let (qb, nb) = b.qp(&spec(&halves[1]), how.responder.access)?;
    b.connect(qb, &to(how, na, (PSNS[1], PSNS[0]), how.responder))?;
    a.connect(qa, &to(how, nb, (PSNS[0], PSNS[1]), how.requester))?;
    Ok([qa, qb])
}

/// A send of `len` bytes at offset 0, to (READ: from) `remote` at offset 0.
pub(super) fn send(wr: u64, op: Op, own: &Half, remote: &Half, len: u32) -> Send {
    Send {
        va: remote.mr.va,
        rkey: remote.mr.rkey,
        pieces: vec![Piece {
            mr: own.mr.id,
            off: 0,
            len,
        }],
        ..Send::new(wr, op)
    }
}

/// A receive of `len` bytes at offset 0.
pub(super) fn recv(wr: u64, own: &Half, len: u32) -> Recv {
    Recv {
        wr,
        pieces: vec![Piece {
            mr: own.mr.id,
            off: 0,
            len,
        }],
        count: 1,
        stride: 0,
    }
}

/// Waits for the refusal of a request. On a `lossy` cable it may also run out of retries: where the
/// NAK got lost, nobody answers any more.
pub(super) fn expect_refused(end: &mut dyn End, cq: CqId, wr: u64, lossy: bool) -> Result<()> {
    let got = end.poll(cq, 1, 1, WAIT)?;
    let ended = got.first().map(|wc| (wc.wr, wc.status));
    let silent = lossy && ended == Some((wr, status::RETRY));
    ensure!(
        silent || ended == Some((wr, status::REM_ACCESS)),
        "request {wr} should have been refused, and {} completed (wr_id, status) {ended:?}",
        end.name()
    );
    Ok(())
}

/// Waits for exactly these completions, by identifier and status.
pub(super) fn expect(end: &mut dyn End, cq: CqId, wanted: &[(u64, u32)]) -> Result<Vec<Wc>> {
    let n = u32::try_from(wanted.len())?;
    let mut got = Vec::new();
    while got.len() < wanted.len() {
        let left = n - u32::try_from(got.len())?;
        let more = end.poll(cq, left, left, WAIT)?;
        if more.is_empty() {
            break;
        }
        got.extend(more);
    }
    let seen: Vec<(u64, u32)> = got.iter().map(|wc| (wc.wr, wc.status)).collect();
    ensure!(
        seen == wanted,
        "{} completed (wr_id, status) {seen:?}, expected {wanted:?}",
        end.name()
    );
    Ok(got)
}
