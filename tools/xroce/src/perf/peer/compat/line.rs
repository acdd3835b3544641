//! The side channel as a socket: messages of fixed size, without any framing.
//!
//! perftest reads each message with one `read` and gives up if that returns less, so a message
//! leaves with a single `write`. What the peer sends is gathered until it is whole.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use anyhow::Result;
use xroce_engine::clock;
use xroce_proto::time::Duration;

use crate::perf::peer::channel::is_hangup;
use crate::stop;

/// The socket is looked at this often: a read of an empty socket costs as much as a packet.
pub(super) const LOOK: Duration = Duration::from_micros(200);
/// Most bytes kept that nobody has asked for yet; a peer is at most a few messages ahead.
const MAX_INBOX: usize = 4096;
/// Most bytes of a peer shown in an error.
const SHOWN: usize = 40;

/// Which side: it decides who speaks first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Connects, and speaks first.
    Client,
    /// Listens, and answers.
    Server,
}

/// Why the conversation ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LineError {
    /// The peer hung up.
    #[error("the peer closed the connection where its \"{what}\" message was expected: {} of {want} bytes came{}", got.len(), shown(got))]
    Closed {
        /// Name of the message.
        what: &'static str,
        /// What came of it.
        got: Vec<u8>,
        /// Bytes of the whole message.
        want: usize,
    },
    /// The peer hung up while packets were on their way.
    #[error("the peer closed the connection in the middle of the test")]
    Left,
    /// The peer is silent.
    #[error("the peer said nothing for {0} s where its \"{what}\" message was expected: {len} of {want} bytes came{1}", seconds(*patience), shown(got), len = got.len())]
    Silent {
        /// Name of the message.
        what: &'static str,
        /// What came of it.
        got: Vec<u8>,
        /// Bytes of the whole message.
        want: usize,
        /// How long it was waited for.
        patience: Duration,
    },
    /// No packet comes any more.
    #[error("no packet of the peer came for {} s in the middle of the test", seconds(*.0))]
    Still(Duration),
    /// The peer does not read.
    #[error("the peer does not read: the \"{0}\" message could not be sent")]
    Stuck(&'static str),
    /// The socket failed.
    #[error("side channel: {0}")]
    Io(#[from] io::Error),
}

/// The first bytes of what came, fit for a terminal.
pub(super) fn shown(bytes: &[u8]) -> String {
    let start = bytes.get(..SHOWN.min(bytes.len())).unwrap_or_default();
    match start {
        [] => String::new(),
        _ => format!(" (\"{}\")", start.escape_ascii()),
    }
}

fn seconds(duration: Duration) -> String {
    let ms = duration.as_nanos() / 1_000_000;
    format!("{}.{}", ms / 1_000, ms % 1_000 / 100)
}

/// One side of a conversation.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    peer: SocketAddr,
    local: IpAddr,
    inbox: Vec<u8>,
    /// The peer has hung up.
    closed: bool,
}

impl Line {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// The socket is already broken.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut peer = stream.peer_addr()?;
        // A dual-stack socket shows IPv4 as IPv6.
        peer.set_ip(peer.ip().to_canonical());
        Ok(Self {
            peer,
            local: stream.local_addr()?.ip().to_canonical(),
            stream,
            inbox: Vec::new(),
            closed: false,
        })
    }

    /// Address of the peer.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Address of this side.
    pub(crate) fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether the peer has hung up and all it said was taken.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.inbox.is_empty()
    }

    /// Says that this side has nothing more to say; the peer can still be heard.
    pub(super) fn finish(&mut self) {
        // A peer that has hung up knows.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Throws away what was not asked for.
    pub(super) fn clear(&mut self) {
        self.inbox.clear();
    }

    /// Sends a message with a single write.
    ///
    /// # Errors
    /// The socket does not take it.
    pub(super) fn send(&mut self, what: &'static str, bytes: &[u8]) -> Result<(), LineError> {
        match self.stream.write(bytes) {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(LineError::Stuck(what)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Err(LineError::Stuck(what)),
            // What it said before it hung up may still be there to read.
            Err(e) if is_hangup(&e) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads what has come.
    ///
    /// # Errors
    /// The socket failed.
    pub(super) fn look(&mut self) -> Result<(), LineError> {
        let mut chunk = [0; 1024];
        while !self.closed && self.inbox.len() < MAX_INBOX {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.closed = true,
                Ok(n) => self
                    .inbox
                    .extend_from_slice(chunk.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_hangup(&e) => self.closed = true,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// The next message if it is here as a whole.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let message = *self.inbox.first_chunk::<N>()?;
        self.inbox.drain(..N);
        Some(message)
    }

    /// Waits for a message and meanwhile calls `pump`, which says whether it saw a sign of life.
    ///
    /// # Errors
    /// The peer hung up or was silent for `patience`, the user interrupts, or `pump` failed.
    pub(super) fn receive<const N: usize>(
        &mut self,
        what: &'static str,
        patience: Duration,
        pump: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<[u8; N]> {
        let mut heard = clock::now();
        loop {
            stop::check()?;
            self.look()?;
            if let Some(message) = self.take() {
                return Ok(message);
            }
            let want = N;
            if self.closed {
                let got = std::mem::take(&mut self.inbox);
                return Err(LineError::Closed { what, got, want }.into());
            }
            let start = clock::now();
            while clock::now().since(start) < LOOK {
                if pump()? {
                    heard = start;
                }
            }
            if start.since(heard) >= patience {
                let got = std::mem::take(&mut self.inbox);
                return Err(LineError::Silent {
                    what,
                    got,
                    want,
                    patience,
                }
                .into());
            }
        }
    }

    /// Both sides send a message of the same kind, the client first.
    ///
    /// # Errors
    /// As [`Line::send`] and [`Line::receive`].
    pub(super) fn swap<const N: usize>(
        &mut self,
        role: Role,
        what: &'static str,
        own: &[u8; N],
        patience: Duration,
        pump: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<[u8; N]> {
        if role == Role::Client {
            self.send(what, own)?;
            return self.receive(what, patience, pump);
        }
        let theirs = self.receive(what, patience, pump)?;
        self.send(what, own)?;
        Ok(theirs)
    }
}
