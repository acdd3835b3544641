//! A switch in the kernel whose ports mark and drop as a bottleneck does, for real frames.
//!
//! [`Hop::open`] joins interfaces of this network namespace by the program `hop.bpf.c` of
//! `xroce-xdp-prog`: frames go from one to the other by redirection, a copy at most, and no bridge is
//! involved. Towards each port stands a *phantom queue* ([`PhantomQueue`]): it fills with what is
//! forwarded and drains at a set rate, but holds nothing back. So the rate of the bottleneck and the
//! queue that RED and drop-tail look at are exact, and what a queue adds to the round trip is
//! missing: what lives on marks and losses can be tried with it (DCQCN, retransmission), what lives
//! on delay cannot (Swift).
//!
//! The interfaces belong to the hop while it lives: nothing that arrives at them reaches the
//! kernel's stack. To a veth the kernel redirects only if its other end has an XDP program, or GRO.

use std::io;

use xroce_xdp_prog::{BUCKETS, HopProgram, MAX_PORTS, QueueConfig};

use super::link::{ProgramLink, bpf_error, quiet_libbpf};
use super::{Mode, XdpError};
use crate::neigh;

/// Largest limit of a queue, in bytes.
pub const MAX_LIMIT: u64 = 1 << 36;
/// Highest rate of a queue, in bits per second.
pub const MAX_RATE: u64 = 1_000_000_000_000;
const MILLION: u32 = 1_000_000;

/// A queue that only counts. Bytes are those on the wire: 24 more than a frame has, for preamble,
/// FCS and gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhantomQueue {
    /// Bits per second that drain, up to [`MAX_RATE`]; 0: nothing is queued, marked or does not fit.
    pub rate: u64,
    /// Bytes that fit, up to [`MAX_LIMIT`]; a frame that does not is dropped.
    pub limit: u64,
    /// Backlog in bytes above which ECN-capable packets are marked CE, with a probability that rises
    /// from 0.
    pub kmin: u64,
    /// Backlog in bytes above which all are marked.
    pub kmax: u64,
    /// The probability at `kmax`, in millionths.
    pub pmax_ppm: u32,
    /// Frames dropped at random, whatever the rate, in millionths.
    pub loss_ppm: u32,
}

impl PhantomQueue {
    fn check(&self) -> Result<QueueConfig, XdpError> {
        let refuse = |what: String| Err(XdpError::Config(what));
        if self.rate > MAX_RATE {
            return refuse(format!("rate {} is above {MAX_RATE} bit/s", self.rate));
        }
        if self.limit > MAX_LIMIT {
            return refuse(format!("limit {} is above {MAX_LIMIT} bytes", self.limit));
        }
        if self.kmin > self.kmax || self.kmax > self.limit {
            let (kmin, kmax, limit) = (self.kmin, self.kmax, self.limit);
            return refuse(format!(
                "kmin {kmin}, kmax {kmax}, limit {limit}: each must be at least the one before"
            ));
        }
        for (name, ppm) in [("pmax", self.pmax_ppm), ("loss", self.loss_ppm)] {
            if ppm > MILLION {
                return refuse(format!("{name} {ppm} is above {MILLION} millionths"));
            }
        }
        Ok(QueueConfig {
            // A rate below 8 bit/s is not "no queue".
            rate: self.rate.div_ceil(8),
            limit: self.limit,
            kmin: self.kmin,
            kmax: self.kmax,
            pmax: self.pmax_ppm,
            loss: self.loss_ppm,
        })
    }
}

/// What has gone through a queue since it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueReport {
    /// Frames forwarded.
    pub frames: u64,
    /// Bytes forwarded, on the wire.
    pub bytes: u64,
    /// Frames forwarded that were or had been marked CE where this queue wanted a mark.
    pub marked: u64,
    /// Frames dropped because they did not fit.
    pub overflowed: u64,
    /// Frames dropped at random.
    pub lost: u64,
    /// Largest backlog, in bytes.
    pub deepest: u64,
    /// Frames by the backlog they found.
    seen: [u64; BUCKETS],
    limit: u64,
}

impl QueueReport {
    /// The backlog in bytes that `percent` of the frames found at most, to a 127th of the limit.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> u64 {
        let all: u64 = self.seen.iter().sum();
        let wanted = (all * percent.min(100)).div_ceil(100);
        let mut sum = 0;
        let mut buckets = 0;
        for n in &self.seen {
            sum += n;
            buckets += 1;
            if sum >= wanted {
                break;
            }
        }
        // The upper edge, and never more than there was.
        let last = BUCKETS as u64 - 1;
        self.deepest.min(self.limit * buckets / last)
    }
}

/// Interfaces joined by the program; given back on drop.
#[derive(Debug)]
pub struct Hop {
    // Dropped in this order: the program goes from the interfaces first.
    links: Vec<ProgramLink>,
    program: HopProgram,
    limits: Vec<u64>,
}

impl Hop {
    /// Joins these interfaces of the caller's network namespace, ports 0, 1, … in this order,
    /// without queues.
    ///
    /// # Errors
    /// An interface is missing or down, has a program already or cannot have one; more than 64; no
    /// privileges.
    pub fn open(ifnames: &[impl AsRef<str>], mode: Mode) -> Result<Self, XdpError> {
        if ifnames.len() > MAX_PORTS as usize {
            return Err(XdpError::Config(format!(
                "a hop has at most {MAX_PORTS} ports, not {}",
                ifnames.len()
            )));
        }
        quiet_libbpf();
        let program = HopProgram::load().map_err(|e| bpf_error("loading the XDP program", &e))?;
        let mut links = Vec::with_capacity(ifnames.len());
        for (port, name) in (0..).zip(ifnames) {
            let interface = neigh::interface(name.as_ref())?;
            if !interface.up {
                return Err(XdpError::Down(interface.name));
            }
            program
                .set_port(port, interface.index)
                .map_err(|e| bpf_error("registering an interface with the XDP program", &e))?;
            links.push(ProgramLink::attach(program.fd(), &interface, mode)?);
        }
        Ok(Self {
            limits: vec![0; links.len()],
            links,
            program,
        })
    }

    /// Number of ports.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.links.len()
    }

    fn number(&self, port: usize) -> Result<u32, XdpError> {
        let ports = self.links.len();
        match u32::try_from(port) {
            Ok(number) if port < ports => Ok(number),
            _ => Err(XdpError::Config(format!("no port {port} of {ports}"))),
        }
    }

    /// Sets the queue towards `port`, empties it and begins to count anew.
    ///
    /// # Errors
    /// There is no such port, or a value is out of range.
    pub fn set_queue(&mut self, port: usize, queue: &PhantomQueue) -> Result<(), XdpError> {
        let number = self.number(port)?;
        let config = queue.check()?;
        if let Some(limit) = self.limits.get_mut(port) {
            *limit = config.limit;
        }
        self.program
            .set_queue(number, &config)
            .map_err(|e| bpf_error("setting a queue of the XDP program", &e))
    }

    /// What has gone to `port` since its queue was set.
    ///
    /// # Errors
    /// There is no such port.
    pub fn queue(&self, port: usize) -> Result<QueueReport, XdpError> {
        let number = self.number(port)?;
        let state = self.program.queue(number).map_err(|e| XdpError::System {
            what: "reading a queue of the XDP program",
            source: io::Error::other(e),
        })?;
        Ok(QueueReport {
            frames: state.frames,
            bytes: state.bytes,
            marked: state.marked,
            overflowed: state.overflowed,
            lost: state.lost,
            deepest: state.deepest,
            seen: state.seen,
            limit: self.limits.get(port).copied().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(seen: &[(usize, u64)], deepest: u64) -> QueueReport {
        let mut all = [0; BUCKETS];
        for &(bucket, n) in seen {
            all[bucket] = n;
        }
        QueueReport {
            frames: 0,
            bytes: 0,
            marked: 0,
            overflowed: 0,
            lost: 0,
            deepest,
            seen: all,
            limit: 127_000,
        }
    }

    #[test]
    fn percentiles_are_upper_edges() {
        let r = report(&[(0, 50), (9, 45), (99, 5)], 99_500);
        assert_eq!(r.percentile(50), 1_000);
        assert_eq!(r.percentile(51), 10_000);
        assert_eq!(r.percentile(95), 10_000);
        assert_eq!(r.percentile(96), 99_500);
        assert_eq!(report(&[], 0).percentile(50), 0);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let good = PhantomQueue {
            rate: 1_000_000_000,
            limit: 100_000,
            kmin: 10_000,
            kmax: 50_000,
            pmax_ppm: 10_000,
            loss_ppm: 0,
        };
        assert_eq!(good.check().unwrap().rate, 125_000_000);
        let says = |queue: PhantomQueue, what: &str| {
            let why = queue.check().unwrap_err().to_string();
            assert!(why.contains(what), "{why}");
        };
        says(
            PhantomQueue {
                rate: MAX_RATE + 1,
                ..good
            },
            "rate",
        );
        says(
            PhantomQueue {
                limit: 1 << 40,
                ..good
            },
            "limit",
        );
        says(
            PhantomQueue {
                kmin: 50_001,
                ..good
            },
            "kmin",
        );
        says(
            PhantomQueue {
                kmax: 100_001,
                ..good
            },
            "kmax",
        );
        says(
            PhantomQueue {
                pmax_ppm: 1_000_001,
                ..good
            },
            "pmax",
        );
        says(
            PhantomQueue {
                loss_ppm: 1_000_001,
                ..good
            },
            "loss",
        );
    }
}
