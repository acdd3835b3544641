//! What the engine's thread keeps of an attached process.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::net::{Shutdown, shutdown};
use xroce_abi::event;
use xroce_control::layout;
use xroce_proto::time::Instant;
use xroce_proto::wc::{Event, Srq};
use xroce_shm::{Consumer, DIRTY_MAX, DirtySet, ParkWord, Producer, Region};
use xroce_wire::newtypes::Qpn;

use super::totals::Totals;
use crate::bell::Bell;
use crate::session::Vitals;

/// A process among those that are attached: its place, and how many lived there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct ClientId {
    pub(crate) slot: u32,
    pub(crate) life: u32,
}

/// What both threads of a process know: the one that talks to it and the engine's.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    expelled: OnceLock<String>,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let expelled = OnceLock::new();
        Self { socket, expelled }
    }

    pub(crate) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Closes the session, for a reason that the process is told.
    pub(crate) fn expel(&self, reason: String) {
        if self.expelled.set(reason).is_ok() {
            // Ends the wait for requests. Fails only if the process hung up.
            let _ = shutdown(&self.socket, Shutdown::Read);
        }
    }

    pub(crate) fn expelled(&self) -> Option<&str> {
        self.expelled.get().map(String::as_str)
    }
}

/// What a queue belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Qp(Qpn),
    Srq(Srq),
}

/// The rings of a queue pair or shared receive queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) target: Target,
    pub(crate) recv: Option<Consumer>,
    pub(crate) send: Option<Consumer>,
    /// It is among those to be looked at.
    listed: bool,
}

impl Queue {
    pub(crate) fn new(target: Target, recv: Option<Consumer>, send: Option<Consumer>) -> Self {
        Self {
            target,
            recv,
            send,
            listed: false,
        }
    }
}

/// An attached process, as its engine sees it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    pub(crate) park: ParkWord,
    sets: Vec<DirtySet>,
    /// Sets that any queue is in.
    sets_used: usize,
    queues: Vec<Option<Queue>>,
    free: Vec<u32>,
    /// Numbers of queues with news.
    pub(crate) news: VecDeque<u32>,
    events: Producer,
    event_bell: Bell,
    /// Kept for the poller to watch.
    pub(crate) kick: OwnedFd,
    /// Work requests taken in a turn.
    pub(crate) budget: u32,
    pub(crate) seen: Instant,
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    vitals: Arc<Vitals>,
    /// Completion queues without room, when last counted.
    pub(crate) stalled: u32,
    events_lost: u64,
    /// What its queue pairs did that are gone.
    pub(crate) retired: Totals,
}

/// No more queues for this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRoom;

/// The memory of a session could not be laid out: never, but for the types.
pub(crate) type Unlaid = Box<dyn std::error::Error + Send + Sync>;

impl Client {
    pub(crate) fn new(
        link: Arc<Link>,
        memory: &Region,
        event_bell: Bell,
        kick: OwnedFd,
        budget: u32,
        vitals: Arc<Vitals>,
    ) -> Result<Self, Unlaid> {
        Ok(Self {
            link,
            park: ParkWord::new(memory, layout::PARK)?,
            sets: layout::sets(memory)?,
            sets_used: 0,
            queues: Vec::new(),
            free: Vec::new(),
            news: VecDeque::new(),
            events: Producer::new(memory, layout::EVENTS, layout::events()?)?,
            event_bell,
            kick,
            budget: budget.max(1),
            seen: Instant::default(),
            posted: 0,
            completed: 0,
            vitals,
            stalled: 0,
            events_lost: 0,
            retired: Totals::default(),
        })
    }

    /// Takes a queue in, and says what it is called.
    pub(crate) fn add_queue(&mut self, queue: Queue) -> Result<u32, NoRoom> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let next = u32::try_from(self.queues.len()).map_err(|_| NoRoom)?;
                if next >= layout::QUEUES_MAX {
                    return Err(NoRoom);
                }
                self.queues.push(None);
                // So that giving a number back, or listing a queue, never allocates.
                self.free.reserve(self.queues.len());
                self.news.reserve(self.queues.len());
                next
            }
        };
        let place = self.queues.get_mut(number as usize).ok_or(NoRoom)?;
        *place = Some(queue);
        let (set, _) = layout::place(number);
        self.sets_used = self.sets_used.max(set as usize + 1);
        Ok(number)
    }

    pub(crate) fn remove_queue(&mut self, number: u32) {
        if let Some(place) = self.queues.get_mut(number as usize)
            && place.take().is_some()
        {
            self.news.retain(|&n| n != number);
            self.free.push(number);
        }
    }

    pub(crate) fn queue(&mut self, number: u32) -> Option<&mut Queue> {
        self.queues.get_mut(number as usize)?.as_mut()
    }

    /// Whether the process has said that a queue has news.
    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        self.sets
            .iter()
            .take(self.sets_used)
            .any(|set| !set.is_empty())
    }

    /// Lists the queues that the process has marked.
    pub(crate) fn collect(&mut self) {
        let Self {
            sets,
            queues,
            news,
            sets_used,
            ..
        } = self;
        let firsts = (0u32..).step_by(DIRTY_MAX as usize);
        for (set, first) in sets.iter().take(*sets_used).zip(firsts) {
            set.drain(|n| {
                let number = first + n;
                // Marks of queues that do not exist (any more) mean nothing.
                if let Some(Some(queue)) = queues.get_mut(number as usize)
                    && !queue.listed
                {
                    queue.listed = true;
                    news.push_back(number);
                }
            });
        }
    }

    /// The next queue to look at; it is not listed any more.
    pub(crate) fn next_news(&mut self) -> Option<u32> {
        let number = self.news.pop_front()?;
        if let Some(queue) = self.queue(number) {
            queue.listed = false;
        }
        Some(number)
    }

    /// Lists a queue that was not emptied.
    pub(crate) fn list_again(&mut self, number: u32) {
        if let Some(queue) = self.queue(number)
            && !queue.listed
        {
            queue.listed = true;
            self.news.push_back(number);
        }
    }

    pub(crate) fn session(&self) -> u32 {
        self.vitals.session
    }

    /// Lets reports see what it has counted.
    pub(crate) fn show(&mut self) {
        let stalled = std::mem::take(&mut self.stalled);
        self.vitals.note(self.posted, self.completed, stalled);
    }

    /// Tells the process of an event. One that finds the ring full is lost, as the newest: the
    /// first tell what began it.
    pub(crate) fn tell(&mut self, source: event::Source, what: Event) -> Result<(), String> {
        let pushed = self.events.push(&event::encode(source, what));
        match pushed {
            Ok(true) => self.event_bell.ring(),
            Ok(false) => self.events_lost += 1,
            Err(error) => return Err(format!("its ring of events: {error}")),
        }
        Ok(())
    }
}
