//! Flows begin, post their messages and end.

use xroce_api::EngineError;
use xroce_proto::counters::Counters;
use xroce_proto::wc::{Completion, WcStatus};
use xroce_wire::newtypes::Qpn;

use crate::flow::{Channel, Flow, Op, Progress, Tally};
use crate::host::{End, RECEIVE};
use crate::net::Event;
use crate::sim::Simulation;
use crate::units::Time;

/// Bits of a `wr_id` below the number of the flow.
const SEQUENCE_BITS: u32 = 32;

/// What is to be done for all flows.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) flows: Vec<Flow>,
    pub(crate) progress: Vec<Progress>,
    pub(crate) channels: Vec<Channel>,
    /// Flows that wait for nothing but their time, the latest first.
    due: Vec<u32>,
    /// Flows that have not ended.
    pub(crate) open: usize,
    /// Counters of queue pairs that are gone: of requesters and responders together.
    pub(crate) counters: Counters,
    /// An engine refused something, which a run cannot recover from.
    pub(crate) refused: Option<EngineError>,
}

impl Traffic {
    pub(crate) fn new(flows: Vec<Flow>) -> Self {
        let mut channels: Vec<Channel> = Vec::new();
        let mut named = std::collections::HashMap::new();
        let mut progress: Vec<Progress> = Vec::with_capacity(flows.len());
        for flow in &flows {
            let (requester, responder) = flow.requester_responder();
            let next = u32::try_from(channels.len()).unwrap_or(u32::MAX);
            let channel = match flow.channel {
                Some(name) => *named
                    .entry((name, requester, responder, flow.class))
                    .or_insert(next),
                None => next,
            };
            if channel == next {
                channels.push(Channel {
                    requester,
                    responder,
                    qpns: None,
                    waiting: std::collections::VecDeque::new(),
                    outstanding: 0,
                    users: 0,
                    failed: false,
                });
            }
            channels[channel as usize].users += 1;
            progress.push(Progress {
                waits_for: u32::try_from(flow.after.len()).unwrap_or(u32::MAX),
                dependents: Vec::new(),
                channel,
                started: None,
                ended: None,
                failed: None,
                arrived: false,
                posted: 0,
                completed: 0,
                received: 0,
                base: Tally::default(),
                tally: Tally::default(),
            });
        }
        for (i, flow) in (0_u32..).zip(&flows) {
            for &before in &flow.after {
                progress[before as usize].dependents.push(i);
            }
        }
        let mut due: Vec<u32> = (0_u32..)
            .zip(&flows)
            .filter(|(_, f)| f.after.is_empty())
            .map(|(i, _)| i)
            .collect();
        due.sort_by_key(|&i| std::cmp::Reverse((flows[i as usize].start, i)));
        Self {
            open: flows.len(),
            flows,
            progress,
            channels,
            due,
            counters: Counters::default(),
            refused: None,
        }
    }

    /// When the next flow begins.
    pub(crate) fn next_start(&self) -> Option<Time> {
        self.due.last().map(|&i| self.flows[i as usize].start)
    }

    fn messages(&self, flow: u32, message_bytes: u64) -> u64 {
        self.flows[flow as usize]
            .bytes
            .div_ceil(message_bytes)
            .max(1)
    }
}

impl Simulation {
    /// Begins all flows that are due, and says when the next is.
    pub(crate) fn start_due(&mut self) {
        while let Some(&flow) = self.traffic.due.last()
            && self.traffic.flows[flow as usize].start <= self.net.now
        {
            self.traffic.due.pop();
            self.begin(flow);
        }
        if let Some(at) = self.traffic.next_start() {
            self.net.at(at, Event::Start);
        }
    }

    fn begin(&mut self, flow: u32) {
        let id = self.traffic.progress[flow as usize].channel;
        if let Err(refused) = self.open_channel(id, flow) {
            self.traffic.refused.get_or_insert(refused);
            return;
        }
        let base = self.channel_tally(id);
        let progress = &mut self.traffic.progress[flow as usize];
        progress.started = Some(self.net.now);
        progress.base = base;
        let channel = &mut self.traffic.channels[id as usize];
        if channel.failed {
            self.finish(flow, Some(WcStatus::WrFlushErr));
            return;
        }
        channel.waiting.push_back(flow);
        self.pump(id);
    }

    fn open_channel(&mut self, id: u32, flow: u32) -> Result<(), EngineError> {
        let channel = &self.traffic.channels[id as usize];
        if channel.qpns.is_some() || channel.failed {
            return Ok(());
        }
        let hosts = [channel.requester, channel.responder];
        let depth = self.transport.depth;
        let mut qpns = [Qpn::default(); 2];
        for (qpn, host) in qpns.iter_mut().zip(hosts) {
            *qpn = self.hosts[host as usize].create_qp(depth)?;
        }
        let spec = &self.traffic.flows[flow as usize];
        let congestion = spec
            .congestion
            .as_ref()
            .unwrap_or(&self.transport.congestion);
        let class = &self.classes[spec.class];
        for i in [0, 1] {
            let end = End {
                peer: hosts[1 - i],
                own: qpns[i],
                theirs: qpns[1 - i],
                class,
                rate_limit: spec.rate_limit,
                sends_data: (spec.op == Op::Read) == (i == 1),
            };
            self.hosts[hosts[i] as usize].connect(&end, &self.transport, congestion)?;
        }
        self.traffic.channels[id as usize].qpns = Some(qpns);
        Ok(())
    }

    /// Posts as many messages as the queue pair takes.
    fn pump(&mut self, id: u32) {
        let message_bytes = self.transport.message_bytes;
        loop {
            let channel = &mut self.traffic.channels[id as usize];
            let (Some(&flow), Some(qpns)) = (channel.waiting.front(), channel.qpns) else {
                return;
            };
            if channel.outstanding >= self.transport.depth {
                return;
            }
            let (requester, responder) = (channel.requester, channel.responder);
            let all = self.traffic.messages(flow, message_bytes);
            let spec = &self.traffic.flows[flow as usize];
            let (op, bytes) = (spec.op, spec.bytes);
            let n = self.traffic.progress[flow as usize].posted;
            let len = (bytes - (n * message_bytes).min(bytes)).min(message_bytes);
            let len = u32::try_from(len).unwrap_or(0);
            let wr_id = (u64::from(flow) << SEQUENCE_BITS) | (n & u64::from(u32::MAX));
            let posted = self.post(&[requester, responder], qpns, wr_id, op, len);
            if let Err(refused) = posted {
                self.traffic.refused.get_or_insert(refused);
                return;
            }
            let channel = &mut self.traffic.channels[id as usize];
            channel.outstanding += 1;
            let progress = &mut self.traffic.progress[flow as usize];
            progress.posted += 1;
            if progress.posted == all {
                channel.waiting.pop_front();
            }
            self.poll_soon(requester);
        }
    }

    fn post(
        &mut self,
        hosts: &[u32; 2],
        qpns: [Qpn; 2],
        wr_id: u64,
        op: Op,
        len: u32,
    ) -> Result<(), EngineError> {
        let indices = hosts.map(|h| h as usize);
        // The two are different: checked with the set-up.
        let Ok([requester, responder]) = self.hosts.get_disjoint_mut(indices) else {
            return Ok(());
        };
        if op.notifies() {
            responder.post_receive(qpns[1], wr_id, len)?;
        }
        requester.post(qpns[0], wr_id, op, len, responder)
    }

    /// Takes what has completed at a host; whether there was anything.
    pub(crate) fn collect(&mut self, host: usize) -> bool {
        let mut done = std::mem::take(&mut self.scratch);
        self.hosts[host].completions(&mut done);
        let any = !done.is_empty();
        for completion in done.drain(..) {
            self.completed(&completion);
        }
        self.scratch = done;
        any
    }

    fn completed(&mut self, completion: &Completion) {
        let received = completion.wr_id & RECEIVE != 0;
        let flow = u32::try_from((completion.wr_id & !RECEIVE) >> SEQUENCE_BITS).unwrap_or(0);
        let progress = &mut self.traffic.progress[flow as usize];
        if progress.ended.is_some() && !received {
            return;
        }
        let id = progress.channel;
        if completion.status != WcStatus::Success {
            self.fail(id, completion.status);
            return;
        }
        let all = self.traffic.messages(flow, self.transport.message_bytes);
        let progress = &mut self.traffic.progress[flow as usize];
        if received {
            progress.received += 1;
            if progress.received == all {
                self.arrived(flow);
            }
            return;
        }
        progress.completed += 1;
        let ended = progress.completed == all;
        self.traffic.channels[id as usize].outstanding -= 1;
        if ended {
            self.finish(flow, None);
        } else {
            self.pump(id);
        }
    }

    /// The data of a flow is where it was to go: others may begin.
    fn arrived(&mut self, flow: u32) {
        let progress = &mut self.traffic.progress[flow as usize];
        if std::mem::replace(&mut progress.arrived, true) {
            return;
        }
        let longest = self.traffic.flows[flow as usize]
            .bytes
            .min(self.transport.message_bytes);
        self.memory.arrived = self.memory.arrived.max(longest);
        let dependents = std::mem::take(&mut self.traffic.progress[flow as usize].dependents);
        for next in dependents {
            let waits_for = &mut self.traffic.progress[next as usize].waits_for;
            *waits_for -= 1;
            if *waits_for == 0 {
                self.begin_in_time(next);
            }
        }
    }

    fn begin_in_time(&mut self, flow: u32) {
        let start = self.traffic.flows[flow as usize].start;
        if start <= self.net.now {
            self.begin(flow);
            return;
        }
        let flows = &self.traffic.flows;
        let due = &mut self.traffic.due;
        let at = due.partition_point(|&i| flows[i as usize].start > start);
        due.insert(at, flow);
        self.net.at(start, Event::Start);
    }

    /// A flow is over, well or not.
    fn finish(&mut self, flow: u32, failed: Option<WcStatus>) {
        let id = self.traffic.progress[flow as usize].channel;
        let tally = self.channel_tally(id);
        let progress = &mut self.traffic.progress[flow as usize];
        progress.ended = Some(self.net.now);
        progress.failed = failed;
        progress.tally = tally.since(progress.base);
        self.traffic.open -= 1;
        let notifies = self.traffic.flows[flow as usize].op.notifies();
        if failed.is_none() && !notifies {
            self.arrived(flow);
        }
        let channel = &mut self.traffic.channels[id as usize];
        channel.users -= 1;
        if channel.users == 0 {
            self.close(id);
        } else {
            self.pump(id);
        }
    }

    /// A queue pair broke: all flows on it end.
    fn fail(&mut self, id: u32, status: WcStatus) {
        let channel = &mut self.traffic.channels[id as usize];
        if std::mem::replace(&mut channel.failed, true) {
            return;
        }
        channel.waiting.clear();
        let open = |p: &Progress| p.channel == id && p.started.is_some() && p.ended.is_none();
        let broken: Vec<u32> = (0_u32..)
            .zip(&self.traffic.progress)
            .filter(|(_, p)| open(p))
            .map(|(i, _)| i)
            .collect();
        for flow in broken {
            self.finish(flow, Some(status));
        }
    }

    /// Both queue pairs go; their counters stay.
    fn close(&mut self, id: u32) {
        let channel = &self.traffic.channels[id as usize];
        let (Some(qpns), hosts) = (channel.qpns, [channel.requester, channel.responder]) else {
            return;
        };
        for (qpn, host) in qpns.into_iter().zip(hosts) {
            let host = &mut self.hosts[host as usize];
            self.traffic.counters += host.counters(qpn);
            // It exists: nobody else destroys any.
            let _ = host.engine.destroy_qp(qpn);
        }
        self.traffic.channels[id as usize].qpns = None;
    }

    /// Counters of all queue pairs, those that are gone included.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = self.traffic.counters;
        for channel in &self.traffic.channels {
            let Some(qpns) = channel.qpns else { continue };
            for (qpn, host) in qpns.into_iter().zip([channel.requester, channel.responder]) {
                sum += self.hosts[host as usize].counters(qpn);
            }
        }
        sum
    }

    /// What a channel's two queue pairs have counted.
    fn channel_tally(&self, id: u32) -> Tally {
        let channel = &self.traffic.channels[id as usize];
        let Some(qpns) = channel.qpns else {
            return Tally::default();
        };
        let requester = self.hosts[channel.requester as usize].counters(qpns[0]);
        let responder = self.hosts[channel.responder as usize].counters(qpns[1]);
        let mtu = self.transport.path_mtu.bytes() as u64;
        // Request packets that were not taken, if data comes in requests.
        let again = match self.transport.recovery.discards_out_of_sequence() {
            true => responder.duplicates + responder.out_of_sequence,
            false => responder.duplicates,
        };
        let written = responder.rx_bytes.saturating_sub(again * mtu);
        Tally {
            received: written + requester.rx_bytes,
            retransmits: requester.retransmits,
            timeouts: requester.timeouts,
            cnps: requester.cnps_in + responder.cnps_in,
            ce: requester.ce_marked + responder.ce_marked,
        }
    }

    /// Bytes of a flow that have arrived, and its counters so far.
    pub(crate) fn flow_tally(&self, flow: usize) -> (u64, Tally) {
        let progress = &self.traffic.progress[flow];
        let bytes = self.traffic.flows[flow].bytes;
        if progress.started.is_none() {
            return (0, Tally::default());
        }
        let tally = match progress.ended {
            Some(_) => progress.tally,
            None => self.channel_tally(progress.channel).since(progress.base),
        };
        let complete = progress
            .completed
            .saturating_mul(self.transport.message_bytes);
        let whole = progress.ended.is_some() && progress.failed.is_none();
        let received = if whole {
            bytes
        } else {
            tally.received.max(complete).min(bytes)
        };
        (received, tally)
    }
}
