//! `xroce capture`: what a device of the daemon sends and receives, as pcapng or as lines.
//!
//! | module | what |
//! |---|---|
//! | [`session`] | asks the daemon, and takes frames out of the ring that both share |
//! | [`synth`] | headers for frames whose own ones the kernel kept |
//! | [`mod@file`] | pcapng |

mod file;
mod session;
mod synth;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use xroce_api::message::{CaptureSpec, CaptureStats, Direction, SNAPLEN_MAX};
use xroce_control::SOCKET_DEFAULT;
use xroce_control::capture::{ENTRIES_MAX, ENTRIES_PER_MIB, Header};
use xroce_engine::clock;
use xroce_proto::time::{Duration, Instant};
use xroce_wire::newtypes::{Gid, Qpn};

use crate::decode::Live;
use crate::stop;
use file::PcapNgFile;
use session::Session;
use synth::whole;

/// Longest wait before Ctrl-C and the end of the time are looked for.
const LOOK: StdDuration = StdDuration::from_millis(100);
/// Largest ring, MiB.
const BUFFER_MAX: u32 = ENTRIES_MAX / ENTRIES_PER_MIB;
/// Numbers of queue pairs have 24 bits.
const QPN_MAX: u32 = (1 << 24) - 1;

/// Capture what a device of the daemon sends and receives.
///
/// Frames over AF_XDP pass by the kernel, so that tcpdump sees none of them. The daemon copies them
/// here as they pass; this needs to be run by root or the user of the daemon, once for a device at
/// a time. Filters are applied by the daemon, before anything is copied. Ends with Ctrl-C.
#[derive(Args, Clone, Debug)]
pub(crate) struct CaptureArgs {
    /// Where the daemon listens
    #[arg(long, value_name = "PATH", default_value = SOCKET_DEFAULT)]
    pub(crate) socket: PathBuf,
    /// Name of the device [default: the daemon's first]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Only packets that this queue pair sends or receives, be it here or at the peer
    #[arg(long, value_name = "N", value_parser = qpn)]
    pub(crate) qp: Option<u32>,
    /// Only packets to or from this address
    #[arg(long, value_name = "ADDR")]
    pub(crate) peer: Option<IpAddr>,
    /// Only what is received, or only what is sent
    #[arg(long)]
    pub(crate) direction: Option<Way>,
    /// Only what has to do with losses and errors
    ///
    /// NAKs, RNR NAKs, selective acknowledgements, congestion notifications, requests sent before,
    /// and what is no readable RoCE packet.
    #[arg(long)]
    pub(crate) errors: bool,
    /// One packet of so many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sample: u32,
    /// Bytes to keep of each frame; of a UDP device, behind its UDP header
    #[arg(long, value_name = "N", default_value_t = SNAPLEN_MAX,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAPLEN_MAX)))]
    pub(crate) snaplen: u32,
    /// MiB of frames that wait to be written, a power of two
    #[arg(long, value_name = "MIB", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(BUFFER_MAX)))]
    pub(crate) buffer: u32,
    /// End after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Write pcapng instead of lines; "-" is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
}

/// The way of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Way {
    /// Received
    In,
    /// Sent
    Out,
}

fn qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    let number = number.map_err(|e| format!("{e}: a number like 17 or 0x11 is wanted"))?;
    if number > QPN_MAX {
        return Err(format!("queue pairs have numbers up to {QPN_MAX:#x}"));
    }
    Ok(number)
}

/// Longest duration, seconds: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let given: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if !(given > 0.0 && given <= SECONDS_MAX) {
        return Err(format!(
            "more than 0 and at most {SECONDS_MAX} seconds can be"
        ));
    }
    let nanos = StdDuration::from_secs_f64(given).as_nanos();
    Ok(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

impl CaptureArgs {
    fn spec(&self) -> CaptureSpec {
        CaptureSpec {
            qp: self.qp.map(Qpn::new),
            peer: self.peer.map(Gid::from),
            direction: self.direction.map(|way| match way {
                Way::In => Direction::In,
                Way::Out => Direction::Out,
            }),
            errors: self.errors,
            sample: self.sample,
            snaplen: self.snaplen,
            entries: self.buffer.saturating_mul(ENTRIES_PER_MIB),
        }
    }

    /// The filters in words; none if there are none.
    fn filters(&self) -> Option<String> {
        let mut words = Vec::new();
        words.extend(self.qp.map(|n| format!("queue pair {n:#x}")));
        words.extend(self.peer.map(|addr| format!("peer {addr}")));
        words.extend(self.direction.map(|way| match way {
            Way::In => "received only".to_owned(),
            Way::Out => "sent only".to_owned(),
        }));
        words.extend(self.errors.then(|| "losses and errors only".to_owned()));
        words.extend((self.sample > 1).then(|| format!("one of {}", self.sample)));
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// Where packets go.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one, for the life of the process"
)]
enum Sink<'o> {
    Lines(Live<'o>),
    File(PcapNgFile<'o>),
}

impl<'o> Sink<'o> {
    fn packet(&mut self, header: &Header, frame: &[u8], link: u16) -> io::Result<()> {
        let headers = whole_len(header, frame);
        match self {
            Self::Lines(live) => live.packet(header.ts_ns, link, headers, frame),
            Self::File(file) => file.packet(header, headers, frame),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Lines(live) => live.flush(),
            Self::File(file) => file.flush(),
        }
    }
}

/// Bytes that a packet had, with the headers in front of it.
fn whole_len(header: &Header, packet: &[u8]) -> u32 {
    let kept = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    kept.saturating_add(header.len - header.kept)
}

/// Runs the command.
///
/// # Errors
/// The daemon does not answer, refuses or ends; or nothing can be written. What was captured by
/// then has been written.
pub(crate) fn run(args: &CaptureArgs, out: &mut dyn Write) -> Result<()> {
    stop::install()?;
    let to_stdout = args
        .write
        .as_ref()
        .is_none_or(|path| path.as_os_str() == "-");
    // Before anything is captured.
    let out: Box<dyn Write + '_> = match &args.write {
        Some(path) if !to_stdout => {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Box::new(file)
        }
        _ => Box::new(out),
    };
    let text = &mut io::stderr();
    capture(args, out, text)
}

fn capture<'o>(
    args: &CaptureArgs,
    out: Box<dyn Write + 'o>,
    messages: &mut dyn Write,
) -> Result<()> {
    let mut session = Session::begin(&args.socket, args.device.as_deref(), &args.spec())?;
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut sink = match &args.write {
        Some(_) => Sink::File(PcapNgFile::begin(&mut out, args, &session)?),
        None => Sink::Lines(Live::new(&mut out)),
    };
    let began = clock::now();
    let mut taken = Taken::default();
    let until = args.duration.map(|d| began + d);
    let ended = taken.all(args, until, &mut session, &mut sink);
    let stats = match ended {
        Ok(()) => session.end(),
        Err(error) => Err(error),
    };
    let (stats, failed) = match stats {
        Ok(stats) => (Some(stats), None),
        Err(error) => (None, Some(error)),
    };
    // What was in the ring when it ended.
    taken.rest(args, &mut session, &mut sink)?;
    if let (Sink::File(file), Some(stats)) = (&mut sink, &stats) {
        file.end(stats)?;
    }
    sink.flush()?;
    drop(sink);
    let line = summary(&session, &taken, stats.as_ref(), clock::now().since(began));
    // Standard error may be closed: the exit status still tells.
    let _ = writeln!(messages, "{line}");
    failed.map_or(Ok(()), Err)
}

/// What came out of the ring.
#[derive(Debug, Default)]
struct Taken {
    packets: u64,
    bytes: u64,
    cut: u64,
    frame: Vec<u8>,
    packet: Vec<u8>,
}

impl Taken {
    /// Until it is enough.
    fn all(
        &mut self,
        args: &CaptureArgs,
        until: Option<Instant>,
        session: &mut Session,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        loop {
            let now = clock::now();
            let late = until.is_some_and(|until| now >= until);
            if stop::requested() || late || self.is_enough(args) {
                return Ok(());
            }
            if self.one(session, sink)? {
                continue;
            }
            // Whoever reads along sees what there is.
            sink.flush()?;
            let left = until.map(|until| StdDuration::from_nanos(until.since(now).as_nanos()));
            session.wait(left.map_or(LOOK, |left| left.min(LOOK)))?;
        }
    }

    fn is_enough(&self, args: &CaptureArgs) -> bool {
        args.count.is_some_and(|count| self.packets >= count)
    }

    fn rest(
        &mut self,
        args: &CaptureArgs,
        session: &mut Session,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        while !self.is_enough(args) && self.one(session, sink)? {}
        Ok(())
    }

    /// Takes one; whether there was one.
    fn one(&mut self, session: &mut Session, sink: &mut Sink<'_>) -> Result<bool> {
        let Some(header) = session.next(&mut self.frame)? else {
            return Ok(false);
        };
        self.packets += 1;
        self.bytes += u64::from(header.len);
        self.cut += u64::from(header.kept < header.len);
        let packet = match &header.udp {
            None => &self.frame,
            Some(udp) => {
                whole(udp, header.len, &self.frame, &mut self.packet);
                &self.packet
            }
        };
        sink.packet(&header, packet, session.link())?;
        Ok(true)
    }
}

/// What was captured, what was not, and why.
fn summary(
    session: &Session,
    taken: &Taken,
    stats: Option<&CaptureStats>,
    took: Duration,
) -> String {
    let millis = took.as_nanos() / 1_000_000;
    let mut line = format!(
        "{} packets of {} bytes captured on {} ({}) in {}.{:03} s",
        taken.packets,
        taken.bytes,
        session.device,
        session.port,
        millis / 1_000,
        millis % 1_000
    );
    if taken.cut != 0 {
        line.push_str(&format!(", {} of them cut to the snap length", taken.cut));
    }
    let Some(stats) = stats else {
        line.push_str("; the daemon did not say what it dropped");
        return line;
    };
    line.push_str(&format!(
        "; {} passed, {} filtered out, {} left out by sampling, {} dropped",
        stats.seen, stats.filtered, stats.unsampled, stats.dropped
    ));
    let unread = stats.captured.saturating_sub(taken.packets);
    if let Some(reason) = &stats.broken {
        line.push_str(&format!(": the buffer was spoiled: {reason}"));
    } else if stats.dropped != 0 {
        line.push_str(
            " because the buffer was full: a larger --buffer, a shorter --snaplen, a filter or a \
             faster file help",
        );
    }
    if unread != 0 {
        line.push_str(&format!("; {unread} more were captured than asked for"));
    }
    line
}

/// What cannot be of a reply.
fn odd(what: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("the daemon answered something odd: {what}")
}
