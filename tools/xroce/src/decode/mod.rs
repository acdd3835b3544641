//! `xroce decode FILE`: every RoCE packet of a capture, one line each.
//!
//! | module | what |
//! |---|---|
//! | [`capture`], [`pcapng`] | records of a file |
//! | [`link`], [`packet`] | from a record to a judged RoCE packet |
//! | [`text`], [`view`] | a packet as a line, as a JSON object |
//! | [`flow`], [`summary`] | what happened per connection, and how it is counted |
//! | [`psns`], [`reads`] | which PSNs were seen, and how many a READ takes |

mod capture;
mod flow;
#[cfg(test)]
mod flow_tests;
mod link;
mod packet;
mod pcapng;
mod psns;
mod reads;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod view;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use capture::{Capture, CaptureError, Item, Record};
use link::Link;
use packet::{Verdict, judge};
use summary::Summary;
use view::{ErrorView, Seconds, View};

/// Print the RoCE packets of a capture file.
///
/// One line per packet: number in the file, seconds since the first packet, addresses, opcode,
/// destination QP, PSN, flags (A AckReq, SE solicited, M MigReq), headers, payload length, ICRC.
/// Reads Ethernet, raw IP and Linux cooked captures; what is not RoCE is passed over.
#[derive(Args, Clone, Debug)]
pub(crate) struct DecodeArgs {
    /// Capture to read, pcap or pcapng; "-" is standard input
    pub(crate) file: PathBuf,
    /// One JSON object per line instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Counts per opcode and per connection instead of packets
    ///
    /// A connection is one direction: source, destination and destination QP. Missing are PSNs
    /// between others that never appear, in so many gaps (READ requests reserve the PSNs of their
    /// responses); overtaken are packets whose PSN appears for the first time after a higher one,
    /// at most so many places late; duplicates are equal packets within a millisecond and ACKs that
    /// acknowledge nothing new; retransmissions are all others whose PSN appeared before; NAKs and
    /// RNRs count where they are sent from.
    #[arg(long)]
    pub(crate) summary: bool,
}

/// Runs the command. A reader that goes away (`| head`) is no error.
///
/// # Errors
/// The file is missing, empty, no capture, or damaged so that nothing after it can be read. What
/// was readable has been written by then; the error is one line that says what and where.
pub(crate) fn run(args: &DecodeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let stdin = args.file.as_os_str() == "-";
    let name = if stdin {
        "standard input".into()
    } else {
        args.file.display().to_string()
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let result = if stdin {
        decode(io::stdin().lock(), args, &mut out)
    } else {
        let file = File::open(&args.file)
            .with_context(|| format!("cannot open {name}, expected a pcap or pcapng capture"))?;
        decode(io::BufReader::with_capacity(1 << 16, file), args, &mut out)
    };
    // What was decoded before the damage is shown in any case, and before the complaint.
    let result = match (out.flush(), result) {
        (Err(error), Ok(())) => Err(Failure::Output(error)),
        (_, result) => result,
    };
    match result {
        Ok(()) => Ok(()),
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Output(error)) => Err(error).context("cannot write the output"),
        Err(Failure::Input(error)) => Err(error).context(name),
    }
}

/// Why decoding ended early.
enum Failure {
    Input(CaptureError),
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        Self::Input(error)
    }
}

fn decode(input: impl Read, args: &DecodeArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut capture = Capture::open(input)?;
    let mut printer = Printer {
        json: args.json,
        packets: !args.summary,
        ..Printer::new(out)
    };
    let result = loop {
        match capture.next() {
            Ok(Some(Item::Packet(record))) => printer.packet(&record)?,
            Ok(Some(Item::Bad { n, why })) => printer.broken(n, None, &why)?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    printer.end()?;
    result
}

/// Packets as they come, one line each.
pub(crate) struct Live<'o> {
    printer: Printer<'o>,
    n: u64,
}

impl<'o> Live<'o> {
    /// Lines to `out`.
    pub(crate) fn new(out: &'o mut dyn Write) -> Self {
        let printer = Printer::new(out);
        Self { printer, n: 0 }
    }

    /// Prints a packet of a link type that had `wire_len` bytes, unless it is no RoCE.
    ///
    /// # Errors
    /// Of the output.
    pub(crate) fn packet(
        &mut self,
        ts_ns: u64,
        link: u16,
        wire_len: u32,
        data: &[u8],
    ) -> io::Result<()> {
        self.n += 1;
        self.printer.packet(&Record {
            n: self.n,
            ts_ns,
            link,
            wire_len,
            data,
        })
    }

    /// Shows what was printed.
    ///
    /// # Errors
    /// Of the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.printer.out.flush()
    }
}

/// Writes what is asked for.
struct Printer<'o> {
    out: &'o mut dyn Write,
    json: bool,
    /// Packets, rather than the summary.
    packets: bool,
    summary: Summary,
    first_ns: Option<u64>,
    /// Link types already complained about.
    unread_links: HashSet<u16>,
    /// RoCE packets and complaints.
    shown: u64,
    scratch: Vec<u8>,
}

impl<'o> Printer<'o> {
    /// One line of text for each packet.
    fn new(out: &'o mut dyn Write) -> Self {
        Self {
            out,
            json: false,
            packets: true,
            summary: Summary::default(),
            first_ns: None,
            unread_links: HashSet::new(),
            shown: 0,
            scratch: Vec::new(),
        }
    }

    fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let first_ns = *self.first_ns.get_or_insert(record.ts_ns);
        let Some(link) = Link::from_number(record.link) else {
            if !self.unread_links.insert(record.link) {
                self.summary.any();
                return Ok(());
            }
            let why = format!(
                "link type {} is neither Ethernet nor raw IP nor Linux cooked: packets with it are \
                 passed over",
                record.link
            );
            return self.broken(record.n, Some(record.ts_ns), &why);
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = match judge(record, link, &mut scratch) {
            Verdict::Foreign => {
                self.summary.any();
                Ok(())
            }
            Verdict::Broken(why) => self.broken(record.n, Some(record.ts_ns), &why),
            Verdict::Roce(roce) => {
                self.shown += 1;
                self.summary.any();
                if !self.packets {
                    // Grows with every connection: not for lines, which may come for days.
                    self.summary.roce(record.ts_ns, &roce);
                }
                let since = record.ts_ns.saturating_sub(first_ns);
                match (self.packets, self.json) {
                    (false, _) => Ok(()),
                    (true, true) => View::new(record.n, record.ts_ns, &roce)
                        .map_err(io::Error::from)
                        .and_then(|view| self.json_line(&view)),
                    (true, false) => {
                        let captured = (record.data.len(), record.wire_len);
                        text::line(self.out, record.n, since, captured, &roce)
                    }
                }
            }
        };
        self.scratch = scratch;
        result
    }

    /// A packet that cannot be shown.
    fn broken(&mut self, n: u64, ts_ns: Option<u64>, why: &str) -> io::Result<()> {
        self.shown += 1;
        self.summary.any();
        self.summary.broken();
        if self.json && self.packets {
            return self.json_line(&ErrorView { n, error: why });
        }
        if self.json {
            // The summary counts it.
            return Ok(());
        }
        let since = ts_ns
            .zip(self.first_ns)
            .map_or(0, |(ts, first)| ts.saturating_sub(first));
        if self.packets {
            writeln!(self.out, "{n} {} {why}", Seconds(since))
        } else {
            writeln!(self.out, "packet {n}: {why}")
        }
    }

    fn json_line(&mut self, view: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, view)?;
        writeln!(self.out)
    }

    fn end(&mut self) -> io::Result<()> {
        match (self.packets, self.json) {
            (false, true) => self.summary.json(self.out),
            (false, false) => self.summary.text(self.out),
            (true, false) if self.shown == 0 => {
                writeln!(self.out, "no RoCE packet in this capture")
            }
            (true, _) => Ok(()),
        }
    }
}
