//! How long a flow takes at least: what slowdown is measured against.

use crate::flow::{Flow, Op};
use crate::frame::serialise;
use crate::lane::{Lane, Node};
use crate::net::HOPS_MAX;
use crate::sim::Simulation;
use crate::units::Time;

/// Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4.
const HEADERS: u64 = 58;
const VLAN_TAG: u64 = 4;
const RETH: u64 = 16;
const AETH: u64 = 4;

/// From the start of a flow until its requester knows that everything has arrived, on an empty
/// network and without any pause between packets; zero if there is no way. Of several shortest ways
/// the first one of each switch counts.
pub(crate) fn completion_time(sim: &Simulation, flow: &Flow) -> Time {
    let (there, back) = (path(sim, flow.src, flow.dst), path(sim, flow.dst, flow.src));
    let (Some(there), Some(back)) = (there, back) else {
        return Time::ZERO;
    };
    let mtu = sim.transport.path_mtu.bytes() as u64;
    let tag = if sim.classes[flow.class].pcp.is_some() {
        VLAN_TAG
    } else {
        0
    };
    let extra = match flow.op {
        Op::Write | Op::WriteImm => RETH,
        Op::Send => 0,
        Op::Read => AETH,
    };
    // Payload is padded to words.
    let frame = |payload: u64| HEADERS + tag + payload.next_multiple_of(4);
    let first = frame(flow.bytes.min(mtu)) + extra;
    let rest = flow.bytes.saturating_sub(mtu);
    let last = match rest {
        0 => first,
        rest => frame((rest - 1) % mtu + 1),
    };
    // The slowest place decides: what comes before delays its first packet, what comes after its
    // last.
    let all = |lane: &Lane| {
        let middle = rest.div_ceil(mtu).saturating_sub(1);
        let full = serialise(lane.rate, frame(mtu)).ps().saturating_mul(middle);
        let ends = serialise(lane.rate, first);
        let tail = if rest > 0 {
            serialise(lane.rate, last)
        } else {
            Time::ZERO
        };
        Time::from_ps(full) + ends + tail
    };
    let through = |place: usize| {
        let part = |(i, lane): (usize, &&Lane)| match i.cmp(&place) {
            std::cmp::Ordering::Less => serialise(lane.rate, first),
            std::cmp::Ordering::Equal => all(lane),
            std::cmp::Ordering::Greater => serialise(lane.rate, last),
        };
        sum(there.iter().enumerate().map(part))
    };
    let data = (0..there.len()).map(through).max().unwrap_or(Time::ZERO);
    let other = match flow.op {
        // The request that asks for the data.
        Op::Read => HEADERS + tag + RETH,
        // The acknowledgement.
        _ => HEADERS + tag + AETH,
    };
    let answer = sum(back.iter().map(|l| serialise(l.rate, other) + l.delay));
    data + sum(there.iter().map(|l| l.delay)) + answer
}

fn sum(times: impl Iterator<Item = Time>) -> Time {
    times.fold(Time::ZERO, |sum, t| sum + t)
}

/// The lanes from one host to another.
fn path(sim: &Simulation, src: u32, dst: u32) -> Option<Vec<&Lane>> {
    let mut lane = &sim.net.lanes[sim.hosts[src as usize].lane as usize];
    let mut path = vec![lane];
    for _ in 0..HOPS_MAX {
        match lane.to {
            Node::Host(h) => return (h == dst).then_some(path),
            Node::Switch(s) => lane = sim.net.next_hop(s, dst)?,
        }
        path.push(lane);
    }
    None
}
