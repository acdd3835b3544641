//! `xroce perf raw`: what AF_XDP itself carries on a link, on a port opened as for the protocol.

use std::io::Write;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::perf::args::RawArgs;
use crate::perf::report::rate;

/// What one end found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RawReport {
    /// Version of this format.
    pub schema: u32,
    /// Port of this end.
    pub port: String,
    /// Frame length in bytes, Ethernet header included, as far as this end knows.
    pub frame: usize,
    /// Frames sent or received.
    pub frames: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Frames a second.
    pub frames_per_s: f64,
    /// All bytes of the frames, in 10^9 bits a second.
    pub gbit_per_s: f64,
    /// Round trips (ping).
    pub latency: Option<crate::perf::measure::quantiles::Quantiles>,
    /// Answers that did not come (ping).
    pub lost: u64,
}

impl RawReport {
    fn line(&self, verb: &str) -> String {
        match &self.latency {
            Some(l) => format!(
                "{}: {} round trips of {} bytes, p50 {:.2} µs, p99 {:.2} µs, {} lost",
                self.port,
                l.samples,
                self.frame,
                micros(l.p50_ns),
                micros(l.p99_ns),
                self.lost
            ),
            None => format!(
                "{}: {verb} {} frames of {} bytes, {} frames/s, {:.3} Gb/s",
                self.port,
                self.frames,
                self.frame,
                rate(self.frames_per_s),
                self.gbit_per_s
            ),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong and what to do.
pub(crate) fn run(args: &RawArgs, out: &mut dyn Write) -> Result<()> {
    if let Some(core) = args.core {
        crate::perf::device::port::pin(core)?;
    }
    #[cfg(feature = "xdp")]
    return measure::run(args, out);
    #[cfg(not(feature = "xdp"))]
    {
        let _ = (out, RawReport::line);
        Err(crate::perf::device::port::without_xdp())
    }
}

#[cfg(feature = "xdp")]
mod measure {
    use std::io::Write;

    use anyhow::{Context, Result, bail};
    use hdrhistogram::Histogram;
    use xroce_engine::clock;
    use xroce_net::datapath::Datapath;
    use xroce_net::neigh;
    use xroce_net::xdp::raw::{MIN_FRAME, RawCount, RawEnd, RawPath};
    use xroce_wire::newtypes::Gid;

    use super::RawReport;
    use crate::perf::args::{Poll, RING, RawArgs, RawRole};
    use crate::perf::device::port::{interface_address, xdp_port};
    use crate::perf::measure::quantiles::Quantiles;
    use crate::perf::report::SCHEMA;
    use crate::stop;

    /// The other end has stopped when nothing came for so long, in ns.
    const QUIET_NS: u64 = 200_000_000;
    /// A neighbour is waited for so long, in ms.
    const RESOLVE_MS: u64 = 3_000;

    /// A receiver that knows the sender gives it leave to go on after so many frames.
    const CREDIT: u64 = 64;
    /// A sender that hears nothing for so long has lost frames or leave, and goes on, in ns.
    const STALL_NS: u64 = 20_000_000;
    /// Turns without work before the core is offered to others, if asked to.
    const SPINS: u32 = 64;

    /// The clock for the loops below; after Ctrl-C it is so late that they end.
    fn now() -> u64 {
        if stop::requested() {
            u64::MAX
        } else {
            clock::now().as_nanos()
        }
    }

    pub(crate) fn run(args: &RawArgs, out: &mut dyn Write) -> Result<()> {
        let interface = neigh::interface(&args.dev)?;
        let local = interface_address(&interface, None, args.to)?;
        let (dst, dst_mac) = match args.to {
            Some(to) => (
                to.to_canonical(),
                neigh::resolve(interface.index, local, to, RESOLVE_MS)?,
            ),
            // Nothing is sent.
            None if args.role == RawRole::Receive => (local, interface.mac),
            None => bail!("give the address of the other end with --to"),
        };
        let path = RawPath {
            src_mac: interface.mac,
            dst_mac,
            src: Gid::from(local),
            dst: Gid::from(dst),
            src_port: 0xc000,
        };
        let mut port = xdp_port(&args.dev, args.queue, RING, args.xdp_mode, Vec::new())?;
        let name = port.caps().name.clone();
        let max = port.caps().max_frame;
        if args.frame > max {
            bail!(
                "a frame of {} bytes does not fit the link: --frame {max} at most",
                args.frame
            );
        }
        let frame = match args.role {
            // Leave to go on is as short as a packet can be.
            RawRole::Receive if dst.is_ipv4() => MIN_FRAME,
            RawRole::Receive => MIN_FRAME + 20,
            RawRole::Send | RawRole::Echo | RawRole::Ping => args.frame,
        };
        let mut end = RawEnd::new(&mut port, &path, frame)?;
        if !args.json {
            writeln!(out, "{name} as {local}")?;
        } else if matches!(args.role, RawRole::Receive | RawRole::Echo) {
            // Whoever started this one may start the other end.
            writeln!(out, "ready")?;
        }
        out.flush()?;
        let (report, verb) = measure(args, &mut end, name)?;
        stop::check()?;
        let text = if args.json {
            serde_json::to_string(&report)?
        } else {
            report.line(verb)
        };
        writeln!(out, "{text}").context("cannot write the results")
    }

    fn measure(
        args: &RawArgs,
        end: &mut RawEnd<'_>,
        port: String,
    ) -> Result<(RawReport, &'static str)> {
        let duration_ns = args.seconds * 1_000_000;
        let patience_ns = args.timeout * 1_000_000;
        let mut report = RawReport {
            schema: SCHEMA,
            port,
            frame: args.frame,
            frames: 0,
            seconds: 0.0,
            frames_per_s: 0.0,
            gbit_per_s: 0.0,
            latency: None,
            lost: 0,
        };
        let verb = match args.role {
            RawRole::Send => {
                report.count(&send(args, end, duration_ns)?);
                "sent"
            }
            RawRole::Receive => {
                report.count(&receive(args, end, patience_ns)?);
                "received"
            }
            RawRole::Echo => {
                report.frames = end.echo(QUIET_NS, patience_ns, now)?;
                "answered"
            }
            RawRole::Ping => {
                let mut h =
                    Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).context("histogram")?;
                report.lost = end.ping(duration_ns, now, |ns| h.saturating_record(ns))?;
                report.frames = h.len();
                report.latency = Some(Quantiles::of(&h));
                "answered"
            }
        };
        stop::check()?;
        if report.frames == 0 {
            bail!(
                "no frame came within {} s: is the other end running, and does --to name an \
                 address of its interface?",
                args.timeout as f64 / 1e3
            );
        }
        Ok((report, verb))
    }

    /// What to do in a turn without work.
    fn rest(poll: Poll, idle: &mut u32) {
        *idle += 1;
        if poll == Poll::Adaptive && *idle >= SPINS {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Sends for `duration_ns`; with a window, only as much as the receiver gives leave for.
    fn send(args: &RawArgs, end: &mut RawEnd<'_>, duration_ns: u64) -> Result<RawCount> {
        let (batch, window) = (u64::from(args.batch), u64::from(args.window));
        let mut count = RawCount::default();
        let (mut allowed, mut idle) = (window, 0);
        let start = now();
        let mut moved = start;
        loop {
            let time = now();
            count.nanos = time.saturating_sub(start);
            if count.nanos >= duration_ns {
                break;
            }
            allowed += end.receive()?.frames * CREDIT;
            let sent = if window == 0 || count.frames + batch <= allowed {
                end.send(args.batch.into())? as u64
            } else {
                0
            };
            if sent > 0 {
                count.frames += sent;
                (moved, idle) = (time, 0);
            } else {
                rest(args.poll, &mut idle);
                if time.saturating_sub(moved) > STALL_NS {
                    (allowed, moved) = (count.frames + window, time);
                }
            }
        }
        count.bytes = count.frames * args.frame as u64;
        Ok(count)
    }

    /// Receives until nothing comes any more; tells the sender after every [`CREDIT`] frames.
    fn receive(args: &RawArgs, end: &mut RawEnd<'_>, patience_ns: u64) -> Result<RawCount> {
        let mut count = RawCount::default();
        let (mut owed, mut idle) = (0, 0);
        let (mut first, mut last) = (now(), now());
        loop {
            let got = end.receive()?;
            if got.frames == 0 {
                let limit = if count.frames == 0 {
                    patience_ns
                } else {
                    QUIET_NS
                };
                if now().saturating_sub(last) > limit {
                    break;
                }
                rest(args.poll, &mut idle);
                continue;
            }
            (last, idle) = (now(), 0);
            if count.frames == 0 {
                // The first burst only starts the clock.
                first = last;
            }
            count.frames += got.frames;
            count.bytes += got.bytes;
            owed += got.frames;
            while args.to.is_some() && owed >= CREDIT {
                // What does not leave now is made up for by the sender's patience.
                end.send(1)?;
                owed -= CREDIT;
            }
        }
        count.nanos = last.saturating_sub(first);
        Ok(count)
    }

    impl RawReport {
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        fn count(&mut self, count: &RawCount) {
            self.frames = count.frames;
            if let Some(len) = count.bytes.checked_div(count.frames) {
                self.frame = usize::try_from(len).unwrap_or(usize::MAX);
            }
            self.seconds = count.nanos as f64 / 1e9;
            self.frames_per_s = count.frames_per_second();
            self.gbit_per_s = count.gigabits_per_second();
        }
    }
}
