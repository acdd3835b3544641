//! The thread that has the engine: commands, doorbells, one poll, completions and events, rest.

pub(crate) mod client;
mod post;
mod receives;
mod rest;
pub(crate) mod seats;
pub(crate) mod totals;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, RwLock};

use xroce_abi::event;
use xroce_api::{PollMode, clock};
use xroce_api::{Source, Work};
use xroce_engine::Engine;
use xroce_net::addressing::Addressing;
use xroce_net::datapath::Datapath;
use xroce_proto::qp::{QpAttr, QpState};
use xroce_proto::time::{Duration, Instant};
use xroce_proto::wc::{Cq, Event, Srq};
use xroce_wire::newtypes::Qpn;

use crate::mailbox::Mailbox;
use crate::tap::Tap;
use client::{Client, ClientId, NoRoom, Queue};
use receives::{Owner, Rings};
use rest::Rest;
use seats::Seat;
use totals::Totals;

/// Commands run in a turn, at most: each is short, many are not.
const COMMANDS: usize = 16;
/// Addresses, link and ICMP errors are looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After handing on what was received, the answer is waited for so long before anything else: it
/// then leaves together with the ACK, in one system call instead of two.
const ANSWER: Duration = Duration::from_nanos(800);
/// Queues without room are looked at so often, and so many at a time: processes that do not poll take
/// little from those that do.
const STALLED_EVERY: Duration = Duration::from_micros(20);
const STALLED: usize = 16;

/// What the thread has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    pub(crate) polls: u64,
    pub(crate) busy: u64,
    pub(crate) asleep_ns: u64,
}

/// What processes have posted.
#[derive(Clone, Copy, Debug, Default)]
struct Posts {
    any: bool,
    /// There were sends among it.
    sends: bool,
}

/// An engine and the processes it serves.
#[derive(Debug)]
pub(crate) struct Server<D: Datapath> {
    pub(crate) engine: Engine<Tap<D>>,
    mailbox: Arc<Mailbox<D>>,
    addressing: Arc<RwLock<Addressing>>,
    clients: Vec<(u32, Option<Client>)>,
    /// Of which so many are there.
    attached: usize,
    /// Those that may write without ringing.
    active: Vec<ClientId>,
    /// By slot of the completion queue.
    seats: Vec<Option<Seat>>,
    /// Completion queues whose ring has no room, the one looked at longest ago first.
    stalled: VecDeque<Cq>,
    owners: HashMap<Qpn, Owner>,
    /// Queue pairs by session and number, the order of listings: a page of one costs its own length.
    pub(crate) listing: BTreeMap<(u32, u32), Qpn>,
    /// What queue pairs did that are gone.
    retired: Totals,
    srq_owners: HashMap<Srq, Owner>,
    scratch: post::Scratch,
    rest: Rest,
    looked: Instant,
    retried: Instant,
    pub(crate) turns: Turns,
    pub(crate) began: Instant,
    pub(crate) expelled: u64,
    /// Why the port does not work any more.
    pub(crate) broken: Option<String>,
    stopping: bool,
}

impl<D: Datapath> Server<D> {
    pub(crate) fn new(
        engine: Engine<Tap<D>>,
        mailbox: Arc<Mailbox<D>>,
        addressing: Arc<RwLock<Addressing>>,
        mode: PollMode,
    ) -> std::io::Result<Self> {
        let rest = Rest::new(mode, &mailbox, engine.readiness())?;
        Ok(Self {
            engine,
            mailbox,
            addressing,
            clients: Vec::new(),
            attached: 0,
            active: Vec::new(),
            seats: Vec::new(),
            stalled: VecDeque::new(),
            owners: HashMap::new(),
            listing: BTreeMap::new(),
            retired: Totals::default(),
            srq_owners: HashMap::new(),
            scratch: post::SCRATCH,
            rest,
            looked: Instant::default(),
            retried: Instant::default(),
            turns: Turns::default(),
            began: clock::now(),
            expelled: 0,
            broken: None,
            stopping: false,
        })
    }

    /// Until it is told to stop.
    pub(crate) fn run(mut self) {
        let mailbox = Arc::clone(&self.mailbox);
        while !self.stopping {
            let now = clock::now();
            let worked = self.turn(now);
            self.turns.polls += 1;
            self.turns.busy += u64::from(worked);
            self.rest(now, worked);
        }
        mailbox.close();
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Everything that can be done now; whether there was anything.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = self.obey();
        worked |= self.take_posts(now).any;
        if self.broken.is_none() {
            match self.poll(now) {
                Ok(work) => worked |= !work.is_idle(),
                Err(error) => self.lose(&error.to_string()),
            }
        }
        if now.since(self.looked) >= LOOK_EVERY {
            self.look_around(now);
        }
        if self.settle(now) {
            self.await_answer(now);
        }
        worked
    }

    /// One poll of the engine, which looks into the rings itself where it needs a receive.
    fn poll(&mut self, now: Instant) -> std::io::Result<Work> {
        let mut rings = Rings {
            clients: &mut self.clients,
            owners: &self.owners,
            srq_owners: &self.srq_owners,
            scratch: &mut self.scratch,
            wrong: Vec::new(),
        };
        let polled = self.engine.poll_with(now, &mut rings);
        for (id, wrong) in rings.wrong {
            self.expel(id, wrong);
        }
        polled
    }

    /// Waits a moment for whoever just received something to send something. Receives that are
    /// posted meanwhile are taken.
    fn await_answer(&mut self, now: Instant) {
        let began = clock::now();
        while !self.take_posts(now).sends && clock::now().since(began) < ANSWER {
            std::hint::spin_loop();
        }
    }

    fn obey(&mut self) -> bool {
        let mut any = false;
        for _ in 0..COMMANDS {
            let Some(command) = self.mailbox.take() else {
                break;
            };
            command(self);
            any = true;
        }
        any
    }

    /// Work requests of those who have news, from each up to its budget.
    fn take_posts(&mut self, now: Instant) -> Posts {
        let mut all = Posts::default();
        for n in 0..self.active.len() {
            let Some(&id) = self.active.get(n) else { break };
            let of = self.take_posts_of(id, now);
            all.any |= of.any;
            all.sends |= of.sends;
        }
        // Whoever was first is last next time.
        if all.any && self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        all
    }

    fn take_posts_of(&mut self, id: ClientId, now: Instant) -> Posts {
        let Self {
            engine,
            clients,
            scratch,
            ..
        } = self;
        let Some(client) = find(clients, id) else {
            return Posts::default();
        };
        if client.has_marks() {
            client.collect();
        }
        if client.news.is_empty() {
            return Posts::default();
        }
        client.seen = now;
        let mut posts = Posts {
            any: true,
            sends: false,
        };
        let mut left = client.budget;
        // Each listed queue once: what is left over waits for the next turn.
        for _ in 0..client.news.len() {
            let Some(number) = client.next_news() else {
                break;
            };
            let Some(queue) = client.queue(number) else {
                continue;
            };
            match post::take(engine, queue, left, scratch) {
                Ok(taken) => {
                    client.posted += u64::from(taken.count);
                    posts.sends |= taken.sends != 0;
                    left -= taken.count.min(left);
                    if taken.more {
                        client.list_again(number);
                    }
                }
                Err(wrong) => {
                    self.expel(id, wrong);
                    return posts;
                }
            }
        }
        posts
    }

    /// Completions and events that came about; whether anybody received anything.
    fn settle(&mut self, now: Instant) -> bool {
        let mut received = false;
        while let Some(cq) = self.engine.poll_notification() {
            received |= self.pump(cq);
        }
        if !self.stalled.is_empty() && now.since(self.retried) >= STALLED_EVERY {
            self.retried = now;
            for _ in 0..self.stalled.len().min(STALLED) {
                let Some(cq) = self.stalled.pop_front() else {
                    break;
                };
                if let Some(Some(seat)) = self.seats.get_mut(cq.slot()) {
                    seat.stalled = false;
                }
                self.pump(cq);
            }
        }
        while let Some(event) = self.engine.poll_event() {
            self.announce(event.source, event.event);
        }
        received
    }

    /// Moves completions of a queue to its process; whether there were receives among them.
    fn pump(&mut self, cq: Cq) -> bool {
        let Some(Some(seat)) = self.seats.get_mut(cq.slot()) else {
            return false;
        };
        if seat.cq != cq {
            return false;
        }
        let id = seat.client;
        match seat.pump(&mut self.engine) {
            Ok(moved) => {
                if moved.stalled && !seat.stalled {
                    seat.stalled = true;
                    self.stalled.push_back(cq);
                }
                if let Some(client) = find(&mut self.clients, id) {
                    client.completed += u64::from(moved.count);
                }
                moved.received
            }
            Err(wrong) => {
                self.expel(id, wrong);
                false
            }
        }
    }

    #[cold]
    fn announce(&mut self, source: Source, what: Event) {
        let (source, owner) = match source {
            Source::Qp(qpn) => (
                event::Source::Qp(qpn),
                self.owners.get(&qpn).map(|owner| owner.client),
            ),
            Source::Srq(srq) => (
                event::Source::Srq(srq),
                self.srq_owners.get(&srq).map(|owner| owner.client),
            ),
            Source::Cq(cq) => {
                let seat = self.seats.get(cq.slot()).and_then(Option::as_ref);
                let owner = seat.filter(|s| s.cq == cq).map(|s| s.client);
                (event::Source::Cq(cq), owner)
            }
            Source::Port => return self.announce_to_all(what),
        };
        if let Some(id) = owner {
            self.tell(id, source, what);
        }
    }

    fn announce_to_all(&mut self, what: Event) {
        for id in self.ids() {
            self.tell(id, event::Source::Port, what);
        }
    }

    fn tell(&mut self, id: ClientId, source: event::Source, what: Event) {
        if let Some(client) = find(&mut self.clients, id)
            && let Err(wrong) = client.tell(source, what)
        {
            self.expel(id, wrong);
        }
    }

    pub(crate) fn ids(&self) -> Vec<ClientId> {
        let all = (0u32..).zip(&self.clients);
        let there = all.filter(|(_, (_, client))| client.is_some());
        there
            .map(|(slot, &(life, _))| ClientId { slot, life })
            .collect()
    }

    /// Ends a session for cause. Its objects are destroyed by the thread that talks to the process.
    #[cold]
    pub(crate) fn expel(&mut self, id: ClientId, reason: String) {
        let Some(client) = find(&mut self.clients, id) else {
            return;
        };
        if client.link.expelled().is_none() {
            tracing::warn!(session = client.session(), reason, "session closed");
            self.expelled += 1;
        }
        client.link.expel(reason);
        client.news.clear();
        self.active.retain(|&other| other != id);
    }

    /// The port is broken: all sessions end.
    #[cold]
    fn lose(&mut self, reason: &str) {
        let port = self.engine.caps().name.clone();
        tracing::error!(port, reason, "device broken");
        let reason = format!("device {port} is broken: {reason}");
        self.rest.forget_port(self.engine.readiness());
        self.announce_to_all(Event::DeviceFatal);
        for id in self.ids() {
            self.expel(id, reason.clone());
        }
        self.broken = Some(reason);
    }

    /// What happened to addresses and link, and what ICMP said.
    #[cold]
    fn look_around(&mut self, now: Instant) {
        // Somebody resolves a neighbour, which may take seconds: another time.
        let addressing = Arc::clone(&self.addressing);
        let Ok(mut addressing) = addressing.try_write() else {
            return;
        };
        self.looked = now;
        self.show_clients();
        let engine = &mut self.engine;
        let mut changed = false;
        let polled = addressing.poll(&mut |event| {
            engine.apply(&event);
            changed = true;
        });
        if let Err(error) = polled {
            tracing::warn!(%error, "the kernel does not tell what happens to addresses");
        }
    }
}

/// The end, and what reports ask.
impl<D: Datapath> Server<D> {
    /// Lets reports see what each process has done.
    pub(crate) fn show_clients(&mut self) {
        self.stalled.iter().for_each(|cq| {
            if let Some(Some(seat)) = self.seats.get(cq.slot())
                && let Some(client) = find(&mut self.clients, seat.client)
            {
                client.stalled += 1;
            }
        });
        for (_, client) in &mut self.clients {
            if let Some(client) = client {
                client.show();
            }
        }
    }

    /// Sends that are not completed.
    pub(crate) fn outstanding(&self) -> u64 {
        let of = |qpn: &Qpn| self.engine.sends_posted(*qpn).unwrap_or(0);
        self.owners.keys().map(|qpn| u64::from(of(qpn))).sum()
    }

    /// All queue pairs of processes.
    pub(crate) fn qpns(&self) -> Vec<Qpn> {
        self.owners.keys().copied().collect()
    }

    /// Flushes what is posted, hands the completions on, and closes all sessions.
    pub(crate) fn flush_and_expel(&mut self, reason: &str) {
        for qpn in self.qpns() {
            // One in RESET has nothing to flush and stays.
            let _ = self.engine.modify_qp(qpn, &QpAttr::state(QpState::Err));
        }
        self.settle(clock::now());
        self.announce_to_all(Event::DeviceFatal);
        for id in self.ids() {
            self.expel(id, reason.to_owned());
        }
    }
}

/// Commands of the threads that talk to processes.
impl<D: Datapath> Server<D> {
    /// Takes a process in.
    pub(crate) fn add_client(&mut self, client: Client) -> std::io::Result<ClientId> {
        let vacant = self.clients.iter().position(|(_, client)| client.is_none());
        let slot = vacant.unwrap_or_else(|| {
            self.clients.push((0, None));
            self.clients.len() - 1
        });
        let Some((life, place)) = self.clients.get_mut(slot) else {
            return Err(std::io::Error::other("no place for another session"));
        };
        *life = life.wrapping_add(1);
        let id = ClientId {
            slot: u32::try_from(slot).map_err(std::io::Error::other)?,
            life: *life,
        };
        self.rest.watch(id, &client.kick)?;
        client.park.unpark();
        *place = Some(client);
        self.attached += 1;
        self.active.push(id);
        Ok(id)
    }

    /// The end of a process; its objects are destroyed before.
    pub(crate) fn remove_client(&mut self, id: ClientId) {
        self.active.retain(|&other| other != id);
        let Some((life, place)) = self.clients.get_mut(id.slot as usize) else {
            return;
        };
        if *life == id.life
            && let Some(client) = place.take()
        {
            self.attached -= 1;
            self.rest.forget(&client.kick);
        }
    }

    pub(crate) fn add_queue(&mut self, id: ClientId, queue: Queue) -> Result<u32, NoRoom> {
        let client = find(&mut self.clients, id).ok_or(NoRoom)?;
        let target = queue.target;
        let number = client.add_queue(queue)?;
        let owner = Owner { client: id, number };
        let before = match target {
            client::Target::Qp(qpn) => {
                self.listing.insert((client.session(), qpn.value()), qpn);
                self.owners.insert(qpn, owner)
            }
            client::Target::Srq(srq) => self.srq_owners.insert(srq, owner),
        };
        debug_assert!(before.is_none());
        Ok(number)
    }

    pub(crate) fn remove_queue(&mut self, id: ClientId, target: client::Target, number: u32) {
        let client = find(&mut self.clients, id);
        match target {
            client::Target::Qp(qpn) => {
                if let Some(client) = &client {
                    self.listing.remove(&(client.session(), qpn.value()));
                }
                self.owners.remove(&qpn)
            }
            client::Target::Srq(srq) => self.srq_owners.remove(&srq),
        };
        if let Some(client) = client {
            client.remove_queue(number);
        }
    }

    /// Takes everything a queue has, whatever the budget: before a change that it must precede.
    pub(crate) fn take_all_of(&mut self, id: ClientId, number: u32) {
        let Self {
            engine,
            clients,
            scratch,
            ..
        } = self;
        let Some(client) = find(clients, id) else {
            return;
        };
        let Some(queue) = client.queue(number) else {
            return;
        };
        match post::take(engine, queue, u32::MAX, scratch) {
            Ok(taken) => client.posted += u64::from(taken.count),
            Err(wrong) => self.expel(id, wrong),
        }
    }

    pub(crate) fn seat(&mut self, seat: Seat) {
        let cq = seat.cq;
        let slot = cq.slot();
        if self.seats.len() <= slot {
            self.seats.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.seats.get_mut(slot) {
            *place = Some(seat);
        }
        // So that stalling never allocates.
        self.stalled.reserve(self.seats.len());
        self.pump(cq);
    }

    pub(crate) fn unseat(&mut self, cq: Cq) -> Option<Seat> {
        self.stalled.retain(|&other| other != cq);
        self.seats.get_mut(cq.slot())?.take()
    }
}

fn find(clients: &mut [(u32, Option<Client>)], id: ClientId) -> Option<&mut Client> {
    let (life, client) = clients.get_mut(id.slot as usize)?;
    client.as_mut().filter(|_| *life == id.life)
}
