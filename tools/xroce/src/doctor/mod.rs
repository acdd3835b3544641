//! `xroce doctor`: what is wrong with the path between two hosts, in the words of who has to mend
//! it.
//!
//! Two processes, one at each end. Probes, which are RoCEv2 packets with a stamp, go through the
//! ports themselves ([`lab`]); what was sent and what came is told over TCP ([`message`]); then a
//! short run of `xroce perf` goes over queue pairs ([`rc`]). [`diagnose`] makes findings of it all.

mod diagnose;
mod facts;
mod far;
mod lab;
mod message;
#[cfg(test)]
mod message_tests;
mod near;
mod probe;
mod rc;
mod report;
mod train;
#[cfg(test)]
mod train_tests;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Duration;

use crate::perf::args::{Backend, Poll, PortArgs};
use crate::perf::device::node::Node;
use crate::perf::device::port::{self, Visitor};
use crate::perf::peer::channel::{Channel, SILENCE};
use crate::perf::peer::conversation::{listen_only, unexpected};
use crate::perf::server::accept;
use crate::stop;
use facts::{Connected, Facts};
use lab::Lab;
use message::{End, Message};
use near::Near;
use report::{Report, State};

/// TCP port of the side channel unless told otherwise.
const DEFAULT_PORT: u16 = 18_716;
/// A connection attempt takes no longer than this.
const ATTEMPT: StdDuration = StdDuration::from_millis(3_000);
/// The other side opens its port before it says hello.
const HELLO: Duration = Duration::from_millis(15_000);
/// DSCP 26 and ECT(0): what RoCE is usually configured with.
const USUAL_CLASS: u8 = 26 << 2 | ECT0;
const ECT0: u8 = 2;

/// `xroce doctor`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
One host runs `xroce doctor --listen --dev IF`, the other `xroce doctor HOST --dev IF`; both print what \
was found, and exit with status 1 if RDMA cannot work. About 15 seconds at most. Without AF_XDP --udp \
ADDR checks what a UDP socket sees, and says what it does not. Probes are ECT(0) with the DSCP of \
--traffic-class, or 26 if that is 0.")]
pub(crate) struct DoctorArgs {
    /// The other host, where `xroce doctor --listen` runs, as HOST or HOST:PORT (TCP)
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "listen")]
    pub host: Option<String>,
    /// Wait for the other host, at this address and TCP port [default: all, port 18716]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "",
          conflicts_with = "host")]
    pub listen: Option<String>,
    /// Use a UDP socket at this address instead of AF_XDP
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["dev", "local", "backend"])]
    pub udp: Option<IpAddr>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// The port.
    #[command(flatten)]
    pub port_args: PortArgs,
}

impl DoctorArgs {
    /// The port as `perf` would have it.
    fn port(&self) -> PortArgs {
        let mut args = self.port_args.clone();
        if let Some(addr) = self.udp {
            (args.backend, args.local) = (Some(Backend::Udp), vec![addr]);
        }
        args
    }

    /// Traffic class of probes.
    const fn class(&self) -> u8 {
        match self.port_args.traffic_class {
            0 => USUAL_CLASS,
            given => given & !3 | ECT0,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// There is a problem with the path, or one line that says why it could not be examined.
pub(crate) fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<()> {
    stop::install()?;
    let port = args.port();
    port::check(&port)?;
    let report = match &args.host {
        Some(host) => connects(args, &port, host)?,
        None => listens(&port, args, out)?,
    };
    let text = if args.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        report.text()
    };
    write!(out, "{text}").context("cannot write the findings")?;
    out.flush()?;
    if report.state == State::Problem {
        bail!("the path has problems: see above");
    }
    Ok(())
}

/// The side that connects.
fn connects(args: &DoctorArgs, port: &PortArgs, host: &str) -> Result<Report> {
    let mut channel = Channel::new(connect(host)?, clock::now())?;
    let mut report = None;
    let local = port.address().unwrap_or_else(|| channel.local());
    let near = NearVisitor {
        channel: &mut channel,
        class: args.class(),
        poll: port.poll,
        report: &mut report,
    };
    let opened = port::open(port, Some(local), near);
    match (report, opened) {
        (Some(report), _) => report,
        (None, Err(e)) => without_port(&mut channel, local, &format!("{e:#}")),
        (None, Ok(())) => bail!("the port was opened and not used"),
    }
}

/// The report of a side whose port does not open.
fn without_port(channel: &mut Channel<Message>, gid: IpAddr, trouble: &str) -> Result<Report> {
    let end = End::without_port(gid, trouble);
    let hello = Message::Hello {
        run: 0,
        end: end.clone(),
    };
    channel.send(&hello, clock::now())?;
    let far = match listen_only(channel, HELLO)? {
        Message::Hello { end, .. } => end.check()?,
        other => return Err(unexpected(&other, "hello")),
    };
    let report = diagnose::report(&Facts::new(end, far));
    tell(channel, &report)?;
    Ok(report)
}

/// Tells the other side what was found.
fn tell(channel: &mut Channel<Message>, report: &Report) -> Result<()> {
    let report = report.clone();
    channel.send(&Message::Report { report }, clock::now())?;
    match listen_only(channel, SILENCE)? {
        Message::Bye {} => Ok(()),
        other => Err(unexpected(&other, "bye")),
    }
}

struct NearVisitor<'a> {
    channel: &'a mut Channel<Message>,
    class: u8,
    poll: Poll,
    report: &'a mut Option<Result<Report>>,
}

impl Visitor for NearVisitor<'_> {
    fn visit<D: Datapath>(self, mut node: Node<D>) -> Result<()> {
        let result = examine(self.channel, &mut node, self.class, self.poll);
        if let Err(e) = &result {
            self.channel.abort(&format!("{e:#}"), clock::now());
        }
        *self.report = Some(result);
        Ok(())
    }
}

fn examine<D: Datapath>(
    channel: &mut Channel<Message>,
    node: &mut Node<D>,
    class: u8,
    poll: Poll,
) -> Result<Report> {
    // `RandomState` is the one source of randomness in the standard library.
    let run = RandomState::new().build_hasher().finish();
    let to = channel.peer();
    let mut lab = Lab::new(node, channel, run)?;
    let own = lab.own().clone();
    lab.say(&Message::Hello {
        run,
        end: own.clone(),
    })?;
    lab.channel.allow_silence(HELLO, clock::now());
    let far = match lab.listen()? {
        Message::Hello { end, .. } => end.check()?,
        other => return Err(unexpected(&other, "hello")),
    };
    lab.channel.allow_silence(SILENCE, clock::now());
    lab.peer = Some(far.clone());
    let mut facts = Facts::new(own, far);
    let between = (lab.channel.local(), to.ip().to_canonical());
    facts.tcp_passes = between == (facts.near.gid, facts.far.gid);
    if facts.is_pair() {
        let mut near = Near {
            lab: &mut lab,
            class,
            trains: 0,
        };
        near.examine(&mut facts)?;
        let mtu = facts.there.path_mtu().min(facts.back.path_mtu());
        let intact = facts.there.is_intact(facts.near.gid) && facts.back.is_intact(facts.far.gid);
        if facts.there.is_hopeless() || facts.back.is_hopeless() {
            facts.connected = Connected::NotTried("too many packets are lost");
        } else if let Some(mtu) = mtu.filter(|_| intact) {
            near.ask_to_measure()?;
            let verify = facts.there.is_orderly() && facts.back.is_orderly();
            facts.connected = match rc::measure(lab.node, to, mtu, verify, poll) {
                Ok(rates) => Connected::Measured(rates),
                Err(e) => Connected::Failed(format!("{e:#}")),
            };
            stop::check()?;
            lab.channel.allow_silence(SILENCE, clock::now());
        }
    }
    let report = diagnose::report(&facts);
    tell(lab.channel, &report)?;
    Ok(report)
}

/// The side that listens.
fn listens(port: &PortArgs, args: &DoctorArgs, out: &mut dyn Write) -> Result<Report> {
    let listener = listen(args.listen.as_deref().unwrap_or_default())?;
    if !args.json {
        let tcp = listener.local_addr()?.port();
        writeln!(
            out,
            "listening on TCP port {tcp}, waiting for the other host"
        )?;
        out.flush()?;
    }
    let mut channel = Channel::new(accept(&listener)?, clock::now())?;
    let mut report = None;
    let local = port.address().unwrap_or_else(|| channel.local());
    let far = FarVisitor {
        channel: &mut channel,
        listener: &listener,
        poll: port.poll,
        report: &mut report,
    };
    let opened = port::open(port, Some(local), far);
    match (report, opened) {
        (Some(report), _) => report,
        (None, Err(e)) => {
            let end = End::without_port(local, &format!("{e:#}"));
            let run = match listen_only(&mut channel, HELLO)? {
                Message::Hello { run, .. } => run,
                other => return Err(unexpected(&other, "hello")),
            };
            channel.send(&Message::Hello { run, end }, clock::now())?;
            hear_report(&mut channel)
        }
        (None, Ok(())) => bail!("the port was opened and not used"),
    }
}

/// The other side's report, when nothing was measured.
fn hear_report(channel: &mut Channel<Message>) -> Result<Report> {
    match listen_only(channel, SILENCE)? {
        Message::Report { report } => {
            let report = report.check()?;
            channel.send(&Message::Bye {}, clock::now())?;
            Ok(report)
        }
        other => Err(unexpected(&other, "report")),
    }
}

struct FarVisitor<'a> {
    channel: &'a mut Channel<Message>,
    listener: &'a TcpListener,
    poll: Poll,
    report: &'a mut Option<Result<Report>>,
}

impl Visitor for FarVisitor<'_> {
    fn visit<D: Datapath>(self, mut node: Node<D>) -> Result<()> {
        let result = attend(self.channel, &mut node, self.listener, self.poll);
        if let Err(e) = &result {
            self.channel.abort(&format!("{e:#}"), clock::now());
        }
        *self.report = Some(result);
        Ok(())
    }
}

fn attend<D: Datapath>(
    channel: &mut Channel<Message>,
    node: &mut Node<D>,
    listener: &TcpListener,
    poll: Poll,
) -> Result<Report> {
    let (run, near) = match listen_only(channel, HELLO)? {
        Message::Hello { run, end } => (run, end.check()?),
        other => return Err(unexpected(&other, "hello")),
    };
    let mut lab = Lab::new(node, channel, run)?;
    lab.peer = Some(near);
    let end = lab.own().clone();
    lab.say(&Message::Hello { run, end })?;
    far::answer(&mut lab, &mut |lab| {
        // What went wrong is told by the other side, which has heard of it.
        let _ = rc::answer(lab.node, listener, poll);
        lab.channel.allow_silence(SILENCE, clock::now());
        Ok(stop::check()?)
    })
}

/// `host`, `host:port`, `::1` or `[::1]:port` in two parts.
fn split(text: &str) -> Result<(&str, u16)> {
    let port = |port: &str| {
        let wrong = || format!("\"{port}\" is no TCP port");
        port.parse().with_context(wrong)
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or_else(|| anyhow!("\"{text}\": \"]\" is missing"))?;
        return match rest.strip_prefix(':') {
            Some(p) => Ok((host, port(p)?)),
            None => Ok((host, DEFAULT_PORT)),
        };
    }
    match text.split_once(':') {
        // More than one colon: an IPv6 address without a port.
        Some((_, rest)) if rest.contains(':') => Ok((text, DEFAULT_PORT)),
        Some((host, p)) => Ok((host, port(p)?)),
        None => Ok((text, DEFAULT_PORT)),
    }
}

fn connect(host: &str) -> Result<TcpStream> {
    let name = split(host)?;
    let addresses: Vec<SocketAddr> = name
        .to_socket_addrs()
        .with_context(|| format!("cannot find the host \"{}\"", name.0))?
        .collect();
    let mut last = anyhow!("the host \"{}\" has no address", name.0);
    for address in addresses {
        stop::check()?;
        last = match TcpStream::connect_timeout(&address, ATTEMPT) {
            Ok(stream) => return Ok(stream),
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => anyhow!(
                "nobody listens at {address}: start \"xroce doctor --listen\" there, or a firewall \
                 refuses the TCP port"
            ),
            Err(e) if e.kind() == ErrorKind::TimedOut => anyhow!(
                "{address} does not answer over TCP: check the address, the link and firewalls"
            ),
            Err(e) => anyhow!("cannot reach {address}: {e}"),
        };
    }
    Err(last)
}

fn listen(at: &str) -> Result<TcpListener> {
    let (host, port) = split(at)?;
    let bound = if host.is_empty() {
        // A dual-stack socket where there is IPv6.
        let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        TcpListener::bind(all)
            .or_else(|_| TcpListener::bind(SocketAddr::new([0, 0, 0, 0].into(), port)))
    } else {
        TcpListener::bind((host, port))
    };
    let listener =
        bound.with_context(|| format!("cannot listen on TCP port {port} of \"{host}\""))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether an address is valid on its link only.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, host, port) in [
            ("", "", DEFAULT_PORT),
            ("host", "host", DEFAULT_PORT),
            ("host:7", "host", 7),
            (":7", "", 7),
            ("10.0.0.1:0", "10.0.0.1", 0),
            ("fd77::1", "fd77::1", DEFAULT_PORT),
            ("[fd77::1]", "fd77::1", DEFAULT_PORT),
            ("[fd77::1]:7", "fd77::1", 7),
        ] {
            assert_eq!(split(text).unwrap(), (host, port), "{text}");
        }
        for bad in ["host:", "host:x", "host:65536", "[::1", "[::1]:"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }
}
