//! What went over the cable in one scenario.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::fault::Side;
use super::look::Roce;

/// Bytes kept of one scenario; what comes after is counted but not kept.
const KEEP_MAX: usize = 256 << 20;

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It went on as it was.
    Forwarded,
    /// It went on twice.
    Duplicated,
    /// Others overtook it.
    Delayed,
    /// It went on with one byte changed.
    Corrupted,
    /// A rule dropped it.
    Dropped,
    /// The cable was cut.
    Cut,
    /// Its receiver was too slow: no fault of the scenario, but a loss.
    Overflow,
}

/// A frame as its sender made it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Since the start of the scenario.
    pub at: Duration,
    /// Who sent it.
    pub from: Side,
    /// All of it.
    pub frame: Vec<u8>,
    /// The RoCE packet in it.
    pub packet: Option<Roce>,
    /// What became of it.
    pub fate: Fate,
}

/// The frames of one scenario.
#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    /// In the order in which they came.
    pub frames: Vec<Seen>,
    bytes: usize,
    /// Frames that came after the limit.
    pub not_kept: u64,
}

impl Record {
    /// An empty one that starts now.
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            started,
            frames: Vec::new(),
            bytes: 0,
            not_kept: 0,
        }
    }

    /// Appends a frame.
    pub(crate) fn add(&mut self, from: Side, frame: Vec<u8>, packet: Option<Roce>, fate: Fate) {
        if self.bytes + frame.len() > KEEP_MAX {
            self.not_kept += 1;
            return;
        }
        self.bytes += frame.len();
        self.frames.push(Seen {
            at: self.started.elapsed(),
            from,
            frame,
            packet,
            fate,
        });
    }

    /// How long one side has sent no RoCE packet.
    pub(crate) fn silence(&self, from: Side) -> Duration {
        let last = self.packets(from).last().map(|(seen, _)| seen.at);
        self.started
            .elapsed()
            .saturating_sub(last.unwrap_or_default())
    }

    /// The RoCE packets that one side sent.
    pub(crate) fn packets(&self, from: Side) -> impl Iterator<Item = (&Seen, Roce)> {
        self.frames
            .iter()
            .filter(move |seen| seen.from == from)
            .filter_map(|seen| seen.packet.map(|packet| (seen, packet)))
    }
}

/// Writes frames as a pcap file with time stamps of microseconds, Ethernet link type.
///
/// # Errors
/// Of the writer.
pub(crate) fn write_pcap<'a>(
    mut to: impl Write,
    frames: impl Iterator<Item = &'a Seen>,
) -> io::Result<()> {
    let mut header = Vec::with_capacity(24);
    header.extend(0xa1b2_c3d4_u32.to_le_bytes());
    header.extend(2_u16.to_le_bytes());
    header.extend(4_u16.to_le_bytes());
    header.extend([0; 8]);
    header.extend(65_535_u32.to_le_bytes());
    header.extend(1_u32.to_le_bytes());
    to.write_all(&header)?;
    for seen in frames {
        let len = u32::try_from(seen.frame.len()).unwrap_or(u32::MAX);
        let seconds = u32::try_from(seen.at.as_secs()).unwrap_or(u32::MAX);
        for word in [seconds, seen.at.subsec_micros(), len, len] {
            to.write_all(&word.to_le_bytes())?;
        }
        to.write_all(&seen.frame)?;
    }
    Ok(())
}
