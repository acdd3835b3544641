//! The one trait below which all backends plug in.
//!
//! A backend moves bytes and nothing else: it neither parses RoCE nor keeps protocol state. The
//! engine owns it and calls it from one thread. In each turn it makes any number of
//! `tx_begin`/`tx_commit`, then one `tx_flush`, and one `rx_burst`: after them, or before them when a
//! timer is due. A backend must not rely on either order. Frames are lent, never given: a slice from
//! `tx_begin` belongs to the caller until the next call on the port.

use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;

use xroce_api::PortStats;
use xroce_wire::frame::UdpMeta;
use xroce_wire::newtypes::Gid;

/// What a lent frame starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// Ethernet header first: the engine builds and sees L2, IP, UDP.
    Ethernet,
    /// BTH first: the kernel owns everything below, the backend reports it in [`UdpMeta`].
    Udp,
}

/// What a port can do; fixed for its life.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Which headers are in a frame.
    pub link: Link,
    /// IP MTU of the interface, in bytes.
    pub mtu: usize,
    /// Bytes of a slice lent by [`Datapath::tx_begin`] (at least mtu plus L2 headers).
    pub max_frame: usize,
    /// For messages to people: "AF_XDP eth0 queue 0 (native, copy)".
    pub name: String,
}

/// A received frame, lent for the length of one call.
#[derive(Clone, Copy, Debug)]
pub enum Rx<'a> {
    /// An Ethernet frame without FCS; may carry trailing padding.
    Ethernet(&'a [u8]),
    /// A UDP payload (BTH .. ICRC) and what the socket said about it.
    Udp(UdpMeta, &'a [u8]),
}

/// What a backend without L2 needs to send a frame; Ethernet backends ignore it.
#[derive(Clone, Copy, Debug)]
pub struct TxMeta {
    /// Destination address.
    pub dst: Gid,
    /// IPv4 TOS / IPv6 traffic class: DSCP(6) ECN(2).
    pub tos: u8,
}

/// A way for frames to come and go.
pub trait Datapath {
    /// What this port can do.
    fn caps(&self) -> &Caps;

    /// Hands up to `budget` received frames to `each`, returns how many. Never blocks.
    ///
    /// # Errors
    /// The device is gone or the socket broken; what is merely congested is `Ok(0)`.
    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize>;

    /// Lends a free frame of `caps().max_frame` bytes with unspecified content, or `None` when
    /// all are in flight. Not committing it gives it back.
    fn tx_begin(&mut self) -> Option<&mut [u8]>;

    /// Queues the first `len` bytes of the frame last lent by [`Datapath::tx_begin`].
    fn tx_commit(&mut self, meta: &TxMeta, len: usize);

    /// Lets the kernel know of everything committed and takes back what it has sent.
    ///
    /// # Errors
    /// As [`Datapath::rx_burst`].
    fn tx_flush(&mut self) -> io::Result<()>;

    /// Sleeps until something can be received or `timeout` passes (`None`: until then only).
    ///
    /// # Errors
    /// As [`Datapath::rx_burst`].
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// A descriptor that is readable when something can be received, for who waits for other things
    /// too and cannot do so in [`Datapath::wait`]. After it, or every few milliseconds, `wait` has
    /// to be called all the same, with a timeout of 0: a port has more to look after.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for what is sent to a multicast group, until [`Datapath::leave`]. A group is joined
    /// once.
    ///
    /// # Errors
    /// This backend cannot, or the system refused it.
    fn join(&mut self, group: Gid) -> io::Result<()> {
        let why = format!("this kind of port receives no multicast ({group})");
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// An address of the interface came (back): takes what is sent to it, if this port was opened
    /// for it. Ports whose kernel decides need not do anything.
    fn claim(&mut self, _gid: Gid) {}

    /// An address of the interface is gone: takes nothing for it any more.
    fn release(&mut self, _gid: Gid) {}

    /// The reverse of [`Datapath::join`].
    fn leave(&mut self, _group: Gid) {}

    /// Counters so far.
    fn stats(&mut self) -> PortStats;
}
