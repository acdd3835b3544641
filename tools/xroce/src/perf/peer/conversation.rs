//! Engine and side channel moved together: while one side waits for a word of the other, its
//! engine goes on answering packets.

use anyhow::Result;
use xroce_engine::clock;
use xroce_proto::time::{Duration, Instant};

use crate::perf::device::Device;
use crate::perf::measure::flow::Flow;
use crate::perf::peer::channel::{Channel, ChannelError, SILENCE};
use crate::perf::peer::message::{Language, Message};
use crate::stop;

/// The side channel is looked at this often: a read of an empty socket costs as much as a packet.
const LOOK: Duration = Duration::from_micros(200);
/// While there is no engine to poll, sleep this long between looks.
const NAP: std::time::Duration = std::time::Duration::from_millis(1);

/// A conversation with its queue pairs.
pub(crate) struct Conversation<'a, D: Device> {
    /// Queue pairs and memory.
    pub flow: Flow<'a, D>,
    /// Side channel.
    pub channel: &'a mut Channel,
    looked: Instant,
    inbox: Option<Message>,
}

impl<'a, D: Device> Conversation<'a, D> {
    /// Joins the two.
    pub(crate) fn new(flow: Flow<'a, D>, channel: &'a mut Channel) -> Self {
        Self {
            flow,
            channel,
            looked: clock::now(),
            inbox: None,
        }
    }

    /// One round of the engine and, now and then, of the side channel. Returns the time.
    ///
    /// # Errors
    /// The port failed, the conversation is over, or the user interrupts.
    pub(crate) fn turn(&mut self) -> Result<Instant> {
        let now = clock::now();
        self.flow.turn(now)?;
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            stop::check()?;
            if self.inbox.is_none() {
                self.inbox = self.channel.poll(now)?;
            }
        }
        Ok(now)
    }

    /// The message that came meanwhile.
    pub(crate) fn take_message(&mut self) -> Option<Message> {
        self.inbox.take()
    }

    /// An error if any message came: in a phase where the peer has nothing to say.
    ///
    /// # Errors
    /// A message came.
    pub(crate) fn expect_none(&mut self, want: &'static str) -> Result<()> {
        match self.inbox.take() {
            None => Ok(()),
            Some(m) => Err(ChannelError::Unexpected {
                got: m.name(),
                want,
            }
            .into()),
        }
    }

    /// Sends a message. What was posted before is there when the peer reads it.
    ///
    /// # Errors
    /// The conversation is over, or the device failed.
    pub(crate) fn say(&mut self, message: &Message) -> Result<()> {
        self.flow.ring()?;
        Ok(self.channel.send(message, clock::now())?)
    }

    /// The next message, whenever it comes.
    ///
    /// # Errors
    /// As [`Conversation::turn`].
    pub(crate) fn listen(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.take_message() {
                return Ok(message);
            }
            self.turn()?;
        }
    }
}

/// The next message of a peer, before there is anything to poll. Heartbeats do not count: a peer
/// gets `patience` and no more.
///
/// # Errors
/// The conversation is over, or the user interrupts.
pub(crate) fn listen_only<M: Language>(channel: &mut Channel<M>, patience: Duration) -> Result<M> {
    let start = clock::now();
    channel.allow_silence(patience, start);
    loop {
        stop::check()?;
        let now = clock::now();
        if let Some(message) = channel.poll(now)? {
            channel.allow_silence(SILENCE, now);
            return Ok(message);
        }
        if now.since(start) >= patience {
            return Err(ChannelError::silent(patience).into());
        }
        std::thread::sleep(NAP);
    }
}

/// The error for a message that does not belong where it came.
pub(crate) fn unexpected(got: &impl Language, want: &'static str) -> anyhow::Error {
    ChannelError::Unexpected {
        got: got.name(),
        want,
    }
    .into()
}
