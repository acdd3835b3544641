//! The side channel as a socket: never blocks, so that the engine is polled between messages.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use xroce_proto::time::{Duration, Instant};

use crate::perf::peer::message::{BadMessage, Decoder, Language, Meaning, Message, encode};

/// A side that has nothing to say sends a heartbeat this often.
const HEARTBEAT: Duration = Duration::from_millis(1_000);
/// A peer that says nothing for this long is gone. Ten heartbeats: a machine under load may be
/// late with several.
pub(crate) const SILENCE: Duration = Duration::from_millis(10_000);
/// Most bytes waiting to be sent; a peer that does not read is gone.
const MAX_BACKLOG: usize = 256 << 10;

/// Why the conversation ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChannelError {
    /// The peer sent something impossible.
    #[error(transparent)]
    Bad(#[from] BadMessage),
    /// The peer went away without a word.
    #[error(
        "the peer closed the connection in the middle of the test (did it crash or was it stopped?)"
    )]
    Closed,
    /// The peer hung up in the middle of a message.
    #[error("the peer closed the connection in the middle of a message")]
    Cut,
    /// The peer is silent.
    #[error("the peer said nothing for {0}: it hangs, or the network between is down")]
    Silent(String),
    /// The peer does not read.
    #[error("the peer does not read what it is sent")]
    Stuck,
    /// The peer gave up, with its reason.
    #[error("the other side gave up: {0}")]
    Aborted(String),
    /// A message that does not belong here.
    #[error("the peer sent \"{got}\" where \"{want}\" was expected")]
    Unexpected {
        /// Name of the message that came.
        got: &'static str,
        /// Name of the message that should have come.
        want: &'static str,
    },
    /// The socket failed.
    #[error("side channel: {0}")]
    Io(#[from] io::Error),
}

impl ChannelError {
    /// The peer said nothing for so long.
    pub(crate) fn silent(silence: Duration) -> Self {
        let ms = silence.as_nanos() / 1_000_000;
        Self::Silent(format!("{}.{} s", ms / 1_000, ms % 1_000 / 100))
    }
}

/// One side of a conversation.
#[derive(Debug)]
pub(crate) struct Channel<M = Message> {
    stream: TcpStream,
    peer: SocketAddr,
    local: IpAddr,
    decoder: Decoder<M>,
    backlog: Vec<u8>,
    heard: Instant,
    said: Instant,
    silence: Duration,
}

impl<M: Language> Channel<M> {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// The socket is already broken.
    pub(crate) fn new(stream: TcpStream, now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (peer, local) = (
            stream.peer_addr()?,
            stream.local_addr()?.ip().to_canonical(),
        );
        Ok(Self {
            stream,
            peer,
            local,
            decoder: Decoder::default(),
            backlog: Vec::new(),
            heard: now,
            said: now,
            silence: SILENCE,
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

    /// How long the peer may be silent from now on.
    pub(crate) fn allow_silence(&mut self, silence: Duration, now: Instant) {
        (self.silence, self.heard) = (silence, now);
    }

    /// Sends a message, or as much of it as the socket takes now; [`Channel::poll`] sends the
    /// rest.
    ///
    /// # Errors
    /// The socket failed, or the peer does not read.
    pub(crate) fn send(&mut self, message: &M, now: Instant) -> Result<(), ChannelError> {
        self.backlog.extend_from_slice(&encode(message)?);
        self.said = now;
        self.flush()
    }

    /// Tells the peer why this side gives up; errors do not matter any more.
    pub(crate) fn abort(&mut self, reason: &str, now: Instant) {
        // Best effort: the peer may be the reason.
        let _ = self.send(&M::abort(reason), now);
    }

    /// The next message if one is there. Answers for heartbeats, silence and aborts.
    ///
    /// # Errors
    /// The conversation is over.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<M>, ChannelError> {
        if now.since(self.said) >= HEARTBEAT {
            self.send(&M::heartbeat(), now)?;
        } else {
            self.flush()?;
        }
        loop {
            match self.decoder.next()?.map(M::meaning) {
                Some(Meaning::Heartbeat) => self.heard = now,
                Some(Meaning::Abort(reason)) => {
                    return Err(ChannelError::Aborted(crate::perf::peer::message::one_line(
                        &reason,
                    )));
                }
                Some(Meaning::Other(message)) => {
                    self.heard = now;
                    return Ok(Some(message));
                }
                None if self.receive()? => {}
                None if now.since(self.heard) >= self.silence => {
                    return Err(ChannelError::silent(self.silence));
                }
                None => return Ok(None),
            }
        }
    }

    /// Reads once; whether anything came.
    fn receive(&mut self) -> Result<bool, ChannelError> {
        let mut chunk = [0; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) if self.decoder.is_midway() => Err(ChannelError::Cut),
            Ok(0) => Err(ChannelError::Closed),
            Ok(n) => {
                self.decoder.feed(chunk.get(..n).unwrap_or_default());
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(e) if is_hangup(&e) => Err(ChannelError::Closed),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes what the socket takes.
    fn flush(&mut self) -> Result<(), ChannelError> {
        while !self.backlog.is_empty() {
            match self.stream.write(&self.backlog) {
                Ok(n) => drop(self.backlog.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // What it said before it hung up may still be there to read, and says why.
                Err(e) if is_hangup(&e) => {
                    self.backlog.clear();
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        if self.backlog.len() > MAX_BACKLOG {
            Err(ChannelError::Stuck)
        } else {
            Ok(())
        }
    }
}

pub(crate) fn is_hangup(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
    )
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};

    use super::*;

    const T0: Instant = Instant::from_nanos(0);

    fn pair() -> (Channel, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (
            Channel::new(listener.accept().unwrap().0, T0).unwrap(),
            peer,
        )
    }

    fn poll_until(c: &mut Channel, now: Instant) -> Result<Message, ChannelError> {
        loop {
            if let Some(m) = c.poll(now)? {
                return Ok(m);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn messages_come_and_heartbeats_do_not_show() {
        let (mut c, mut peer) = pair();
        assert!(c.poll(T0).unwrap().is_none());
        peer.write_all(&encode(&Message::Heartbeat {}).unwrap())
            .unwrap();
        peer.write_all(&encode(&Message::Bye {}).unwrap()).unwrap();
        assert_eq!(poll_until(&mut c, T0).unwrap(), Message::Bye {});
    }

    #[test]
    fn a_half_open_peer_is_given_up() {
        let (mut c, _peer) = pair();
        let early = T0 + Duration::from_millis(9_999);
        let late = T0 + Duration::from_millis(10_000);
        assert!(c.poll(early).unwrap().is_none());
        let err = c.poll(late).unwrap_err();
        assert!(err.to_string().contains("nothing for 10.0 s"), "{err}");
    }

    #[test]
    fn a_peer_that_hangs_up_is_told_apart_from_one_that_is_cut_off() {
        let (mut c, peer) = pair();
        peer.shutdown(Shutdown::Write).unwrap();
        assert!(matches!(poll_until(&mut c, T0), Err(ChannelError::Closed)));
        let (mut c, mut peer) = pair();
        peer.write_all(b"XRPF\x00").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert!(matches!(poll_until(&mut c, T0), Err(ChannelError::Cut)));
    }

    #[test]
    fn an_abort_is_an_error_with_its_reason() {
        let (mut c, mut peer) = pair();
        peer.write_all(&encode(&Message::abort("link\nis down")).unwrap())
            .unwrap();
        drop(peer);
        let err = poll_until(&mut c, T0).unwrap_err();
        assert_eq!(err.to_string(), "the other side gave up: link is down");
    }

    #[test]
    fn a_peer_that_never_reads_is_given_up() {
        let (mut c, _peer) = pair();
        let long = Message::abort(&"x".repeat(300));
        let stuck = (0..1_000_000).find_map(|_| c.send(&long, T0).err());
        assert!(matches!(stuck, Some(ChannelError::Stuck)));
    }
}
