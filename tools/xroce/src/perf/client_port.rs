//! A measurement on one port of the client, against one port of the server.

use std::io::Write;
use std::net::IpAddr;

use anyhow::{Context, Result, anyhow};
use xroce_engine::clock;
use xroce_proto::time::Duration;
use xroce_wire::newtypes::PathMtu;

use crate::perf::args::Poll;
use crate::perf::client::{own_path_mtu, too_large};
use crate::perf::device::Device;
use crate::perf::measure::flow::Flow;
use crate::perf::measure::pattern::Pattern;
use crate::perf::measure::step_barrier::StepBarrier;
use crate::perf::measure::traffic::{Bench, Outcome};
use crate::perf::measure::usage::Gauge;
use crate::perf::peer::channel::{Channel, ChannelError, SILENCE};
use crate::perf::peer::conversation::{Conversation, listen_only, unexpected};
use crate::perf::peer::message::{Lane, Message, RemoteMemory, check_gid, one_line};
use crate::perf::plan::{Plan, Shape, Step};
use crate::perf::report::Report;
use crate::perf::report::stats::Stats;

/// What one step on one port found.
#[derive(Debug)]
pub(crate) struct StepReport {
    /// Which.
    pub step: Step,
    /// How it used queues and memory.
    pub shape: Shape,
    /// What was found.
    pub outcome: Outcome,
}

/// What one port found.
#[derive(Debug)]
pub(crate) struct PortReport {
    /// Port of the client.
    pub client_port: String,
    /// Port of the server.
    pub server_port: String,
    /// RoCE address of the client.
    pub client: String,
    /// RoCE address of the server.
    pub server: String,
    /// Payload bytes per packet.
    pub path_mtu: u32,
    /// The steps of the plan.
    pub steps: Vec<StepReport>,
    /// Every counter of the client, if asked for.
    pub stats: Option<Stats>,
}

/// A measurement against a server that was connected to.
pub(crate) struct Session<'a> {
    /// What to measure.
    pub plan: &'a Plan,
    /// The way to the server.
    pub channel: &'a mut Channel,
    /// Which of the client's ports this is.
    pub lane: Lane,
    /// Where it waits for the others.
    pub barrier: &'a StepBarrier,
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
    pub(crate) fn run<D: Device>(&mut self, device: &mut D) -> Result<PortReport> {
        let result = self.measure(device);
        if let Err(e) = &result {
            self.channel.abort(&format!("{e:#}"), clock::now());
        }
        result
    }

    fn measure<D: Device>(&mut self, device: &mut D) -> Result<PortReport> {
        let own_mtu = own_path_mtu(device, self.mtu)?;
        let (server, server_port, path_mtu) = self.introduce(device, own_mtu)?;
        let gid = check_gid(server, device.local())?;
        let mut report = PortReport {
            client_port: device.port_name().to_owned(),
            server_port,
            client: device.local().to_string(),
            server: gid.to_string(),
            path_mtu: u32::try_from(path_mtu.bytes()).unwrap_or(0),
            steps: Vec::with_capacity(self.plan.steps().count()),
            stats: None,
        };
        let path = device.path(gid)?;
        let mut flow = Flow::new(device, self.plan, self.poll)?;
        let memory = self.exchange_memory(&flow, report.path_mtu)?;
        flow.set_remote(memory, path_mtu, path);
        let mut bench = Bench {
            plan: self.plan,
            pattern: Pattern::new(self.plan.sizes.iter().copied().max().unwrap_or(0)),
            gauge: Gauge::new(),
            barrier: self.barrier,
        };
        let mut talk = Conversation::new(flow, self.channel);
        for (index, step) in (0..).zip(self.plan.steps()) {
            let outcome = bench.step(&mut talk, index, step);
            let outcome = outcome.with_context(|| step.to_string())?;
            talk.flow.end_step();
            report.steps.push(StepReport {
                step,
                shape: self.plan.shape(step),
                outcome,
            });
            if self.progress {
                progress(self.plan, step, &report);
            }
        }
        talk.say(&Message::Bye {})?;
        report.stats = self.stats.then(|| talk.flow.stats()).transpose()?;
        Ok(report)
    }

    /// Says hello and agrees on the path MTU.
    fn introduce<D: Device>(
        &mut self,
        device: &D,
        own: PathMtu,
    ) -> Result<(IpAddr, String, PathMtu)> {
        let now = clock::now();
        self.channel.send(
            &Message::Hello {
                plan: self.plan.clone(),
                gid: device.local(),
                link_mtu: u32::try_from(device.link_mtu()).unwrap_or(u32::MAX),
                port: device.port_name().to_owned(),
                lane: self.lane,
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

    fn exchange_memory<D: Device>(
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

/// One line of JSON for a program that watches.
fn progress(plan: &Plan, step: Step, lane: &PortReport) {
    let report = Report::of(plan, std::slice::from_ref(lane));
    if let Some(row) = report.results.last() {
        let line = serde_json::json!({ "step": step, "line": row.line(step.test) });
        // Whoever watched may be gone; the results still go to standard output.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
