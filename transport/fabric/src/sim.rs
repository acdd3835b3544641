//! The loop: events in order of time, and engines polled when something happens at their host.

use xroce_proto::time::Instant;
use xroce_proto::wc::Completion;

use crate::flow::{Class, Transport};
use crate::frame::{Frame, PRIORITIES};
use crate::host::{Host, HostConfig, Memory};
use crate::lane::Node;
use crate::metrics::Recorder;
use crate::net::{Event, Net};
use crate::report::Report;
use crate::setup::{Change, Fault, Setup, SetupError};
use crate::topology::Topology;
use crate::traffic::Traffic;
use crate::units::Time;

/// Polls of a host at one point in time, at most: more frames than all rings hold.
const POLLS_MAX: u32 = 100_000;

/// Idle frames that a host is given before a poll, at least.
const FRAMES_FOR_POLL: usize = 66;

/// A run in progress.
#[derive(Debug)]
pub struct Simulation {
    pub(crate) net: Net,
    pub(crate) hosts: Vec<Host>,
    pub(crate) traffic: Traffic,
    pub(crate) memory: Memory,
    pub(crate) transport: Transport,
    pub(crate) classes: Vec<Class>,
    pub(crate) recorder: Recorder,
    pub(crate) topology: Topology,
    pub(crate) groups: Vec<String>,
    pub(crate) seed: u64,
    pub(crate) warmup: Time,
    pub(crate) scratch: Vec<Completion>,
    pub(crate) polls: u64,
    pub(crate) stuck: bool,
    host: HostConfig,
    faults: Vec<Fault>,
    reroute: Time,
    end: Time,
    events: u64,
}

impl Simulation {
    /// Everything is built; no time has passed.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(setup: Setup) -> Result<Self, SetupError> {
        setup.check()?;
        let max_frame = setup.host.nic.max_frame();
        let mut net = Net::new(&setup.topology, &setup.switch, setup.seed, max_frame)?;
        let memory = Memory::new(setup.transport.message_bytes)?;
        let hosts = hosts(&mut net, &setup, &memory)?;
        let mut faults = setup.faults;
        faults.sort_by_key(|f| std::cmp::Reverse(f.at));
        let recorder = Recorder::new(&net, setup.sample, setup.series_links, setup.series_flows);
        let mut sim = Self {
            net,
            hosts,
            traffic: Traffic::new(setup.flows),
            memory,
            transport: setup.transport,
            classes: setup.classes,
            recorder,
            topology: setup.topology,
            groups: setup.groups,
            seed: setup.seed,
            warmup: setup.warmup,
            scratch: Vec::new(),
            polls: 0,
            stuck: false,
            host: setup.host,
            faults,
            reroute: setup.switch.reroute,
            end: setup.end,
            events: 0,
        };
        sim.first_events();
        Ok(sim)
    }

    fn first_events(&mut self) {
        let start = self.traffic.next_start();
        let fault = self.faults.last().map(|f| f.at);
        let sample = (self.recorder.interval > Time::ZERO).then_some(self.recorder.interval);
        let first = [
            (fault, Event::Fault),
            (start, Event::Start),
            (sample, Event::Sample),
            (
                (self.warmup > Time::ZERO).then_some(self.warmup),
                Event::Warm,
            ),
        ];
        for (at, event) in first {
            if let Some(at) = at {
                self.net.at(at, event);
            }
        }
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.net.now
    }

    /// When the run ends at the latest.
    #[must_use]
    pub fn end(&self) -> Time {
        self.end
    }

    /// Frames enqueued, dequeued and arrived so far, at hops and hosts.
    #[must_use]
    pub fn packet_events(&self) -> u64 {
        self.net.packet_events
    }

    /// Everything that was handled so far, timers and samples included.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Flows that have not ended.
    #[must_use]
    pub fn open_flows(&self) -> usize {
        self.traffic.open
    }

    /// Runs to its end.
    #[must_use]
    pub fn run(mut self) -> Report {
        while self.run_for(self.end) {}
        self.report()
    }

    /// Runs for so much virtual time; `false` when it is over: all flows have ended, or the end
    /// of the run has come.
    pub fn run_for(&mut self, span: Time) -> bool {
        let until = (self.net.now + span).min(self.end);
        self.net.at(until, Event::Stop);
        while let Some((at, event)) = self.net.events.pop() {
            self.net.now = Time::from_ps(at);
            if event == Event::Stop {
                break;
            }
            self.events += 1;
            self.handle(event);
            if self.is_over() {
                return false;
            }
        }
        self.net.now < self.end
    }

    fn is_over(&self) -> bool {
        self.traffic.open == 0 || self.traffic.refused.is_some() || self.stuck
    }

    /// What has happened so far.
    #[must_use]
    pub fn report(&mut self) -> Report {
        self.recorder.finish(&mut self.net);
        Report::new(self)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(lane) => self.arrive(lane),
            Event::Free(lane) => self.free(lane),
            Event::Pause {
                lane,
                priority,
                on,
                epoch,
            } => {
                let about = self.net.paused(lane, priority, on, epoch);
                self.wake_sender(about);
            }
            Event::Poll(host) => {
                if self.hosts[host as usize].poll_at == self.net.now {
                    self.poll(host);
                }
            }
            Event::Start => self.start_due(),
            Event::Fault => self.fault(),
            Event::Reroute => self.net.reroute(),
            Event::Sample => self.sample(),
            Event::Warm => {
                let now = self.net.now;
                self.net
                    .lanes
                    .iter_mut()
                    .for_each(|lane| lane.start_over(now));
                self.recorder.start_over();
            }
            Event::Stop => {}
        }
    }

    fn arrive(&mut self, id: u32) {
        let now = self.net.now.ps();
        let lane = &mut self.net.lanes[id as usize];
        let (to, port) = (lane.to, lane.to_port);
        match to {
            Node::Switch(s) => {
                while let Some(frame) = self.net.lanes[id as usize].arrived(now) {
                    self.net.forward(s, port, frame);
                }
            }
            Node::Host(h) => {
                let mut any = false;
                while let Some(frame) = self.net.lanes[id as usize].arrived(now) {
                    self.receive(h, frame);
                    any = true;
                }
                if any {
                    self.notice(h);
                }
            }
        }
    }

    fn receive(&mut self, host: u32, frame: Frame) {
        self.net.packet_events += 1;
        let port = self.hosts[host as usize].engine.port_mut();
        match port.arrive(frame) {
            Ok(()) => self.net.census.delivered += 1,
            Err(frame) => {
                self.net.census.dropped_ring += 1;
                self.net.pool.give(frame);
            }
        }
    }

    /// Something is in a host's ring.
    fn notice(&mut self, host: u32) {
        let h = &self.hosts[host as usize];
        let at = self.net.now.max(h.last_poll + self.host.poll_interval);
        if at == self.net.now {
            self.poll(host);
        } else {
            self.poll_at(host, at);
        }
    }

    /// Polls a host in this instant, after what is being done.
    pub(crate) fn poll_soon(&mut self, host: u32) {
        self.poll_at(host, self.net.now);
    }

    fn poll_at(&mut self, host: u32, at: Time) {
        let h = &mut self.hosts[host as usize];
        if at < h.poll_at {
            h.poll_at = at;
            self.net.at(at, Event::Poll(host));
        }
    }

    fn free(&mut self, lane: u32) {
        self.net.lanes[lane as usize].busy = false;
        self.net.transmit(lane);
        self.wake_sender(lane);
    }

    /// Polls the host at the start of a lane if it waits for room and has enough of it again:
    /// half a queue, so that one poll is for several frames.
    fn wake_sender(&mut self, lane: u32) {
        let Node::Host(h) = self.net.lanes[lane as usize].from else {
            return;
        };
        if self.hosts[h as usize].blocked && self.room(lane) * 2 >= self.host.nic.queue {
            self.poll(h);
        }
    }

    /// Frames that a host may hand to its port, whatever their priority.
    fn room(&self, lane: u32) -> usize {
        let egress = &self.net.lanes[lane as usize].egress;
        let of = |p: usize| {
            let most = match egress.is_paused(p) {
                true => self.host.nic.paused_queue,
                false => self.host.nic.queue,
            };
            most.saturating_sub(egress.frames_of(p))
        };
        (0..PRIORITIES).map(of).min().unwrap_or(0)
    }

    /// Lets an engine do all it can do now.
    fn poll(&mut self, host: u32) {
        let now = self.net.now;
        let clock = Instant::from_nanos(now.ns());
        let i = host as usize;
        self.hosts[i].last_poll = now;
        for round in 0.. {
            self.polls += 1;
            let lane = self.hosts[i].lane;
            let room = self.room(lane);
            let h = &mut self.hosts[i];
            let port = h.engine.port_mut();
            port.room = room;
            port.refused = false;
            self.net.pool.level(&mut port.spare, FRAMES_FOR_POLL);
            // A simulated port has no errors.
            let idle = h.engine.poll_once(clock).is_ok_and(|work| work.is_idle());
            let port = h.engine.port_mut();
            h.blocked = port.refused;
            for frame in port.out.drain(..) {
                self.net.send(lane, frame);
            }
            let posted = self.collect(i);
            if idle && !posted {
                break;
            }
            if round > POLLS_MAX {
                self.stuck = true;
                break;
            }
        }
        let h = &mut self.hosts[i];
        let next = h.next_poll(now);
        h.poll_at = next;
        if next < Time::MAX {
            self.net.at(next, Event::Poll(host));
        }
    }

    fn fault(&mut self) {
        while let Some(fault) = self.faults.last().copied()
            && fault.at <= self.net.now
        {
            self.faults.pop();
            self.apply(&fault);
        }
        if let Some(next) = self.faults.last() {
            let at = next.at;
            self.net.at(at, Event::Fault);
        }
    }

    fn apply(&mut self, fault: &Fault) {
        let there = u32::try_from(fault.link * 2).unwrap_or(0);
        let lanes = [there, there + 1];
        match fault.change {
            Change::Down | Change::Up => {
                let up = fault.change == Change::Up;
                for lane in lanes {
                    self.net.set_up(lane, up);
                }
                for lane in lanes {
                    self.wake_sender(lane);
                }
                let at = self.net.now + self.reroute;
                self.net.at(at, Event::Reroute);
            }
            Change::Wire {
                there,
                back,
                rate,
                impairment,
            } => {
                for (lane, wanted) in lanes.into_iter().zip([there, back]) {
                    if wanted {
                        self.net.set_wire(lane, rate, impairment);
                    }
                }
            }
            Change::Storm {
                from_a,
                priority,
                on,
            } => {
                let lane = if from_a { there } else { there + 1 };
                self.net.signal(lane, priority, on);
            }
        }
    }

    fn sample(&mut self) {
        self.take_sample();
        let at = self.net.now + self.recorder.interval;
        self.net.at(at, Event::Sample);
    }
}

fn hosts(net: &mut Net, setup: &Setup, memory: &Memory) -> Result<Vec<Host>, SetupError> {
    let mut uplinks = vec![0; setup.topology.hosts.len()];
    for (id, lane) in (0_u32..).zip(&mut net.lanes) {
        if let Node::Host(h) = lane.from {
            uplinks[h as usize] = id;
        }
        if let Node::Host(_) = lane.to {
            // What the host takes to notice a frame is as a longer last link.
            lane.delay += setup.host.delay;
        }
    }
    let mut hosts = Vec::with_capacity(uplinks.len());
    for (number, lane) in (0_u32..).zip(uplinks) {
        hosts.push(Host::new(
            number,
            lane,
            &setup.host,
            memory,
            setup.transport.depth,
        )?);
    }
    Ok(hosts)
}
