//! How near xroce comes to what AF_XDP itself carries on the same link: packets of the protocol
//! against bare frames of the same length, one way, two processes, the same rings. A bare
//! receiver, too, tells the sender how far it is: on a machine whose cores are shared, a flood
//! without it measures mostly how many frames a receiver without a core loses.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::PATIENCE;
use super::child::{Child, Line};
use super::stage::Stage;
use crate::perf::plan::{Op, size_name};
use crate::perf::raw::RawReport;
use crate::perf::report::rate;

/// Ethernet 14, IPv4 20, UDP 8, BTH 12 and ICRC 4 bytes around the payload of a packet.
const HEADERS: usize = 58;
/// What is compared: a packet rate with small messages, a bandwidth with large ones.
const COMPARED: [(Op, u32); 2] = [(Op::Send, 64), (Op::Write, 65_536)];

/// Rounds of each comparison, in which the two take turns.
const ROUNDS: usize = 3;

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    op: Op,
    size: u32,
    /// Length of its packets as frames, in bytes.
    frame: usize,
    /// Data packets a second with xroce, median of the rounds.
    packets_per_s: f64,
    /// Bare frames a second, median of the rounds.
    raw_frames_per_s: f64,
    /// The one divided by the other in each round, ascending.
    ratios: Vec<f64>,
    /// Their median.
    ratio: f64,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |r: Option<&f64>| r.copied().unwrap_or(f64::NAN);
        write!(
            f,
            "{} of {}, {} byte frames: xroce {} packets/s, raw AF_XDP {} frames/s, ratio {:.2} \
             ({:.2} to {:.2} in {ROUNDS} rounds)",
            self.op,
            size_name(self.size),
            self.frame,
            rate(self.packets_per_s),
            rate(self.raw_frames_per_s),
            self.ratio,
            spread(self.ratios.first()),
            spread(self.ratios.last()),
        )
    }
}

/// Compares on the link of the stage, if it is one; each measurement takes so many seconds.
///
/// # Errors
/// A measurement failed, or the user interrupts.
pub(crate) fn compare(stage: &Stage, path_mtu: u32, seconds: f64) -> Result<Vec<Ratio>> {
    if stage.raw(HEADERS, seconds).is_none() {
        return Ok(Vec::new());
    }
    super::note(&format!(
        "now in turn with bare AF_XDP frames, {ROUNDS} rounds each"
    ));
    COMPARED
        .iter()
        .map(|&(op, size)| compare_one(stage, op, size, path_mtu, seconds))
        .collect()
}

fn compare_one(stage: &Stage, op: Op, size: u32, path_mtu: u32, seconds: f64) -> Result<Ratio> {
    let frame = size.min(path_mtu) as usize + HEADERS;
    let packets = f64::from(size.div_ceil(path_mtu.max(1)));
    let (mut ours, mut raws, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let raw = raw_rate(stage, frame, seconds)
            .with_context(|| format!("raw AF_XDP with {frame} byte frames"))?;
        let name = op.to_string().to_lowercase();
        let (size, seconds) = (size.to_string(), seconds.to_string());
        let args = ["--op", &name, "--size", &size, "--seconds", &seconds];
        let report = super::measure(stage, &args, &|_| {})?;
        let bandwidth = report.results.first().and_then(|r| r.bandwidth);
        let our = bandwidth.map_or(0.0, |b| b.messages_per_s) * packets;
        ours.push(our);
        raws.push(raw.frames_per_s);
        ratios.push(our / raw.frames_per_s.max(1.0));
    }
    for list in [&mut ours, &mut raws, &mut ratios] {
        list.sort_by(f64::total_cmp);
    }
    let median = |list: &[f64]| list.get(list.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(Ratio {
        op,
        size,
        frame,
        packets_per_s: median(&ours),
        raw_frames_per_s: median(&raws),
        ratio: median(&ratios),
        ratios,
    })
}

/// What a receiver of bare frames counts.
fn raw_rate(stage: &Stage, frame: usize, seconds: f64) -> Result<RawReport> {
    let Some((receiver, sender)) = stage.raw(frame, seconds) else {
        bail!("there is no link");
    };
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
