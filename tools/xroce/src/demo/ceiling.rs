//! How near xroce comes to what AF_XDP itself carries on the same link: packets of the protocol
//! against bare frames of the same length, one way, two processes.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::PATIENCE;
use super::child::{Child, Line};
use super::stage::Stage;
use crate::perf::plan::{Op, size_name};
use crate::perf::raw::RawReport;
use crate::perf::report::{Report, rate};

/// Ethernet 14, IPv4 20, UDP 8, BTH 12 and ICRC 4 bytes around the payload of a packet.
const HEADERS: usize = 58;
/// What is compared: a packet rate with small messages, a bandwidth with large ones.
const COMPARED: [(Op, u32); 2] = [(Op::Send, 64), (Op::Write, 65_536)];

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    op: Op,
    size: u32,
    /// Length of its packets as frames, in bytes.
    frame: usize,
    /// Data packets a second with xroce.
    packets_per_s: f64,
    /// Bare frames a second.
    raw_frames_per_s: f64,
    /// The one divided by the other.
    ratio: f64,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "raw AF_XDP, {} byte frames: {} frames/s; xroce, {} of {}: {} packets/s; ratio {:.2}",
            self.frame,
            rate(self.raw_frames_per_s),
            self.op,
            size_name(self.size),
            rate(self.packets_per_s),
            self.ratio
        )
    }
}

/// Measures the raw rates of the stage, if it has any, for what `report` found; each for so long.
///
/// # Errors
/// A measurement failed, or the user interrupts.
pub(crate) fn compare(stage: &Stage, report: &Report, seconds: f64) -> Result<Vec<Ratio>> {
    let mut ratios = Vec::new();
    for (op, size) in COMPARED {
        let row = report.results.iter().find(|r| r.op == op && r.size == size);
        let Some(bandwidth) = row.and_then(|r| r.bandwidth) else {
            continue;
        };
        let frame = size.min(report.path_mtu) as usize + HEADERS;
        let Some((receiver, sender)) = stage.raw(frame, seconds) else {
            continue;
        };
        let raw = raw_rate(receiver, sender)
            .with_context(|| format!("raw AF_XDP with {frame} byte frames"))?;
        let packets_per_s =
            bandwidth.messages_per_s * f64::from(size.div_ceil(report.path_mtu.max(1)));
        ratios.push(Ratio {
            op,
            size,
            frame,
            packets_per_s,
            raw_frames_per_s: raw.frames_per_s,
            ratio: packets_per_s / raw.frames_per_s.max(1.0),
        });
    }
    Ok(ratios)
}

/// What the receiver counted.
fn raw_rate(receiver: std::process::Command, sender: std::process::Command) -> Result<RawReport> {
    let mut receiver = Child::spawn("raw receiver", receiver)?;
    loop {
        match receiver.next(PATIENCE)? {
            Line::Out(line) if line == "ready" => break,
            Line::Out(_) | Line::Err(_) => {}
            Line::End => {
                receiver.finish(PATIENCE)?;
                bail!("the raw receiver ended without a word");
            }
        }
    }
    let mut sender = Child::spawn("raw sender", sender)?;
    sender.finish(PATIENCE)?;
    let mut json = String::new();
    loop {
        match receiver.next(PATIENCE)? {
            Line::Out(line) => json.push_str(&line),
            Line::Err(_) => {}
            Line::End => break,
        }
    }
    receiver.finish(PATIENCE)?;
    serde_json::from_str(&json).context("the raw receiver's report")
}
