//! `xroce perf client`: decides what is measured, measures, reports.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail};
use xroce_engine::clock;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::PathMtu;

use crate::perf::args::{ClientArgs, Compat, Format};
use crate::perf::client_port::{PortReport, Session};
use crate::perf::device::ports::ports;
use crate::perf::device::{self, Device, User};
use crate::perf::measure::step_barrier::{OtherFailed, StepBarrier};
use crate::perf::peer::channel::{Channel, ChannelError};
use crate::perf::peer::compat::{self, Job};
use crate::perf::peer::message::{Lane, one_line};
use crate::perf::plan::{Plan, Test};
use crate::perf::report::show;
use crate::perf::report::{Failed, Report};
use crate::stop::{self, Interrupted};

/// A refused or unanswered connection attempt is given up after this long, so that Ctrl-C works.
const ATTEMPT: StdDuration = StdDuration::from_millis(500);
/// Measurements that take longer are announced, in milliseconds.
const LONG: u64 = 60_000;
/// The same where only the number is known.
const MANY: usize = 100;

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong and what to do.
pub(crate) fn run(args: &ClientArgs, out: &mut dyn Write) -> Result<()> {
    let all = ports(&args.port_args, &args.several, &args.daemon)?;
    if let Some(job) = Job::new(&args.what)? {
        only_own(args, all.len())?;
        let port = all.first().ok_or_else(|| anyhow!("no port"))?;
        let stream = connect(args)?;
        return compat::client(&job, port, stream, out);
    }
    if args.what.rx_depth.is_some() {
        bail!("--rx-depth goes only with --compat");
    }
    let plan = args.plan();
    plan.check()?;
    if args.what.format() == Format::Perftest && plan.tests.contains(&Test::Open) {
        bail!("perftest has no open loop, and no columns for it: use another --format with --rate");
    }
    let shares = shares(&plan, all.len())?;
    announce(&plan);
    let result = measure(args, &all, &shares).and_then(|lanes| {
        let report = Report::of(&plan, &lanes);
        if let Some(file) = &args.histogram {
            let open = File::create(file);
            let written = open.and_then(|f| show::histograms(&lanes, &mut BufWriter::new(f)));
            written.with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(report)
    });
    match result {
        Ok(report) => {
            print(args.what.format(), &report, out)?;
            mismatches(&report)
        }
        Err(e) => {
            if args.what.format() == Format::Json && !e.is::<Interrupted>() {
                let failed = serde_json::to_string(&Failed::of(&e))?;
                writeln!(out, "{failed}").context("cannot write the results")?;
            }
            Err(e)
        }
    }
}

/// Options that another program as the peer has nothing for.
fn only_own(args: &ClientArgs, ports: usize) -> Result<()> {
    if args.seconds.is_some() {
        bail!("--compat counts messages: use --messages instead of --seconds");
    }
    for (given, option) in [
        (args.rate.is_some(), "--rate"),
        (args.warmup.is_some(), "--warmup"),
        (args.histogram.is_some(), "--histogram"),
        (ports > 1, "a second interface, queue or address"),
    ] {
        if given {
            bail!("--compat: the peer has no such thing: leave {option} away");
        }
    }
    Ok(())
}

/// The plan of each port: rates are those of all ports together, and chance is of each its own.
fn shares(plan: &Plan, ports: usize) -> Result<Vec<Plan>> {
    let count = ports as u64;
    let share = |index: u64| Plan {
        rates: plan
            .rates
            .iter()
            .map(|rate| (rate + index) / count)
            .collect(),
        // Client and server of a port take one each.
        seed: plan.seed.wrapping_add(2 * index),
        ..plan.clone()
    };
    let all: Vec<Plan> = (0..count).map(share).collect();
    for plan in &all {
        plan.check()?;
    }
    Ok(all)
}

/// Says how long it will take, if that is long.
fn announce(plan: &Plan) {
    let (millis, is_known) = plan.estimate();
    let steps = plan.steps().count();
    // Whoever asks for one knows.
    let text = if steps > 1 && millis >= LONG {
        let more = if is_known { "" } else { " and more" };
        let seconds = millis.div_ceil(1000);
        format!(
            "{steps} measurements, about {} min {} s{more}",
            seconds / 60,
            seconds % 60
        )
    } else if !is_known && steps >= MANY {
        format!("{steps} measurements")
    } else {
        return;
    };
    // The results go to standard output, whoever reads this or not.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// One port after another is connected; then all measure at the same time, each in a thread.
fn measure(
    args: &ClientArgs,
    ports: &[crate::perf::args::PortArgs],
    plans: &[Plan],
) -> Result<Vec<PortReport>> {
    let barrier = StepBarrier::new(ports.len() as u64);
    let count = u32::try_from(ports.len()).unwrap_or(u32::MAX);
    let group = fastrand::u64(..);
    let mut channels = Vec::with_capacity(ports.len());
    for _ in ports {
        channels.push(Channel::new(connect(args)?, clock::now())?);
    }
    let results: Vec<Result<PortReport>> = std::thread::scope(|scope| {
        let lanes = (0..).zip(ports.iter().zip(plans)).zip(channels);
        let start = |((index, (port, plan)), mut channel): ((u32, _), Channel)| {
            let barrier = &barrier;
            let lane = Lane {
                group,
                index,
                count,
            };
            scope.spawn(move || {
                let result = one_port(args, port, plan, lane, &mut channel, barrier);
                if result.is_err() {
                    barrier.fail();
                }
                result
            })
        };
        let threads: Vec<_> = lanes.map(start).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    one_error(results)
}

/// All results, or the error that came first: others only followed from it.
fn one_error(results: Vec<Result<PortReport>>) -> Result<Vec<PortReport>> {
    let several = results.len() > 1;
    let mut lanes = Vec::with_capacity(results.len());
    let mut worst: Option<(u8, anyhow::Error)> = None;
    for (n, result) in results.into_iter().enumerate() {
        match result {
            Ok(lane) => lanes.push(lane),
            Err(e) => {
                let rank = if e.chain().any(|c| c.is::<OtherFailed>()) {
                    0
                } else if e.chain().any(|c| c.is::<ChannelError>()) {
                    1
                } else {
                    2
                };
                let e = if several {
                    e.context(format!("port {n}"))
                } else {
                    e
                };
                if worst.as_ref().is_none_or(|(r, _)| rank > *r) {
                    worst = Some((rank, e));
                }
            }
        }
    }
    match worst {
        None => Ok(lanes),
        Some((_, e)) => Err(e),
    }
}

/// Opens a port and measures on it.
fn one_port(
    args: &ClientArgs,
    port: &crate::perf::args::PortArgs,
    plan: &Plan,
    lane: Lane,
    channel: &mut Channel,
    barrier: &StepBarrier,
) -> Result<PortReport> {
    let near = channel.local();
    let mut report = None;
    device::open(
        port,
        Some(near),
        Client {
            session: Session {
                plan,
                channel,
                lane,
                barrier,
                mtu: args.what.mtu,
                timeout: Duration::from_millis(args.what.timeout()),
                poll: port.poll,
                stats: args.what.stats,
                progress: args.progress_json && lane.index == 0,
            },
            report: &mut report,
        },
    )?;
    report.ok_or_else(|| anyhow!("the port was not used"))
}

/// The rest of the work of a port, for whichever it turns out to be.
struct Client<'a> {
    session: Session<'a>,
    report: &'a mut Option<PortReport>,
}

impl User for Client<'_> {
    fn run<D: Device>(mut self, mut device: D) -> Result<()> {
        *self.report = Some(self.session.run(&mut device)?);
        Ok(())
    }
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

fn mismatches(report: &Report) -> Result<()> {
    match report.mismatches() {
        0 => Ok(()),
        n => {
            let mut firsts = report.results.iter();
            let first = firsts.find_map(|r| r.first_mismatch.as_deref());
            bail!(
                "{n} messages were not what was sent: {}",
                first.unwrap_or("no details")
            )
        }
    }
}

fn print(format: Format, report: &Report, out: &mut dyn Write) -> Result<()> {
    let text = match format {
        Format::Json => serde_json::to_string(report)?,
        Format::Csv => show::csv(report),
        Format::Perftest => show::perftest(report),
        Format::Table => show::people(report),
    };
    writeln!(out, "{text}").context("cannot write the results")
}

/// The path MTU that was asked for, in bytes, or the largest the link of `device` carries.
///
/// # Errors
/// It does not fit the link.
pub(crate) fn own_path_mtu<D: Device>(device: &D, asked: Option<u32>) -> Result<PathMtu> {
    let (link, port) = (device.link_mtu(), device.port_name());
    let largest = PathMtu::for_link_mtu(link);
    match asked.and_then(|m| PathMtu::from_bytes(m as usize)) {
        Some(asked) if largest.is_some_and(|l| asked <= l) => Ok(asked),
        Some(asked) => Err(too_large(asked, link, "this side's", port)),
        None => largest.ok_or_else(|| too_large(PathMtu::Mtu256, link, "this side's", port)),
    }
}

/// A path MTU that a link does not carry.
pub(crate) fn too_large(asked: PathMtu, link: usize, whose: &str, port: &str) -> anyhow::Error {
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
