//! Messages over a socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::VERSION;
use xroce_api::message::{Farewell, Refusal};

/// Bytes of a body, at most.
pub const BODY_MAX: usize = 1 << 16;
/// Descriptors with a message, at most; the kernel takes 253.
pub const FDS_MAX: usize = 250;
const HEADER: usize = 16;
const MAGIC: u32 = u32::from_be_bytes(*b"xrce");
/// Room for descriptors.
const ANCILLARY: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Something is asked.
    Request = 1,
    /// The answer.
    Reply = 2,
    /// The answer is no: a [`xroce_api::message::Refusal`].
    Refusal = 3,
    /// The last message before the daemon hangs up: a [`xroce_api::message::Farewell`].
    Farewell = 4,
}

/// Why no message was sent or received. Nothing can be said over the socket afterwards.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The other side hung up.
    #[error("the other side hung up")]
    Closed,
    /// Not a message of this protocol.
    #[error("a message of {0} bytes that does not begin as one does")]
    Foreign(usize),
    /// Another version.
    #[error("version {theirs} of the protocol, this side speaks {VERSION}: use the same release")]
    Version {
        /// What was said.
        theirs: u16,
    },
    /// No such kind, or not here.
    #[error("a message of kind {0} where none can be")]
    Kind(u16),
    /// What the header says is not what came.
    #[error("the header says {said} {what}, {came} came")]
    Count {
        /// What is counted.
        what: &'static str,
        /// As the header says.
        said: usize,
        /// As it was.
        came: usize,
    },
    /// More than a message carries.
    #[error("{given} {what} in a message, the limit is {limit}")]
    TooLong {
        /// What is counted.
        what: &'static str,
        /// How many.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// The body is not what was expected.
    #[error("the body of the message: {0}")]
    Body(#[from] serde_json::Error),
    /// The system refused.
    #[error("the control socket: {0}")]
    System(#[from] io::Error),
}

impl From<Errno> for MessageError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            other => Self::System(other.into()),
        }
    }
}

/// A message received.
#[derive(Debug)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    body: Vec<u8>,
    /// The descriptors it brought.
    pub fds: Vec<OwnedFd>,
}

/// What a daemon says to a request.
#[derive(Debug)]
pub enum Answer<T> {
    /// What was asked for, and the descriptors that belong to it.
    Reply(T, Vec<OwnedFd>),
    /// No.
    Refused(Refusal),
    /// It hangs up instead.
    Farewell(Farewell),
}

impl Message {
    /// As the answer to a request.
    ///
    /// # Errors
    /// It is none.
    pub fn answer<T: DeserializeOwned>(self) -> Result<Answer<T>, MessageError> {
        Ok(match self.kind {
            Kind::Reply => Answer::Reply(self.body()?, self.fds),
            Kind::Refusal => Answer::Refused(self.body()?),
            Kind::Farewell => Answer::Farewell(self.body()?),
            Kind::Request => return Err(MessageError::Kind(self.kind as u16)),
        })
    }

    /// Its body.
    ///
    /// # Errors
    /// [`MessageError::Body`].
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, MessageError> {
        Ok(serde_json::from_slice(&self.body)?)
    }
}

/// Connects to the daemon at `path`.
///
/// # Errors
/// Nobody listens there, or it is not permitted.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends a message.
///
/// # Errors
/// It is too long, or the other side hung up.
pub fn send<T: Serialize>(
    socket: impl AsFd,
    kind: Kind,
    body: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), MessageError> {
    let body = serde_json::to_vec(body)?;
    if body.len() > BODY_MAX {
        return Err(MessageError::TooLong {
            what: "bytes",
            given: body.len(),
            limit: BODY_MAX,
        });
    }
    if fds.len() > FDS_MAX {
        return Err(MessageError::TooLong {
            what: "descriptors",
            given: fds.len(),
            limit: FDS_MAX,
        });
    }
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_ne_bytes();
    let mut header = [0; HEADER];
    let fields = [
        &MAGIC.to_ne_bytes()[..],
        &VERSION.to_ne_bytes(),
        &(kind as u16).to_ne_bytes(),
        &count(body.len()),
        &count(fds.len()),
    ];
    let bytes = fields.iter().flat_map(|field| field.iter());
    header
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    let mut space = [MaybeUninit::uninit(); ANCILLARY];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts = [io::IoSlice::new(&header), io::IoSlice::new(&body)];
    loop {
        match sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop).map_err(Into::into),
        }
    }
}

/// The next message; waits for it unless `flags` say otherwise.
///
/// # Errors
/// The other side hung up, or sent something else than a message.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<Message, MessageError> {
    let mut bytes = vec![0; HEADER + BODY_MAX];
    let mut space = [MaybeUninit::uninit(); ANCILLARY];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut reset = false;
    let came = loop {
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut parts, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            // Said once, when the other side hung up without having read everything, and before
            // what it said itself.
            Err(Errno::CONNRESET) if !reset => reset = true,
            came => break came?,
        }
    };
    // Taken first: whatever is wrong with the message, they are to be closed.
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            fds.extend(given);
        }
    }
    if came.bytes == 0 {
        return Err(MessageError::Closed);
    }
    bytes.truncate(came.bytes);
    if came
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(MessageError::TooLong {
            what: "bytes or descriptors",
            given: came.bytes,
            limit: BODY_MAX,
        });
    }
    read(bytes, fds)
}

/// Judges what came.
fn read(bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<Message, MessageError> {
    let foreign = MessageError::Foreign(bytes.len());
    let Some((header, body)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(foreign);
    };
    let [
        m0,
        m1,
        m2,
        m3,
        v0,
        v1,
        k0,
        k1,
        b0,
        b1,
        b2,
        b3,
        f0,
        f1,
        f2,
        f3,
    ] = *header;
    if u32::from_ne_bytes([m0, m1, m2, m3]) != MAGIC {
        return Err(foreign);
    }
    let theirs = u16::from_ne_bytes([v0, v1]);
    if theirs != VERSION {
        return Err(MessageError::Version { theirs });
    }
    let kind = match u16::from_ne_bytes([k0, k1]) {
        1 => Kind::Request,
        2 => Kind::Reply,
        3 => Kind::Refusal,
        4 => Kind::Farewell,
        other => return Err(MessageError::Kind(other)),
    };
    for (what, said, came) in [
        ("bytes", [b0, b1, b2, b3], body.len()),
        ("descriptors", [f0, f1, f2, f3], fds.len()),
    ] {
        let said = u32::from_ne_bytes(said) as usize;
        if said != came {
            return Err(MessageError::Count { what, said, came });
        }
    }
    let body = body.to_vec();
    Ok(Message { kind, body, fds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn raw(bytes: &[u8]) -> MessageError {
        let (ours, theirs) = pair();
        rustix::net::send(&ours, bytes, SendFlags::empty()).unwrap();
        receive(&theirs, RecvFlags::empty()).unwrap_err()
    }

    #[test]
    fn a_message_and_its_descriptors_arrive_together() {
        let (ours, theirs) = pair();
        let body = ("hello".to_owned(), 7u32);
        send(&ours, Kind::Request, &body, &[ours.as_fd(), theirs.as_fd()]).unwrap();
        let message = receive(&theirs, RecvFlags::empty()).unwrap();
        assert_eq!(message.kind, Kind::Request);
        assert_eq!(message.body::<(String, u32)>().unwrap(), body);
        assert_eq!(message.fds.len(), 2);
        let refused = message.body::<u32>().unwrap_err();
        assert!(refused.to_string().contains("invalid type"), "{refused}");
        drop((ours, message));
        let closed = receive(&theirs, RecvFlags::empty()).unwrap_err();
        assert!(matches!(closed, MessageError::Closed));
    }

    #[test]
    fn what_was_said_before_hanging_up_is_heard() {
        let (ours, theirs) = pair();
        send(&ours, Kind::Request, &1, &[]).unwrap();
        send(&theirs, Kind::Farewell, &2, &[]).unwrap();
        // Not having read the request.
        drop(theirs);
        let message = receive(&ours, RecvFlags::empty()).unwrap();
        assert_eq!(message.kind, Kind::Farewell);
    }

    #[test]
    fn nothing_too_long_is_sent() {
        let (ours, _theirs) = pair();
        let long = "x".repeat(BODY_MAX);
        let refused = send(&ours, Kind::Reply, &long, &[]).unwrap_err();
        assert!(refused.to_string().contains("65538 bytes"), "{refused}");
        let many = vec![ours.as_fd(); FDS_MAX + 1];
        let refused = send(&ours, Kind::Reply, &1, &many).unwrap_err();
        assert!(refused.to_string().contains("251 descriptors"), "{refused}");
    }

    #[test]
    fn what_is_no_message_is_refused_with_what_was_wrong() {
        let header = |version: u16, kind: u16, len: u32, fds: u32| {
            let mut bytes = MAGIC.to_ne_bytes().to_vec();
            bytes.extend(version.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(len.to_ne_bytes());
            bytes.extend(fds.to_ne_bytes());
            bytes
        };
        for (bytes, words) in [
            (b"GET /".to_vec(), "a message of 5 bytes"),
            (vec![7; 16], "a message of 16 bytes"),
            (header(9, 1, 0, 0), "version 9"),
            (header(VERSION, 0, 0, 0), "kind 0"),
            (header(VERSION, 1, 5, 0), "says 5 bytes, 0 came"),
            (header(VERSION, 1, 0, 2), "says 2 descriptors, 0 came"),
        ] {
            let refused = raw(&bytes).to_string();
            assert!(refused.contains(words), "{refused}");
        }
        assert!(matches!(
            raw(&vec![0; HEADER + BODY_MAX + 1]),
            MessageError::TooLong { .. }
        ));
    }
}
