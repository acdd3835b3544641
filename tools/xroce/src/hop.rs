//! `xroce hop`: a bottleneck between interfaces of this machine, for experiments with real frames.

use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};
use xroce_fabric::{BitRate, Bytes};
use xroce_net::xdp::Mode;
use xroce_net::xdp::hop::{Hop, PhantomQueue, QueueReport};

use crate::sim::table::{right, table};
use crate::stop;

/// A signal is looked for so often.
const NAP: Duration = Duration::from_millis(50);
const MILLION: f64 = 1e6;

/// `xroce hop`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The interfaces are joined as by a switch, in the kernel, and belong to the hop while it runs. Towards \
each stands a phantom queue: it fills with what is forwarded and drains at --rate but holds nothing \
back, so marks and drops are those of such a bottleneck and its delay is missing. To a veth whose other \
end has neither an XDP program nor GRO the kernel forwards nothing; and TCP or UDP from the kernel behind \
a veth needs `ethtool -K IF tx off` there.")]
pub(crate) struct HopArgs {
    /// Interfaces to join, up to 64
    #[arg(required = true, num_args = 2.., value_name = "IF")]
    pub ports: Vec<String>,
    /// The queue is towards this interface; may be given again [default: towards each]
    #[arg(long, value_name = "IF")]
    pub towards: Vec<String>,
    /// Rate at which the queue drains, bits per second on the wire, such as 10G [default: no queue]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// What fits into the queue
    #[arg(long, default_value = "256KB", value_name = "BYTES")]
    pub limit: Bytes,
    /// Packets that are ECN-capable begin to be marked above this backlog
    #[arg(long, default_value = "16KB", value_name = "BYTES")]
    pub kmin: Bytes,
    /// All are marked above this one
    #[arg(long, default_value = "128KB", value_name = "BYTES")]
    pub kmax: Bytes,
    /// Share that is marked just below --kmax, such as 0.1 or 10%
    #[arg(long, default_value = "10%", value_parser = share, value_name = "SHARE")]
    pub pmax: u32,
    /// Share of the frames that is dropped at random
    #[arg(long, default_value = "0", value_parser = share, value_name = "SHARE")]
    pub loss: u32,
    /// End after so many seconds [default: when interrupted]
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
    /// Print one JSON object at the end instead of a table
    #[arg(long)]
    pub json: bool,
}

impl HopArgs {
    fn queue(&self) -> PhantomQueue {
        PhantomQueue {
            rate: self.rate.map_or(0, BitRate::bps),
            limit: self.limit.0,
            kmin: self.kmin.0,
            kmax: self.kmax.0,
            pmax_ppm: self.pmax,
            loss_ppm: self.loss,
        }
    }

    /// Which ports have the queue.
    fn shaped(&self) -> Result<Vec<usize>> {
        if self.towards.is_empty() {
            return Ok((0..self.ports.len()).collect());
        }
        let port = |name: &String| {
            let at = self.ports.iter().position(|p| p == name);
            at.ok_or_else(|| anyhow!("--towards {name}: it is none of the interfaces joined"))
        };
        self.towards.iter().map(port).collect()
    }
}

/// Joins the interfaces until the time is over or the user interrupts, then says what went through.
///
/// # Errors
/// See [`Hop::open`]; a wrong interface or number.
pub(crate) fn run(args: &HopArgs, out: &mut dyn Write) -> Result<()> {
    let shaped = args.shaped()?;
    let mut hop = Hop::open(&args.ports, Mode::Auto)?;
    for &port in &shaped {
        hop.set_queue(port, &args.queue())
            .context("--rate, --limit, --kmin, --kmax, --pmax, --loss")?;
    }
    stop::install()?;
    if !args.json {
        writeln!(out, "joined: {}; Ctrl-C ends it", args.ports.join(", "))?;
        out.flush()?;
    }
    let naps = args.seconds.map(|s| u128::from(s) * 1000 / NAP.as_millis());
    let mut napped = 0;
    while !stop::requested() && naps.is_none_or(|n| napped < n) {
        thread::sleep(NAP);
        napped += 1;
    }
    let reports = (0..hop.ports())
        .map(|port| hop.queue(port))
        .collect::<Result<Vec<_>, _>>()?;
    if args.json {
        writeln!(out, "{}", as_json(args, &reports))?;
    } else {
        writeln!(out, "{}", as_table(args, &reports))?;
    }
    Ok(())
}

fn as_table(args: &HopArgs, reports: &[QueueReport]) -> String {
    let head = [
        "towards",
        "frames",
        "MB",
        "marked",
        "did not fit",
        "lost",
        "queue p50, KB",
        "p95",
        "max",
    ];
    let mut table = table(head.map(str::to_owned).into());
    for (port, r) in args.ports.iter().zip(reports) {
        let kb = |bytes: u64| (bytes / 1000).to_string();
        table.add_row([
            port.clone(),
            r.frames.to_string(),
            (r.bytes / 1_000_000).to_string(),
            r.marked.to_string(),
            r.overflowed.to_string(),
            r.lost.to_string(),
            kb(r.percentile(50)),
            kb(r.percentile(95)),
            kb(r.deepest),
        ]);
    }
    right(&mut table, 1);
    table.to_string()
}

fn as_json(args: &HopArgs, reports: &[QueueReport]) -> Value {
    let port = |(name, r): (&String, &QueueReport)| {
        json!({
            "towards": name,
            "frames": r.frames,
            "bytes": r.bytes,
            "marked": r.marked,
            "overflowed": r.overflowed,
            "lost": r.lost,
            "queue_p50_bytes": r.percentile(50),
            "queue_p95_bytes": r.percentile(95),
            "queue_max_bytes": r.deepest,
        })
    };
    let ports: Vec<Value> = args.ports.iter().zip(reports).map(port).collect();
    json!({"schema": 1, "ports": ports})
}

/// "0.01" or "1%", in millionths.
fn share(text: &str) -> Result<u32> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let value: f64 = number
        .trim()
        .parse()
        .with_context(|| format!("\"{text}\" is not a share such as 0.01 or 1%"))?;
    let millionths = value / unit * MILLION;
    if !(0.0..=MILLION).contains(&millionths) {
        bail!("{text}: a share is 0 to 1, or 0% to 100%");
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to a million"
    )]
    Ok(millionths.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fractions_or_percent() {
        assert_eq!(share("0.01").unwrap(), 10_000);
        assert_eq!(share("1%").unwrap(), 10_000);
        assert_eq!(share("100 %").unwrap(), 1_000_000);
        assert_eq!(share("0").unwrap(), 0);
        for bad in ["", "%", "1.1", "101%", "-1%", "nan", "x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
