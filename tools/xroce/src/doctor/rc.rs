//! Reliable connections: a short run of `xroce perf` on the ports that the probes went through.

use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, bail};
use xroce_engine::clock;
use xroce_net::datapath::Datapath;
use xroce_proto::time::Duration;

use super::facts::Rates;
use crate::perf::args::Poll;
use crate::perf::client_port::Session;
use crate::perf::device::node::Node;
use crate::perf::measure::pace::Arrivals;
use crate::perf::measure::step_barrier::StepBarrier;
use crate::perf::peer::channel::Channel;
use crate::perf::peer::message::Lane;
use crate::perf::plan::{Limit, Op, Plan, Repair, Test};
use crate::perf::report::Report;
use crate::perf::server;
use crate::stop;

/// Messages whose rate counts, and those whose round trip does, in bytes.
const LARGE: u32 = 64 << 10;
const SMALL: u32 = 64;
/// Large messages outstanding: enough for a rate, too few to overflow a queue on the way.
const DEPTH: u32 = 4;
/// Milliseconds of each measurement.
const MILLIS: u64 = 500;
/// The second connection takes no longer than this.
const PATIENCE: Duration = Duration::from_millis(5_000);
/// Pause between two looks for it.
const NAP: std::time::Duration = std::time::Duration::from_millis(5);

/// Comparing every message takes rounds that have to be completed: no more than a moment where nothing
/// is lost, and any time where much is.
fn plan(verify: bool) -> Plan {
    Plan {
        ops: vec![Op::Write],
        tests: vec![Test::Bw, Test::Lat],
        sizes: vec![SMALL, LARGE],
        qps: vec![1],
        depths: vec![DEPTH],
        rates: Vec::new(),
        arrivals: Arrivals::Fixed,
        seed: 0,
        warmup_millis: 0,
        bidirectional: false,
        bw_limit: Limit::Millis(MILLIS),
        lat_limit: Limit::Millis(MILLIS),
        verify,
        lat_max_size: SMALL,
        // The timeouts of a busy host are no losses: the long ones of go-back-N are not mistaken.
        repair: Repair::GoBackN,
    }
}

/// Measures towards the side that listens at `to`.
///
/// # Errors
/// There is no second connection, or a queue pair failed.
pub(crate) fn measure<D: Datapath>(
    node: &mut Node<D>,
    to: SocketAddr,
    mtu: u32,
    verify: bool,
    poll: Poll,
) -> Result<Rates> {
    let patience = std::time::Duration::from_nanos(PATIENCE.as_nanos());
    let stream = TcpStream::connect_timeout(&to, patience).context("second connection")?;
    let mut channel = Channel::new(stream, clock::now())?;
    let plan = plan(verify);
    let mut session = Session {
        plan: &plan,
        channel: &mut channel,
        lane: Lane::ONLY,
        barrier: &StepBarrier::new(1),
        mtu: Some(mtu),
        timeout: PATIENCE,
        poll,
        stats: false,
        progress: false,
    };
    let lane = session.run(node)?;
    Ok(rates(&Report::of(&plan, &[lane])))
}

/// Answers the other side's [`measure`].
///
/// # Errors
/// It does not come, or gives up.
pub(crate) fn answer<D: Datapath>(
    node: &mut Node<D>,
    listener: &TcpListener,
    poll: Poll,
) -> Result<()> {
    let start = clock::now();
    let stream = loop {
        stop::check()?;
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(e) if clock::now().since(start) >= PATIENCE => {
                bail!("the second connection does not come: {e}")
            }
            Err(_) => std::thread::sleep(NAP),
        }
    };
    let mut channel = Channel::new(stream, clock::now())?;
    server::serve(poll, node, &mut channel)
}

fn rates(report: &Report) -> Rates {
    let mut rates = Rates {
        path_mtu: report.path_mtu,
        wrong: report.mismatches(),
        ..Rates::default()
    };
    for row in &report.results {
        if let Some(bandwidth) = &row.bandwidth {
            let packets = row.size.div_ceil(report.path_mtu.max(1)).max(1);
            rates.packets += bandwidth.messages * u64::from(packets);
            if row.size == LARGE {
                rates.gbit_per_s = bandwidth.gbit_per_s;
            }
        }
        if let Some(latency) = &row.latency {
            // Each is a WRITE there and one back.
            rates.packets += 2 * latency.samples;
            rates.round_trips = latency.samples;
            (rates.p50_ns, rates.p99_ns) = (latency.p50_ns, latency.p99_ns);
            rates.max_ns = latency.max_ns;
        }
        rates.retransmissions += row.total.retransmissions;
        rates.timeouts += row.total.timeouts;
        rates.sequence_naks += row.total.sequence_naks;
        rates.icrc_errors += row.total.icrc_errors;
    }
    rates
}
