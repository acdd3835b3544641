//! A RoCE packet as one line of text.

use std::io::{self, Write};

use xroce_wire::syndrome::{CREDIT_UNLIMITED, NakCode, Syndrome, credit_count};

use super::packet::{Icrc, Roce};
use super::view::{Seconds, address};

/// Writes `n time src -> dst opcode qp psn flags headers len icrc`. The time counts from the first
/// packet of the file.
pub(super) fn line(
    out: &mut dyn Write,
    n: u64,
    since_first_ns: u64,
    captured: (usize, u32),
    roce: &Roce<'_>,
) -> io::Result<()> {
    let (f, p) = (&roce.frame, &roce.packet);
    write!(
        out,
        "{n} {} {} -> {} ",
        Seconds(since_first_ns),
        address(f.src()),
        address(f.dst())
    )?;
    if f.is_roce_v1() {
        write!(out, "RoCEv1 ")?;
    }
    if let Some(tag) = f.vlan() {
        write!(out, "vlan {} pcp {} ", tag.vid(), tag.pcp())?;
    }
    write!(out, "{}", p.opcode().name())?;
    write!(
        out,
        " qp {:#08x} psn {:#08x}",
        p.dest_qp().value(),
        p.psn().value()
    )?;
    flags(out, roce)?;
    headers(out, roce)?;
    write!(out, " len {}", p.payload().len())?;
    match roce.icrc {
        Icrc::Unknown => {
            let (held, of) = captured;
            writeln!(
                out,
                " truncated: {held} of {of} bytes captured, icrc unknown"
            )
        }
        known => writeln!(out, " icrc {}", known.text()),
    }
}

/// What is set: AckReq, SE, MigReq, FECN, BECN, congestion experienced, a P_Key of its own.
fn flags(out: &mut dyn Write, roce: &Roce<'_>) -> io::Result<()> {
    let p = &roce.packet;
    let bits = [
        (p.ack_req(), "A"),
        (p.solicited(), "SE"),
        (p.mig_req(), "M"),
        (p.fecn(), "FECN"),
        (p.becn(), "BECN"),
        (roce.frame.tos() & 3 == 3, "CE"),
    ];
    let set: Vec<&str> = bits.into_iter().filter(|b| b.0).map(|b| b.1).collect();
    if !set.is_empty() {
        write!(out, " [{}]", set.join(" "))?;
    }
    if p.pkey().value() != 0xffff {
        write!(out, " pkey {:#06x}", p.pkey().value())?;
    }
    Ok(())
}

fn headers(out: &mut dyn Write, roce: &Roce<'_>) -> io::Result<()> {
    let p = &roce.packet;
    if let Some(h) = p.deth() {
        write!(
            out,
            " qkey {:#010x} from qp {:#08x}",
            h.qkey.value(),
            h.src_qp.value()
        )?;
    }
    if let Some(h) = p.xrceth() {
        write!(out, " srq {:#08x}", h.srqn.value())?;
    }
    if let Some(h) = p.feth() {
        write!(
            out,
            " placement {} selectivity {}",
            h.placement, h.selectivity
        )?;
    }
    if let Some(h) = p.reth() {
        let (va, rkey) = (h.va.value(), h.rkey.value());
        write!(out, " va {va:#x} rkey {rkey:#010x} dmalen {}", h.len)?;
    }
    if let Some(h) = p.atomic() {
        write!(out, " va {:#x} rkey {:#010x}", h.va.value(), h.rkey.value())?;
        write!(out, " swap/add {:#x} compare {:#x}", h.swap_add, h.compare)?;
    }
    if let Some(h) = p.aeth() {
        match h.syndrome {
            Syndrome::Ack {
                credit: CREDIT_UNLIMITED,
            } => write!(out, " ack")?,
            Syndrome::Ack { credit } => {
                write!(
                    out,
                    " ack credits {}",
                    credit_count(credit).unwrap_or_default()
                )?;
            }
            Syndrome::RnrNak { timer } => {
                let us = timer.nanos() / 1_000;
                write!(
                    out,
                    " RNR timer {} ({}.{:02} ms)",
                    timer.code(),
                    us / 1_000,
                    us % 1_000 / 10
                )?;
            }
            Syndrome::Nak(code) => write!(out, " NAK {}", nak(code))?,
            Syndrome::Reserved(byte) => write!(out, " syndrome {byte:#04x} (reserved)")?,
        }
        write!(out, " msn {}", h.msn.value())?;
    }
    if let Some(h) = p.atomic_ack() {
        write!(out, " original {:#x}", h.original)?;
    }
    if let Some(imm) = p.imm() {
        write!(out, " imm {:#010x}", u32::from_be_bytes(imm))?;
    }
    if let Some(rkey) = p.ieth() {
        write!(out, " invalidate {:#010x}", rkey.value())?;
    }
    Ok(())
}

const fn nak(code: NakCode) -> &'static str {
    match code {
        NakCode::PsnSequence => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
        NakCode::InvalidRdRequest => "invalid RD request",
    }
}
