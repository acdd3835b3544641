//! `xroce perf client`: decides what is measured, measures, reports.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail};
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::PathMtu;

use super::args::{ClientArgs, Compat, Poll};
use super::channel::{Channel, ChannelError, SILENCE};
use super::compat::{self, Job};
use super::flow::Flow;
use super::message::{Message, RemoteMemory, check_gid, one_line};
use super::node::Node;
use super::pattern::Pattern;
use super::plan::Plan;
use super::port::{self, Visitor};
use super::report::{Report, SCHEMA};
use super::talk::{Talk, listen_only, unexpected};
use super::traffic::Run;
use crate::stop;

/// A refused or unanswered connection attempt is given up after this long, so that Ctrl-C works.
const ATTEMPT: StdDuration = StdDuration::from_millis(500);

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong and what to do.
pub(crate) fn run(args: &ClientArgs, out: &mut dyn Write) -> Result<()> {
    if let Some(job) = Job::new(&args.what)? {
        if args.seconds.is_some() {
            bail!("--compat counts messages: use --messages instead of --seconds");
        }
        port::check(&args.port_args)?;
        let stream = connect(args)?;
        return compat::client(&job, &args.port_args, stream, out);
    }
    if let Some(option) = args.what.only_compat() {
        bail!("{option} goes only with --compat");
    }
    let plan = args.plan();
    plan.check()?;
    port::check(&args.port_args)?;
    let mut channel = Channel::new(connect(args)?, clock::now())?;
    port::open(
        &args.port_args,
        Some(channel.local()),
        Client {
            session: Session {
                plan: &plan,
                channel: &mut channel,
                mtu: args.what.mtu,
                timeout: Duration::from_millis(args.what.timeout()),
                poll: args.port_args.poll,
                stats: args.what.stats,
                progress: args.progress_json,
            },
            json: args.what.json,
            out,
        },
    )
}

/// Opens the side channel.
fn connect(args: &ClientArgs) -> Result<TcpStream> {
    let port = args.port.unwrap_or_else(|| args.what.usual_port());
    let name = (args.server.as_str(), port);
    let addresses: Vec<SocketAddr> = name
        .to_socket_addrs()
        .with_context(|| format!("cannot find the server \"{}\"", one_line(&args.server)))?
        .collect();
    let timeout = args.what.timeout();
    let deadline = clock::now() + Duration::from_millis(timeout);
    let mut last = None;
    for address in addresses {
        loop {
            stop::check()?;
            match TcpStream::connect_timeout(&address, ATTEMPT) {
                Ok(stream) => return Ok(stream),
                Err(e) if e.kind() == std::io::ErrorKind::TimedOut && clock::now() < deadline => {}
                Err(e) => {
                    last = Some((address, e));
                    break;
                }
            }
        }
    }
    let Some((address, e)) = last else {
        bail!("the server \"{}\" has no address", args.server)
    };
    Err(match e.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            let program = args.what.compat.map_or("xroce perf server", Compat::peers);
            anyhow!("no server at {address}: start \"{program}\" there, or give its --port")
        }
        std::io::ErrorKind::TimedOut => anyhow!(
            "{address} does not answer within {} s: check the address, the link and firewalls",
            timeout / 1000
        ),
        _ => anyhow!("cannot reach {address}: {e}"),
    })
}

/// The rest of the work, for whichever port it turns out to be.
struct Client<'a> {
    session: Session<'a>,
    json: bool,
    out: &'a mut dyn Write,
}

impl Visitor for Client<'_> {
    fn visit<D: Datapath>(mut self, mut node: Node<D>) -> Result<()> {
        let report = self.session.run(&mut node)?;
        self.print(&report)?;
        match report.mismatches() {
            0 => Ok(()),
            n => {
                let first = report
                    .results
                    .iter()
                    .find_map(|r| r.first_mismatch.as_deref());
                bail!(
                    "{n} messages were not what was sent: {}",
                    first.unwrap_or("no details")
                )
            }
        }
    }
}

/// A measurement against a server that was connected to.
pub(crate) struct Session<'a> {
    /// What to measure.
    pub plan: &'a Plan,
    /// The way to the server.
    pub channel: &'a mut Channel,
    /// Path MTU, if it is not to be the largest that both links carry.
    pub mtu: Option<u32>,
    /// How long the server may take to answer the first word.
    pub timeout: Duration,
    /// What to do when there is nothing to do.
    pub poll: Poll,
    /// Whether the report has every counter.
    pub stats: bool,
    /// Whether each finished step is told of on standard error.
    pub progress: bool,
}

impl Session<'_> {
    /// Measures; the server is told if this side gives up.
    ///
    /// # Errors
    /// The conversation, the port or the queue pairs failed.
    pub(crate) fn run<D: Datapath>(&mut self, node: &mut Node<D>) -> Result<Report> {
        let result = self.measure(node);
        if let Err(e) = &result {
            self.channel.abort(&format!("{e:#}"), clock::now());
        }
        result
    }

    fn measure<D: Datapath>(&mut self, node: &mut Node<D>) -> Result<Report> {
        let own_mtu = own_path_mtu(node, self.mtu)?;
        let (server, server_port, path_mtu) = self.introduce(node, own_mtu)?;
        let gid = check_gid(server, node.local())?;
        let mut report = Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            client_port: node.port_name().to_owned(),
            server_port,
            client: node.local().to_string(),
            server: gid.to_string(),
            path_mtu: u32::try_from(path_mtu.bytes()).unwrap_or(0),
            verify: self.plan.verify,
            results: Vec::new(),
            stats: None,
        };
        let path = node.path(gid)?;
        let mut flow = Flow::new(node, self.plan, self.poll)?;
        let memory = self.exchange_memory(&flow, report.path_mtu)?;
        flow.set_remote(memory, path_mtu, path);
        let pattern = Pattern::new(self.plan.sizes.iter().copied().max().unwrap_or(0));
        let mut talk = Talk::new(flow, self.channel);
        for (index, step) in (0..).zip(self.plan.steps()) {
            let outcome = Run::step(&mut talk, &pattern, self.plan, index, step)
                .with_context(|| step.to_string())?;
            let counters = talk.flow.counters();
            report.add(step, self.plan.shape(step), &outcome, counters);
            talk.flow.end_step();
            if self.progress {
                progress(&step, &report);
            }
        }
        talk.say(&Message::Bye {})?;
        report.stats = self.stats.then(|| talk.flow.stats());
        Ok(report)
    }

    /// Says hello and agrees on the path MTU.
    fn introduce<D: Datapath>(
        &mut self,
        node: &Node<D>,
        own: PathMtu,
    ) -> Result<(IpAddr, String, PathMtu)> {
        let now = clock::now();
        self.channel.send(
            &Message::Hello {
                plan: self.plan.clone(),
                gid: node.local(),
                link_mtu: u32::try_from(node.link_mtu()).unwrap_or(u32::MAX),
                port: node.port_name().to_owned(),
            },
            now,
        )?;
        let reply = listen_only(self.channel, self.timeout).map_err(|e| match e.downcast() {
            Ok(ChannelError::Silent(time)) => anyhow!(
                "{} accepts connections but does not answer within {time}: it may be serving \
                 another client (try again), or it is not an xroce perf server",
                self.channel.peer()
            ),
            Ok(e) => e.into(),
            Err(e) => e,
        })?;
        let (gid, link_mtu, port) = match reply {
            Message::Accept {
                gid,
                link_mtu,
                port,
            } => (gid, link_mtu, one_line(&port)),
            other => return Err(unexpected(&other, "accept")),
        };
        let theirs = PathMtu::for_link_mtu(link_mtu as usize);
        let mtu = match theirs {
            Some(theirs) if own <= theirs => own,
            Some(theirs) if self.mtu.is_none() => theirs,
            _ => return Err(too_large(own, link_mtu as usize, "the server's", &port)),
        };
        Ok((gid, port, mtu))
    }

    fn exchange_memory<D: Datapath>(
        &mut self,
        flow: &Flow<'_, D>,
        path_mtu: u32,
    ) -> Result<RemoteMemory> {
        let memory = flow.memory();
        self.channel
            .send(&Message::Connect { path_mtu, memory }, clock::now())?;
        match listen_only(self.channel, SILENCE)? {
            Message::Connected { memory: theirs } => Ok(theirs.check(memory.len)?),
            other => Err(unexpected(&other, "connected")),
        }
    }
}

impl Client<'_> {
    fn print(&mut self, report: &Report) -> Result<()> {
        let text = if self.json {
            serde_json::to_string(report)?
        } else {
            let stats = report.stats.as_ref().map(|s| format!("\n{}", s.table()));
            format!(
                "{} ({}) -> {} ({}), path MTU {}\n{}{}",
                report.client,
                report.client_port,
                report.server,
                report.server_port,
                report.path_mtu,
                report.table(),
                stats.unwrap_or_default()
            )
        };
        writeln!(self.out, "{text}").context("cannot write the results")
    }
}

/// The path MTU that was asked for, in bytes, or the largest the link of `node` carries.
///
/// # Errors
/// It does not fit the link.
pub(super) fn own_path_mtu<D: Datapath>(node: &Node<D>, asked: Option<u32>) -> Result<PathMtu> {
    let (link, port) = (node.link_mtu(), node.port_name());
    let largest = PathMtu::for_link_mtu(link);
    match asked.and_then(|m| PathMtu::from_bytes(m as usize)) {
        Some(asked) if largest.is_some_and(|l| asked <= l) => Ok(asked),
        Some(asked) => Err(too_large(asked, link, "this side's", port)),
        None => largest.ok_or_else(|| too_large(PathMtu::Mtu256, link, "this side's", port)),
    }
}

fn too_large(asked: PathMtu, link: usize, whose: &str, port: &str) -> anyhow::Error {
    let needs = asked.bytes() + PathMtu::OVERHEAD;
    let advice = match PathMtu::for_link_mtu(link) {
        Some(fits) => format!("use --mtu {} or raise the MTU of the link", fits.bytes()),
        None => "raise the MTU of the link".to_owned(),
    };
    anyhow!(
        "path MTU {} needs an IP MTU of {needs}, {whose} link ({port}) has {link}: {advice}",
        asked.bytes()
    )
}

/// One line of JSON for a program that watches.
fn progress(step: &super::plan::Step, report: &Report) {
    if let Some(row) = report.results.last() {
        let line = serde_json::json!({ "step": step, "line": row.line(step.test) });
        // Whoever watched may be gone; the results still go to standard output.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
