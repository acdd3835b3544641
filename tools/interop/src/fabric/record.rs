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

/// A frame went on to its receiver.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Which one.
    frame: usize,
    /// Frames that had come until then.
    behind: usize,
}

/// The frames of one scenario.
#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    /// In the order in which they came.
    pub frames: Vec<Seen>,
    /// Frames that went on, by number, in the order in which they did: one that others overtook
    /// behind them, one that was doubled twice.
    forwarded: Vec<Arrival>,
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
            forwarded: Vec::new(),
            bytes: 0,
            not_kept: 0,
        }
    }

    /// What number the next frame gets that is added.
    pub(crate) fn next(&self) -> u64 {
        self.frames.len() as u64 + self.not_kept
    }

    /// The frame of this number went on to its receiver.
    pub(crate) fn forward(&mut self, number: u64) {
        if let Ok(frame) = usize::try_from(number) {
            let behind = self.frames.len();
            self.forwarded.push(Arrival { frame, behind });
        }
    }

    /// The RoCE packets that one side sent, undamaged, in the order in which they reached the
    /// other.
    pub(crate) fn arrived(&self, from: Side) -> impl Iterator<Item = (&Seen, Roce)> {
        self.forwarded
            .iter()
            .filter_map(|arrival| self.frames.get(arrival.frame))
            .filter(move |seen| seen.from == from && seen.fate != Fate::Corrupted)
            .filter_map(|seen| seen.packet.map(|packet| (seen, packet)))
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

    /// Takes away all frames from number `from` on.
    pub(crate) fn split_off(&mut self, from: usize) -> Self {
        let frames = self.frames.split_off(from.min(self.frames.len()));
        let (before, mut later): (_, Vec<Arrival>) = self
            .forwarded
            .iter()
            .partition(|arrival| arrival.frame < from);
        self.forwarded = before;
        for arrival in &mut later {
            arrival.frame -= from;
            arrival.behind -= from;
        }
        let size = frames.iter().map(|seen| seen.frame.len()).sum();
        self.bytes -= size;
        Self {
            started: self.started,
            frames,
            forwarded: later,
            bytes: size,
            not_kept: std::mem::take(&mut self.not_kept),
        }
    }

    /// The RoCE packets for people, one a line, with what became of them and where those that others
    /// overtook arrived.
    pub(crate) fn story(&self) -> String {
        let mut text = String::new();
        let mut arrivals = self.forwarded.iter().peekable();
        for (number, seen) in (1..).zip(&self.frames) {
            if let Some(packet) = seen.packet {
                text += &format!(
                    "{number:6} {:>12.6} {}",
                    seen.at.as_secs_f64(),
                    line(seen, packet)
                );
                text += match seen.fate {
                    Fate::Forwarded => "\n",
                    Fate::Duplicated => ", doubled\n",
                    Fate::Delayed => ", held back\n",
                    Fate::Corrupted => ", damaged\n",
                    Fate::Dropped => ", lost\n",
                    Fate::Cut => ", lost in the outage\n",
                    Fate::Overflow => ", lost because its receiver is slow\n",
                };
            }
            while let Some(arrival) = arrivals.next_if(|arrival| arrival.behind <= number) {
                let late = self.frames.get(arrival.frame);
                let late = late.filter(|seen| seen.fate == Fate::Delayed);
                if let Some((seen, packet)) = late.and_then(|seen| Some((seen, seen.packet?))) {
                    let which = arrival.frame + 1;
                    text += &format!("{:20}{} arrives: frame {which}\n", "", line(seen, packet));
                }
            }
        }
        text
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

/// "rxe 0x0e PSN 0x000012".
fn line(seen: &Seen, packet: Roce) -> String {
    let from = match seen.from {
        Side::Xroce => "xroce",
        Side::Vm => "rxe",
    };
    let mut text = format!("{from:5} {:#04x} PSN {:#08x}", packet.opcode, packet.psn);
    if let Some(syndrome) = packet.syndrome {
        text += &format!(" syndrome {syndrome:#04x}");
    }
    if let Some(len) = packet.read_len {
        text += &format!(" READ of {len} B");
    }
    text
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
    use super::super::look::Class;
    use super::*;
    use crate::clock;

    fn packet(psn: u32) -> Roce {
        Roce {
            class: Class::Request,
            opcode: 4,
            dest_qpn: 17,
            psn,
            ack_req: false,
            syndrome: None,
            read_len: None,
            bth_at: 42,
            end: 60,
        }
    }

    fn arrived(record: &Record, from: Side) -> Vec<u32> {
        record.arrived(from).map(|(_, packet)| packet.psn).collect()
    }

    #[test]
    fn packets_arrive_in_the_order_in_which_they_went_on() {
        let mut record = Record::new(clock::now());
        let mut add = |from, psn, fate, passes: &[u64]| {
            record.add(from, vec![0; 60], Some(packet(psn)), fate);
            passes.iter().for_each(|&number| record.forward(number));
        };
        add(Side::Vm, 0, Fate::Delayed, &[]);
        add(Side::Xroce, 9, Fate::Forwarded, &[1]);
        add(Side::Vm, 1, Fate::Duplicated, &[2, 2, 0]);
        add(Side::Vm, 2, Fate::Dropped, &[]);
        add(Side::Vm, 3, Fate::Corrupted, &[4]);
        add(Side::Vm, 4, Fate::Delayed, &[]);
        add(Side::Vm, 5, Fate::Forwarded, &[6, 5]);
        assert_eq!(record.next(), 7);
        assert_eq!(arrived(&record, Side::Vm), [1, 1, 0, 5, 4]);
        assert_eq!(arrived(&record, Side::Xroce), [9]);

        let story = record.story();
        let late = story
            .lines()
            .position(|l| l.ends_with("PSN 0x000000 arrives: frame 1"));
        assert_eq!(late, Some(3), "{story}");
        assert_eq!(story.lines().count(), 9, "{story}");

        let behind = record.split_off(3);
        assert_eq!(arrived(&record, Side::Vm), [1, 1, 0]);
        assert_eq!(arrived(&behind, Side::Vm), [5, 4]);
        assert_eq!((record.frames.len(), behind.frames.len()), (3, 4));
        assert_eq!((record.bytes, behind.bytes), (180, 240));
    }
}
