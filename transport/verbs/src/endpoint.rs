//! What two sides tell each other before they can use RDMA, and a TCP channel to tell it over.
//!
//! ```no_run
//! use std::net::TcpStream;
//! use std::time::Duration;
//! use xroce_verbs::{ConnectAttr, Init, Qp, Rc, Ready, endpoint::SideChannel};
//!
//! fn connect(qp: Qp<Rc, Init>, to: &str) -> Result<Qp<Rc, Ready>, Box<dyn std::error::Error>> {
//!     let mut channel = SideChannel::new(TcpStream::connect(to)?, Duration::from_secs(10))?;
//!     channel.send(&qp.endpoint()?)?;
//!     let peer = channel.recv()?;
//!     Ok(qp.connect(&peer, &ConnectAttr::default())?)
//! }
//! ```

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use xroce_proto::recovery::SelectiveParams;
use xroce_wire::newtypes::{Gid, PathMtu, Psn, QKey, Qpn};

use crate::mr::RemoteMr;

/// Why an endpoint cannot be used, or did not come.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Numbers 0 and 1 are special, and there are 24 bits; 0xffffff is for groups.
    #[error("queue pair number {0:#x}: it must be 0x2 to 0xfffffe")]
    Qpn(u32),
    /// PSNs have 24 bits.
    #[error("PSN {0:#x} has more than 24 bits")]
    Psn(u32),
    /// What selective retransmission cannot have.
    #[error(
        "selective retransmission over {0} packets: it must be a power of two from {least} to {most}",
        least = SelectiveParams::RANGE.0, most = SelectiveParams::RANGE.1
    )]
    Selective(u32),
    /// No path MTU.
    #[error("path MTU {0}: it must be 256, 512, 1024, 2048 or 4096")]
    PathMtu(u32),
    /// No address of one host.
    #[error("{0} is not the address of a host")]
    Address(IpAddr),
    /// The port has no such address.
    #[error("the port has no address at GID index {0}")]
    NoGid(u32),
    /// A message longer than any that is sent.
    #[error("the peer announces a message of {given} bytes, the limit is {MESSAGE_MAX}")]
    TooLong {
        /// Bytes.
        given: u64,
    },
    /// Something else than was expected: another program, or another version.
    #[error("the peer sent something else than expected: {0}")]
    Content(#[from] serde_json::Error),
    /// The peer hung up, or was silent too long.
    #[error("side channel: {0}")]
    Channel(#[from] io::Error),
}

/// Bytes of a message, at most.
pub const MESSAGE_MAX: u32 = 1 << 20;

/// One end of a connection, for the other: what `ibv_rc_pingpong` and the like exchange, and memory
/// that may be used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Fields", try_from = "Fields")]
pub struct Endpoint {
    /// Address.
    pub gid: Gid,
    /// Queue pair.
    pub qpn: Qpn,
    /// First PSN it sends.
    pub psn: Psn,
    /// Largest path MTU of its link.
    pub path_mtu: PathMtu,
    /// PSNs it would take out of order: it agrees to selective retransmission. Used if both do.
    pub selective: Option<u32>,
    /// Q_Key that datagrams must carry.
    pub qkey: Option<QKey>,
    /// Memory the peer may use.
    pub memory: Option<RemoteMr>,
}

impl Endpoint {
    /// Without memory, Q_Key and selective retransmission, path MTU 4096.
    #[must_use]
    pub const fn new(gid: Gid, qpn: Qpn, psn: Psn) -> Self {
        Self {
            gid,
            qpn,
            psn,
            path_mtu: PathMtu::Mtu4096,
            selective: None,
            qkey: None,
            memory: None,
        }
    }

    /// The same, with memory the peer may use.
    #[must_use]
    pub const fn with_memory(mut self, memory: Option<RemoteMr>) -> Self {
        self.memory = memory;
        self
    }

    /// The same, with the Q_Key that datagrams must carry.
    #[must_use]
    pub const fn with_qkey(mut self, qkey: QKey) -> Self {
        self.qkey = Some(qkey);
        self
    }
}

/// [`Endpoint`] as it travels.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    gid: IpAddr,
    qpn: u32,
    psn: u32,
    path_mtu: u32,
    #[serde(default)]
    selective: Option<u32>,
    #[serde(default)]
    qkey: Option<u32>,
    #[serde(default)]
    memory: Option<RemoteMr>,
}

impl From<Endpoint> for Fields {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            gid: endpoint.gid.ip(),
            qpn: endpoint.qpn.value(),
            psn: endpoint.psn.value(),
            path_mtu: u32::try_from(endpoint.path_mtu.bytes()).unwrap_or(0),
            selective: endpoint.selective,
            qkey: endpoint.qkey.map(QKey::value),
            memory: endpoint.memory,
        }
    }
}

impl TryFrom<Fields> for Endpoint {
    type Error = EndpointError;

    fn try_from(fields: Fields) -> Result<Self, EndpointError> {
        if !(2..=0x00ff_fffe).contains(&fields.qpn) {
            return Err(EndpointError::Qpn(fields.qpn));
        }
        if fields.psn > 0x00ff_ffff {
            return Err(EndpointError::Psn(fields.psn));
        }
        if fields.gid.is_unspecified() || fields.gid.is_multicast() {
            return Err(EndpointError::Address(fields.gid));
        }
        if let Some(range) = fields.selective.filter(|&r| !SelectiveParams::is_range(r)) {
            return Err(EndpointError::Selective(range));
        }
        let bytes = usize::try_from(fields.path_mtu).ok();
        let path_mtu = bytes.and_then(PathMtu::from_bytes);
        Ok(Self {
            gid: Gid::from(fields.gid),
            qpn: Qpn::new(fields.qpn),
            psn: Psn::new(fields.psn),
            path_mtu: path_mtu.ok_or(EndpointError::PathMtu(fields.path_mtu))?,
            selective: fields.selective,
            qkey: fields.qkey.map(QKey::new),
            memory: fields.memory,
        })
    }
}

/// Messages over TCP: a length of four bytes, big-endian, and as much JSON.
///
/// Nothing the peer says is believed before it is checked; an announced length beyond
/// [`MESSAGE_MAX`] is refused before anything is allocated. No encryption, no authentication.
#[derive(Debug)]
pub struct SideChannel {
    stream: TcpStream,
}

impl SideChannel {
    /// Over a connection; a peer that is silent longer than `patience` is given up.
    ///
    /// # Errors
    /// The socket is broken, or `patience` is 0.
    pub fn new(stream: TcpStream, patience: Duration) -> Result<Self, EndpointError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream })
    }

    /// The connection, for its addresses or another patience.
    #[must_use]
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The peer hung up, or the message is too long.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), EndpointError> {
        let body = serde_json::to_vec(message)?;
        let len = u32::try_from(body.len()).ok().filter(|&n| n <= MESSAGE_MAX);
        let len = len.ok_or(EndpointError::TooLong {
            given: body.len() as u64,
        })?;
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend_from_slice(&body);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// The next message.
    ///
    /// # Errors
    /// The peer hung up, was silent too long, or sent something else.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T, EndpointError> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len);
        if len > MESSAGE_MAX {
            return Err(EndpointError::TooLong { given: len.into() });
        }
        let mut body = vec![0; len as usize];
        self.stream.read_exact(&mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Sends one message and waits for one.
    ///
    /// # Errors
    /// As [`SideChannel::send`] and [`SideChannel::recv`].
    pub fn exchange<T: Serialize, U: DeserializeOwned>(
        &mut self,
        message: &T,
    ) -> Result<U, EndpointError> {
        self.send(message)?;
        self.recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use xroce_wire::newtypes::{RKey, Va};

    fn endpoint() -> Endpoint {
        let memory = RemoteMr::new(Va::new(0x1000), 64, RKey::new(7)).unwrap();
        Endpoint {
            path_mtu: PathMtu::Mtu1024,
            selective: Some(512),
            ..Endpoint::new(Gid::from_v4([10, 0, 0, 1]), Qpn::new(17), Psn::new(5))
        }
        .with_memory(Some(memory))
        .with_qkey(QKey::new(3))
    }

    #[test]
    fn an_endpoint_survives_the_way() {
        let text = serde_json::to_string(&endpoint()).unwrap();
        assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint());
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_value() {
        let good = serde_json::to_value(endpoint()).unwrap();
        for (field, value, words) in [
            ("qpn", 1.into(), "queue pair number 0x1"),
            ("qpn", 0x00ff_ffff.into(), "0xffffff"),
            ("qpn", (-1).into(), "invalid value"),
            ("psn", 0x0100_0000.into(), "PSN 0x1000000"),
            ("path_mtu", 1500.into(), "path MTU 1500"),
            ("selective", 64.into(), "over 64 packets"),
            ("selective", 1000.into(), "a power of two from 128 to 16384"),
            ("gid", "0.0.0.0".into(), "0.0.0.0 is not"),
            ("gid", "ff0e::1".into(), "ff0e::1 is not"),
            ("gid", "nonsense".into(), "invalid"),
            ("extra", 1.into(), "unknown field"),
            (
                "memory",
                serde_json::json!({"va": u64::MAX, "len": 2, "rkey": 1}),
                "are not inside",
            ),
        ] {
            let mut bad: serde_json::Value = good.clone();
            bad[field] = value;
            let error = serde_json::from_value::<Endpoint>(bad).unwrap_err();
            assert!(error.to_string().contains(words), "{field}: {error}");
        }
    }

    #[test]
    fn a_hostile_peer_gets_an_error_and_no_memory() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        for (bytes, words) in [
            (&b"\xff\xff\xff\xff"[..], "4294967295 bytes"),
            (b"\0\0\0\x02{}", "missing field"),
            (b"\0\0\0\x09", "side channel"),
            (b"GET / HTTP/1.1\r\n", "1195725856 bytes"),
        ] {
            let mut peer = TcpStream::connect(addr).unwrap();
            let (stream, _) = listener.accept().unwrap();
            peer.write_all(bytes).unwrap();
            drop(peer);
            let mut channel = SideChannel::new(stream, Duration::from_secs(10)).unwrap();
            let error = channel.recv::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn endpoints_are_exchanged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let patience = Duration::from_secs(10);
        let peer = std::thread::spawn(move || {
            let stream = TcpStream::connect(addr).unwrap();
            let mut channel = SideChannel::new(stream, patience).unwrap();
            channel.exchange::<_, Endpoint>(&endpoint()).unwrap()
        });
        let mut channel = SideChannel::new(listener.accept().unwrap().0, patience).unwrap();
        let got: Endpoint = channel.exchange(&endpoint()).unwrap();
        assert_eq!(got, endpoint());
        assert_eq!(peer.join().unwrap(), endpoint());
    }
}
