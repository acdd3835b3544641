//! The cable: forwards frames between the tap and the virtual machine, records each one as its
//! sender made it, and does to it what the rules say.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::SyncDevice;

use super::fault::{Fault, Faults, Rule, Side, Verdict};
use super::flush;
use super::look::{self, Roce};
use super::record::{Fate, Record};
use crate::clock;

/// Longest frame: a 9000-byte packet and its tags.
const FRAME_MAX: usize = 9_216;
/// Frames that wait for a slow end; more are dropped, and said so.
const QUEUE_MAX: usize = 8_192;
/// Frames taken from one end before the other gets its turn.
const BURST: usize = 64;
/// A delayed frame that nothing overtakes goes on after this time.
const DELAY_MAX: Duration = Duration::from_millis(3);
/// How long the loop sleeps without frames, to look at the stop flag.
const IDLE: Duration = Duration::from_millis(50);

/// What both the loop and the scenarios touch.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Rules at work and the record of this scenario.
    state: Mutex<State>,
    stop: AtomicBool,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    record: Record,
    /// Goes up with every `start`: what was held back for an earlier scenario is thrown away.
    epoch: u64,
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                faults: Faults::new(&[], 0),
                record: Record::new(clock::now()),
                epoch: 0,
            }),
            stop: AtomicBool::new(false),
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is a list of frames: whoever panicked left it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New rules and an empty record.
    pub(crate) fn start(&self, rules: &[Rule], seed: u64) {
        let mut state = self.state();
        state.faults = Faults::new(rules, seed);
        state.record = Record::new(clock::now());
        state.epoch += 1;
    }

    /// New rules, the same record.
    pub(crate) fn again(&self, rules: &[Rule], seed: u64) {
        let mut state = self.state();
        state.faults = Faults::new(rules, seed);
        state.epoch += 1;
    }

    /// Number of frames recorded, and of the RoCE packets behind the first `from` those that
    /// rules made vanish.
    pub(crate) fn lost(&self, from: usize) -> (usize, Vec<(Side, Roce)>) {
        let state = self.state();
        let frames = &state.record.frames;
        let gone = frames
            .iter()
            .skip(from)
            .filter(|seen| seen.fate == Fate::Dropped);
        let list = gone.filter_map(|seen| seen.packet.map(|packet| (seen.from, packet)));
        (frames.len(), list.collect())
    }

    /// How long one side has sent no RoCE packet.
    pub(crate) fn silence(&self, from: Side) -> Duration {
        self.state().record.silence(from)
    }

    /// Cuts the cable, or mends it.
    pub(crate) fn set_cut(&self, cut: bool) {
        self.state().faults.set_cut(cut);
    }

    /// Takes the record; the cable is whole from here on and goes on recording.
    pub(crate) fn finish(&self) -> Record {
        let mut state = self.state();
        state.faults = Faults::new(&[], 0);
        std::mem::replace(&mut state.record, Record::new(clock::now()))
    }

    /// Ends the loop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One direction of the cable.
#[derive(Debug)]
struct Lane {
    to: Side,
    ready: VecDeque<Vec<u8>>,
    held: Vec<Held>,
    /// Numbers in the record of frames that became ready since they were last asked for.
    passed: Vec<u64>,
}

#[derive(Debug)]
struct Held {
    frame: Vec<u8>,
    number: u64,
    overtaken_by: usize,
    since: Instant,
}

impl Lane {
    fn new(to: Side) -> Self {
        Self {
            to,
            ready: VecDeque::new(),
            held: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Appends a frame; those it is the last to overtake follow it.
    fn push(&mut self, frame: Vec<u8>, number: u64) -> bool {
        if self.ready.len() >= QUEUE_MAX {
            return false;
        }
        self.ready.push_back(frame);
        self.passed.push(number);
        for held in &mut self.held {
            held.overtaken_by = held.overtaken_by.saturating_sub(1);
        }
        self.release(|held| held.overtaken_by == 0);
        true
    }

    fn release(&mut self, due: impl Fn(&Held) -> bool) {
        let (due, rest): (Vec<_>, Vec<_>) = self.held.drain(..).partition(due);
        self.held = rest;
        for held in due {
            self.ready.push_back(held.frame);
            self.passed.push(held.number);
        }
    }
}

/// The loop.
pub(crate) struct Hop {
    tap: SyncDevice,
    vm: UnixDatagram,
    vm_peer: std::path::PathBuf,
    lanes: [Lane; 2],
    epoch: u64,
    shared: Arc<Shared>,
}

impl Hop {
    pub(crate) fn new(
        tap: SyncDevice,
        vm: UnixDatagram,
        vm_peer: std::path::PathBuf,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        tap.set_nonblocking(true).context("tap")?;
        vm.set_nonblocking(true)
            .context("socket to the virtual machine")?;
        Ok(Self {
            tap,
            vm,
            vm_peer,
            lanes: [Lane::new(Side::Vm), Lane::new(Side::Xroce)],
            epoch: 0,
            shared,
        })
    }

    /// Forwards until told to stop.
    ///
    /// # Errors
    /// An end is broken.
    pub(crate) fn run(mut self) -> Result<()> {
        let mut buffer = vec![0; FRAME_MAX];
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.wait()?;
            for from in [Side::Xroce, Side::Vm] {
                self.receive(from, &mut buffer)?;
            }
            self.release_late();
            self.transmit()?;
        }
        Ok(())
    }

    /// Frames that nothing overtook in time go on.
    fn release_late(&mut self) {
        if self.lanes.iter().all(|lane| lane.held.is_empty()) {
            return;
        }
        let now = clock::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        self.forget_earlier(&state);
        for lane in &mut self.lanes {
            lane.release(|held| now.duration_since(held.since) >= DELAY_MAX);
            lane.passed.drain(..).for_each(|n| state.record.forward(n));
        }
    }

    /// What was held back for an earlier scenario is thrown away.
    fn forget_earlier(&mut self, state: &State) {
        if state.epoch != self.epoch {
            self.epoch = state.epoch;
            for lane in &mut self.lanes {
                lane.held.clear();
            }
        }
    }

    fn wait(&self) -> Result<()> {
        let events = |to: Side| {
            let waiting = self.lanes.iter().any(|l| l.to == to && !l.ready.is_empty());
            if waiting {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            }
        };
        let timeout = if self.lanes.iter().all(|l| l.held.is_empty()) {
            IDLE
        } else {
            DELAY_MAX
        };
        // A virtual machine that does not read leaves its frames waiting: look again later, and
        // meanwhile at the other end.
        let tap = tap_fd(&self.tap);
        let vm = self.vm.as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(tap, events(Side::Xroce)),
            PollFd::from_borrowed_fd(vm, PollFlags::IN),
        ];
        let timeout = if self
            .lanes
            .iter()
            .any(|l| l.to == Side::Vm && !l.ready.is_empty())
        {
            Duration::from_micros(200)
        } else {
            timeout
        };
        let timeout = Timespec::try_from(timeout).context("poll timeout")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e).context("poll"),
        }
    }

    fn receive(&mut self, from: Side, buffer: &mut [u8]) -> Result<()> {
        for _ in 0..BURST {
            let got = match from {
                Side::Xroce => self.tap.recv(buffer),
                Side::Vm => self.vm.recv(buffer),
            };
            let len = match got {
                Ok(len) => len,
                // EIO: the interface is down for the moment.
                Err(e) if is_for_later(&e) || e.raw_os_error() == Some(5) => return Ok(()),
                Err(e) => return Err(e).with_context(|| format!("receiving from {from:?}")),
            };
            let frame = buffer.get(..len).unwrap_or_default().to_vec();
            self.forward(from, frame);
        }
        Ok(())
    }

    fn forward(&mut self, from: Side, frame: Vec<u8>) {
        let packet = look::roce(&frame);
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        self.forget_earlier(&state);
        let verdict = state.faults.judge(from, packet.as_ref());
        let fate = self.apply(from, &frame, packet.as_ref(), verdict, &mut state);
        state.record.add(from, frame, packet, fate);
        for lane in &mut self.lanes {
            lane.passed.drain(..).for_each(|n| state.record.forward(n));
        }
    }

    fn apply(
        &mut self,
        from: Side,
        frame: &[u8],
        packet: Option<&Roce>,
        verdict: Verdict,
        state: &mut State,
    ) -> Fate {
        let to = from.other();
        let number = state.record.next();
        let Some(lane) = self.lanes.iter_mut().find(|l| l.to == to) else {
            return Fate::Overflow;
        };
        let mut copy = frame.to_vec();
        if let Some(packet) = packet {
            flush::translate(&mut copy, packet, from);
        }
        let (fate, fits) = match verdict {
            Verdict::Pass => (Fate::Forwarded, lane.push(copy, number)),
            Verdict::Cut => (Fate::Cut, true),
            Verdict::Hit(Fault::Drop) => (Fate::Dropped, true),
            Verdict::Hit(Fault::Duplicate) => {
                let first = lane.push(copy.clone(), number);
                (Fate::Duplicated, first && lane.push(copy, number))
            }
            Verdict::Hit(Fault::Delay(frames)) => {
                lane.held.push(Held {
                    frame: copy,
                    number,
                    overtaken_by: frames,
                    since: clock::now(),
                });
                (Fate::Delayed, true)
            }
            Verdict::Hit(Fault::Corrupt) => {
                if let Some(packet) = packet {
                    state.faults.corrupt(&mut copy, packet);
                }
                (Fate::Corrupted, lane.push(copy, number))
            }
        };
        if fits { fate } else { Fate::Overflow }
    }

    fn transmit(&mut self) -> Result<()> {
        for lane in &mut self.lanes {
            while let Some(frame) = lane.ready.front() {
                let sent = match lane.to {
                    Side::Xroce => self.tap.send(frame),
                    Side::Vm => self.vm.send_to(frame, &self.vm_peer),
                };
                match sent {
                    Ok(_) => {}
                    Err(e) if is_for_later(&e) => break,
                    // Nobody there (yet, or any more): as with a cable, the frame is lost.
                    Err(e) if is_absent(&e) => {}
                    Err(e) => {
                        return Err(e).with_context(|| format!("sending to {:?}", lane.to));
                    }
                }
                lane.ready.pop_front();
            }
        }
        Ok(())
    }
}

fn is_for_later(e: &io::Error) -> bool {
    // ENOBUFS: the receive queue of the socket is full.
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    ) || e.raw_os_error() == Some(105)
}

fn is_absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    ) || e.raw_os_error() == Some(5)
}

fn tap_fd(tap: &SyncDevice) -> BorrowedFd<'_> {
    tap.as_fd()
}
