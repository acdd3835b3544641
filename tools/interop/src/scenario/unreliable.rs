//! UC and UD: messages of every size both ways, what is lost vanishes whole, network headers in
//! front of datagrams, Q_Keys, groups.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xroce_wire::newtypes::Gid;

use super::clean;
use super::traffic::{Batch, PSNS, Plan};
use super::{Direction, Outcome, Scenario, Seen, Stage, in_order, mtu, rate};
use crate::ends::{
    Connect, Destination, End, MULTICAST_QPN, Mr, MrId, Op, Piece, QpId, QpSpec, Recv, Send,
    Service, Tuning, Wc, access, fnv1a, pattern_byte,
};
use crate::fabric::Route;
use crate::fabric::fault::{Fault, Rule};
use crate::fabric::look::Class;

/// Q_Key of the receivers.
const QKEY: u32 = 0x1111_1111;
/// Bytes of the network header in front of a datagram.
const GRH: u64 = 40;
/// Distance of buffers, odd and more than path MTU and header.
const STRIDE: u64 = 4_219;
/// How long completions may take.
const WAIT: Duration = Duration::from_secs(20);
/// How long is waited for what must not come.
const SILENCE: Duration = Duration::from_millis(200);
/// Seed of what is sent.
const SEED: u64 = 0x51d;

/// All operations of UC in all sizes, contents compared.
fn uc(stage: &mut Stage, scenario: &Scenario) -> Result<Outcome> {
    let ops = [Op::Send, Op::SendImm, Op::Write, Op::WriteImm];
    let mtu = u32::try_from(scenario.mtu.bytes())?;
    let sizes = [0, 1, 3, 33, mtu - 1, mtu, mtu + 1, 3 * mtu + 1];
    let plan = Plan {
        route: scenario.route,
        mtu: scenario.mtu,
        qps: 1,
        batches: sizes
            .into_iter()
            .flat_map(|size| ops.map(|op| Batch::one(op, size)))
            .collect(),
        tuning: Tuning::default(),
        both: false,
        service: Service::Uc,
        window: u32::MAX,
    };
    let (seen, took) = clean::play(stage, scenario, &plan)?;
    Ok(seen.outcome(rate(plan.bytes(), took)))
}

/// One end with a region of `count` buffers and one queue pair.
struct Half {
    mr: Mr,
    qp: QpId,
    qpn: u32,
    send_cq: crate::ends::CqId,
    recv_cq: crate::ends::CqId,
}

fn half(end: &mut dyn End, count: u32, fill: bool, service: Option<Service>) -> Result<Half> {
    let mr = end.mr(u64::from(count) * STRIDE, access::ALL)?;
    if fill {
        end.fill(mr.id, 0, u64::from(count) * STRIDE, SEED)?;
    }
    let (send_cq, recv_cq) = (end.cq(count + 8)?, end.cq(count + 8)?);
    let spec = QpSpec {
        service: service.unwrap_or_default(),
        send_cq,
        recv_cq,
        depth: count + 8,
        sges: 2,
        srq: None,
    };
    let (qp, qpn) = match service {
        Some(_) => end.qp(&spec, access::ALL)?,
        None => end.datagram_qp(&spec, QKEY)?,
    };
    Ok(Half {
        mr,
        qp,
        qpn,
        send_cq,
        recv_cq,
    })
}

fn send(mr: MrId, wr: u64, len: u32, to: Option<Destination>) -> Send {
    Send {
        imm: u32::try_from(wr).unwrap_or(u32::MAX),
        pieces: vec![Piece {
            mr,
            off: wr * STRIDE,
            len,
        }],
        to,
        ..Send::new(wr, Op::SendImm)
    }
}

fn receives(half: &Half, count: u32, len: u32) -> Recv {
    Recv {
        wr: 0,
        pieces: vec![Piece {
            mr: half.mr.id,
            off: 0,
            len,
        }],
        count,
        stride: STRIDE,
    }
}

/// Hash of message `n` as it was sent.
fn content(n: u64, len: u32) -> u64 {
    fnv1a((n * STRIDE..n * STRIDE + u64::from(len)).map(|at| pattern_byte(SEED, at)))
}

/// Everything up to `count` completions, all successful.
fn reap(end: &mut dyn End, cq: crate::ends::CqId, count: u32, wait: Duration) -> Result<Vec<Wc>> {
    let mut all = Vec::new();
    while all.len() < count as usize {
        let left = count - u32::try_from(all.len())?;
        let more = end.poll(cq, left, left, wait)?;
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    let failed = all.iter().find(|wc| wc.status != 0);
    ensure!(failed.is_none(), "{} completed {failed:?}", end.name());
    Ok(all)
}

/// UC messages of three packets, 5 % of the packets lost: a message arrives whole or not at all,
/// at most once, in order.
fn uc_loss(stage: &mut Stage, scenario: &Scenario) -> Result<Outcome> {
    const COUNT: u32 = 120;
    let len = 3 * u32::try_from(scenario.mtu.bytes())? - 5;
    let rule = Rule {
        from: scenario.direction.requester(),
        class: Some(Class::Request),
        one_in: 20,
        fault: Fault::Drop,
    };
    stage.start(&[rule]);
    let result = in_order(stage, scenario.direction, |a, b| {
        lossy_messages(a, b, scenario, COUNT, len)
    });
    let record = stage.finish()?;
    let received = result?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    // What must have arrived: the messages all of whose packets did.
    let mut whole: BTreeSet<u32> = (0..COUNT).collect();
    let mut packets = 0;
    for (frame, packet) in record.packets(scenario.direction.requester()) {
        if packet.class == Class::Request {
            if frame.fate != crate::fabric::record::Fate::Forwarded {
                whole.remove(&(packets / 3));
            }
            packets += 1;
        }
    }
    ensure!(packets == COUNT * 3, "{packets} packets were sent");
    // rxe drops the message behind a broken one as well.
    let allowed = match scenario.direction {
        Direction::ToXroce => whole.len()..=whole.len(),
        Direction::ToRxe | Direction::Both => 1..=whole.len(),
    };
    ensure!(
        allowed.contains(&received),
        "{received} messages were received, {} arrived whole",
        whole.len()
    );
    Ok(seen.outcome(format!("{received} of {COUNT} arrived")))
}

/// Sends `count` messages over UC; returns how many arrived, each of them whole and in order.
fn lossy_messages(
    a: &mut dyn End,
    b: &mut dyn End,
    scenario: &Scenario,
    count: u32,
    len: u32,
) -> Result<usize> {
    a.reset()?;
    b.reset()?;
    let ha = half(a, count, true, Some(Service::Uc))?;
    let hb = half(b, count, false, Some(Service::Uc))?;
    let to = |qpn, own, other| Connect {
        route: scenario.route,
        mtu: scenario.mtu,
        dest_qpn: qpn,
        sq_psn: own,
        rq_psn: other,
        tuning: Tuning::default(),
        service: Service::Uc,
    };
    b.connect(hb.qp, &to(ha.qpn, PSNS[1], PSNS[0]))?;
    a.connect(ha.qp, &to(hb.qpn, PSNS[0], PSNS[1]))?;
    b.recv(hb.qp, &receives(&hb, count, len))?;
    for n in 0..count {
        a.send(ha.qp, &send(ha.mr.id, n.into(), len, None))?;
    }
    let sent = reap(a, ha.send_cq, count, WAIT)?;
    ensure!(
        sent.len() == count as usize,
        "{} sends completed",
        sent.len()
    );
    let received = reap(b, hb.recv_cq, count, Duration::from_secs(1))?;
    let mut last = None;
    for wc in &received {
        let n = wc.imm.context("immediate data")?;
        ensure!(
            last.is_none_or(|l| l < n),
            "message {n} came after {last:?}"
        );
        last = Some(n);
        ensure!(wc.len == len, "message {n} has {} bytes", wc.len);
        let hash = b.hash(hb.mr.id, wc.wr * STRIDE, len.into())?;
        ensure!(
            hash == content(n.into(), len),
            "message {n} has other bytes"
        );
    }
    Ok(received.len())
}

/// Datagrams of all sizes, their headers and contents; one with a wrong Q_Key does not arrive.
fn ud(stage: &mut Stage, scenario: &Scenario, group: bool) -> Result<Outcome> {
    if group {
        let address = group_of(scenario.route).ip();
        let bits = if scenario.route.v6 { 128 } else { 32 };
        let address = format!("{address}/{bits}");
        let command = if scenario.direction == Direction::ToRxe {
            // rxe listens to the group's Ethernet address; that the guest's IP takes what comes
            // there is the program's own business (or the connection manager's).
            format!("ip addr replace {address} dev eth0 autojoin")
        } else {
            // What is joined so is an address of the guest itself, and what is sent there stays.
            format!("ip addr del {address} dev eth0; ip route replace {address} dev eth0")
        };
        stage
            .vm
            .agent()
            .exec(&command, WAIT)?
            .ok()
            .context(command)?;
    }
    stage.start(&[]);
    let done = in_order(stage, scenario.direction, |a, b| {
        datagrams(a, b, scenario, group)
    });
    let record = stage.finish()?;
    let count = done?;
    let seen = Seen::of(record, scenario.mtu);
    seen.no_overflow()?;
    Ok(seen.outcome(format!("{count} datagrams")))
}

fn datagrams(a: &mut dyn End, b: &mut dyn End, scenario: &Scenario, group: bool) -> Result<u64> {
    let sizes = [0, 1, 2, 3, 33, 255, 1024, 4095, 4096];
    let count = u32::try_from(sizes.len())?;
    a.reset()?;
    b.reset()?;
    let ha = half(a, count + 1, true, None)?;
    let hb = half(b, count + 1, false, None)?;
    let address = group.then(|| group_of(scenario.route));
    if let Some(group) = address {
        b.attach(hb.qp, group)?;
    }
    let to = Destination {
        ah: a.ah(scenario.route, address)?,
        qpn: if group { MULTICAST_QPN } else { hb.qpn },
        qkey: QKEY,
    };
    b.recv(hb.qp, &receives(&hb, count + 1, 4_096 + 40))?;
    let wrong = Destination {
        qkey: QKEY + 1,
        ..to
    };
    a.send(ha.qp, &send(ha.mr.id, count.into(), 8, Some(wrong)))?;
    for (n, size) in (0..).zip(sizes) {
        a.send(ha.qp, &send(ha.mr.id, n, size, Some(to)))?;
    }
    let sent = reap(a, ha.send_cq, count + 1, WAIT)?;
    ensure!(
        sent.len() == sizes.len() + 1,
        "{} sends completed",
        sent.len()
    );
    let received = reap(b, hb.recv_cq, count, WAIT)?;
    ensure!(
        received.len() == sizes.len(),
        "{} datagrams arrived, not {}: {received:?}",
        received.len(),
        sizes.len()
    );
    ensure!(
        reap(b, hb.recv_cq, 1, SILENCE)?.is_empty(),
        "the one with the wrong Q_Key arrived"
    );
    let ends = (
        a.gid(scenario.route),
        address.unwrap_or_else(|| b.gid(scenario.route)),
    );
    for ((n, size), wc) in (0_u64..).zip(sizes).zip(&received) {
        check_datagram(b, &hb, (n, size), wc, (ends, ha.qpn))?;
    }
    Ok(sizes.len() as u64)
}

/// Completion, header and contents of datagram `n` of `size` bytes.
fn check_datagram(
    end: &mut dyn End,
    half: &Half,
    (n, size): (u64, u32),
    wc: &Wc,
    (ends, from): ((Gid, Gid), u32),
) -> Result<()> {
    let wanted = Wc {
        wr: n,
        status: 0,
        opcode: 128,
        len: size + 40,
        imm: Some(u32::try_from(n)?),
        inv: None,
        datagram_from: Some(from),
    };
    ensure!(
        *wc == wanted,
        "{} received {wc:?}, not {wanted:?}",
        end.name()
    );
    let hash = end.hash(half.mr.id, n * STRIDE + GRH, size.into())?;
    ensure!(hash == content(n, size), "datagram {n} has other bytes");
    let header = end.peek(half.mr.id, n * STRIDE, GRH)?;
    let read = addresses(&header);
    ensure!(
        read == Some(ends),
        "the header of datagram {n} says {read:?}, not {ends:?}: {header:02x?}"
    );
    Ok(())
}

/// Source and destination in the 40 bytes: an IPv6 header, or 20 bytes and an IPv4 header.
fn addresses(header: &[u8]) -> Option<(Gid, Gid)> {
    let v4 = |at: usize| {
        let octets: [u8; 4] = header.get(at..at + 4)?.try_into().ok()?;
        Some(Gid::from(IpAddr::from(Ipv4Addr::from(octets))))
    };
    let v6 = |at: usize| {
        let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
        Some(Gid::from(IpAddr::from(Ipv6Addr::from(octets))))
    };
    if *header.first()? >> 4 == 6 {
        Some((v6(8)?, v6(24)?))
    } else {
        (*header.get(20)? == 0x45).then_some((v4(32)?, v4(36)?))
    }
}

/// A group on a network.
fn group_of(route: Route) -> Gid {
    if route.v6 {
        Gid::from(IpAddr::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0x77, 1)))
    } else {
        Gid::from(IpAddr::from(Ipv4Addr::new(239, 77, 0, 1)))
    }
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut list = Vec::new();
    let mut push = |name: &str, route, bytes, smoke, play: fn(&mut Stage, &Scenario) -> _| {
        for direction in Direction::EACH {
            list.push(Scenario {
                name: name.to_owned(),
                direction,
                route,
                mtu: mtu(bytes),
                smoke,
                run: Box::new(play),
            });
        }
    };
    for route in [Route::V4, Route::V6] {
        for bytes in [1024, 4096] {
            push("UC: all operations and sizes", route, bytes, false, uc);
        }
        push(
            "UD: all sizes, a wrong Q_Key",
            route,
            4096,
            !route.v6,
            |s, c| ud(s, c, false),
        );
        push("UD: to a group", route, 4096, false, |s, c| ud(s, c, true));
    }
    push("UC: 5 % lost", Route::V4, 1024, false, uc_loss);
    list
}
