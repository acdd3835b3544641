//! What the thread does when there is nothing to do.
//!
//! A process is active while it posts: its marks are looked at in every turn, and it rings for
//! nobody. One that has been quiet for a while is parked: a word in its memory asks it to ring, and
//! no turn costs anything for it. Before the thread sleeps, all are parked.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use xroce_api::{PollMode, clock};
use xroce_net::datapath::Datapath;
use xroce_proto::time::{Duration, Instant};

use super::client::ClientId;
use super::{Server, find};
use crate::mailbox::Mailbox;

/// Without work for so long, an adaptive thread offers its core to others in every turn.
const SPIN: Duration = Duration::from_micros(5);
/// Without work for so long, it sleeps; longer than it takes to be woken, or two that talk to each
/// other would both sleep between any two messages.
const AWAKE: Duration = Duration::from_micros(1_000);
/// Longest sleep: a port has things to look after that wake nobody.
const SLEEP_MAX: Duration = Duration::from_millis(5);
/// The same for a port without a descriptor.
const BLIND_SLEEP: Duration = Duration::from_micros(100);
/// A process quiet for so long is parked.
const QUIET: Duration = Duration::from_millis(5);
/// How often a thread that does not sleep looks for quiet processes, and for parked ones that ring.
const PARK_EVERY: Duration = Duration::from_millis(1);
const RINGS_EVERY: Duration = Duration::from_micros(20);
/// Descriptors looked at in one go.
const READY: usize = 64;

/// What is in the data of a descriptor that is no process.
const MAILBOX: u64 = u64::MAX;
const PORT: u64 = u64::MAX - 1;

/// What it waits on.
#[derive(Debug)]
pub(super) struct Rest {
    mode: PollMode,
    epoll: OwnedFd,
    has_port: bool,
    last_work: Instant,
    parked_at: Instant,
    rings_at: Instant,
}

impl Rest {
    pub(super) fn new<D: Datapath>(
        mode: PollMode,
        mailbox: &Mailbox<D>,
        port: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(MAILBOX);
        epoll::add(&epoll, mailbox.as_fd(), data, epoll::EventFlags::IN)?;
        if let Some(port) = port {
            let data = epoll::EventData::new_u64(PORT);
            epoll::add(&epoll, port, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            mode,
            epoll,
            has_port: port.is_some(),
            last_work: clock::now(),
            parked_at: Instant::default(),
            rings_at: Instant::default(),
        })
    }

    /// Edge-triggered, so that nobody has to read it.
    pub(super) fn watch(&self, id: ClientId, kick: &OwnedFd) -> std::io::Result<()> {
        let data = u64::from(id.life) << 32 | u64::from(id.slot);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            kick,
            epoll::EventData::new_u64(data),
            flags,
        )?)
    }

    pub(super) fn forget(&self, kick: &OwnedFd) {
        // The process may have the other copy open for long: closing ours is not enough.
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// A broken port may be readable for ever.
    pub(super) fn forget_port(&mut self, port: Option<BorrowedFd<'_>>) {
        if let Some(port) = port.filter(|_| self.has_port) {
            let _ = epoll::delete(&self.epoll, port);
        }
    }

    /// Processes that have rung, waiting up to `timeout`.
    fn rung(&self, timeout: Duration, each: &mut impl FnMut(ClientId)) {
        let timeout = Timespec::try_from(std::time::Duration::from_nanos(timeout.as_nanos())).ok();
        let mut room = [MaybeUninit::uninit(); READY];
        // An interrupted wait is a short one.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut room, timeout.as_ref()) else {
            return;
        };
        for event in ready {
            let data = event.data.u64();
            if data != MAILBOX && data != PORT {
                each(ClientId {
                    slot: (data & 0xffff_ffff) as u32,
                    life: (data >> 32) as u32,
                });
            }
        }
    }
}

impl<D: Datapath> Server<D> {
    #[inline]
    pub(super) fn rest(&mut self, now: Instant, worked: bool) {
        if worked {
            self.rest.last_work = now;
        }
        if now.since(self.rest.rings_at) >= RINGS_EVERY {
            self.rest.rings_at = now;
            self.look_at_parked(now);
        }
        if worked {
            return;
        }
        let idle = now.since(self.rest.last_work);
        match self.rest.mode {
            PollMode::Adaptive if idle >= AWAKE => self.sleep(now),
            PollMode::Adaptive if idle >= SPIN => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }

    /// While awake: parks who is quiet, takes back who rings.
    fn look_at_parked(&mut self, now: Instant) {
        if now.since(self.rest.parked_at) >= PARK_EVERY {
            self.rest.parked_at = now;
            self.park_quiet(now);
        }
        if self.active.len() < self.attached {
            self.wake_rung(Duration::default());
        }
    }

    fn park_quiet(&mut self, now: Instant) {
        let clients = &mut self.clients;
        self.active.retain(|&id| {
            let Some(client) = find(clients, id) else {
                return false;
            };
            if now.since(client.seen) < QUIET || !client.news.is_empty() {
                return true;
            }
            client.park.park();
            if client.has_marks() {
                client.park.unpark();
                return true;
            }
            false
        });
    }

    fn wake_rung(&mut self, timeout: Duration) {
        let Self {
            rest,
            clients,
            active,
            ..
        } = self;
        let now = clock::now();
        rest.rung(timeout, &mut |id| {
            if let Some(client) = find(clients, id)
                && client.link.expelled().is_none()
            {
                client.park.unpark();
                client.seen = now;
                if !active.contains(&id) {
                    active.push(id);
                }
            }
        });
    }

    #[cold]
    fn sleep(&mut self, now: Instant) {
        self.park_quiet(now);
        // Lets the port look after itself.
        if self.broken.is_none()
            && let Err(error) = self.engine.wait(std::time::Duration::ZERO)
        {
            self.lose(&format!("waiting for the port: {error}"));
        }
        let mut timeout = if self.rest.has_port {
            SLEEP_MAX
        } else {
            BLIND_SLEEP
        };
        if self.broken.is_none()
            && let Some(deadline) = self.engine.next_deadline()
        {
            timeout = timeout.min(deadline.since(clock::now()));
        }
        if !self.stalled.is_empty() {
            timeout = timeout.min(Duration::from_micros(200));
        }
        let mut may_sleep = true;
        for &id in &self.active {
            if let Some(client) = find(&mut self.clients, id) {
                client.park.park();
                may_sleep &= !client.has_marks() && client.news.is_empty();
            }
        }
        self.mailbox.lie_down();
        may_sleep &= self.mailbox.is_empty();
        let began = clock::now();
        self.wake_rung(if may_sleep {
            timeout
        } else {
            Duration::default()
        });
        self.mailbox.get_up();
        self.turns.asleep_ns += clock::now().since(began).as_nanos();
        for &id in &self.active {
            if let Some(client) = find(&mut self.clients, id) {
                client.park.unpark();
            }
        }
    }
}
