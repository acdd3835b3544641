//! Plain UDP socket: no privileges, for demos, continuous integration and machines whose
//! interfaces cannot be had.
//!
//! The kernel owns everything below BTH. Three things make its packets RoCEv2 all the same:
//!
//! * The ICRC covers the IPv4 identification and flags. An unconnected socket in probe mode sends
//!   identification 0 with DF set, which is what the core computes the ICRC for.
//! * Many frames go out in one system call, cut by the kernel (`UDP_SEGMENT`), which numbers
//!   them; the ICRC is changed to that number's (see `train`). Without this a packet costs a
//!   system call and the rate falls by an order of magnitude.
//! * The source port is the bound one, [`ROCE_PORT`]: use [`UdpPort::src_port`] in the address
//!   vector, since the ICRC covers it too.
//!
//! A receiving socket sees neither identification nor DSCP; `xroce_wire::frame::Frame::from_udp`
//! knows.

use core::time::Duration;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{TransportErrorPayload, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{MsgHdr, SockAddr, Socket};
use xroce_api::PortStats;
use xroce_wire::newtypes::Gid;

mod cmsg;
mod delta;
mod drops;
mod error;
mod open;
mod rx;
#[cfg(test)]
mod tests;
mod train;

pub use error::{SendTrouble, UdpError};
pub use open::{ROCE_PORT, UdpConfig};

use crate::datapath::{Caps, Datapath, Link, Rx, TxMeta};
use cmsg::Control;
use drops::Drops;
use rx::Inbox;
use train::{MAX_FRAME, Train, Trains};

/// An error that is none of this train's (a pending ICMP error is reported by the next call,
/// whatever that is) is gone on the next try. More tries than errors can be pending.
const TRIES: usize = 4;
/// ENOBUFS means that a queue below was full. After so many flushes in a row the train is given
/// up: the queue is stuck, not full.
const FULL_MAX: u32 = 10_000;
/// Longest sleep while such a train waits.
const FULL_WAIT: Duration = Duration::from_micros(100);

/// One bound socket.
#[derive(Debug)]
pub struct UdpPort {
    socket: Socket,
    state: UdpSocketState,
    caps: Caps,
    addr: SocketAddr,
    gid: Gid,
    rcvbuf: usize,
    sndbuf: usize,
    trains: Trains,
    /// A train waits because the socket would block.
    blocked: bool,
    full_in_a_row: u32,
    inbox: Inbox,
    drops: Drops,
    stats: PortStats,
    icmp_errors: u64,
    trouble: Option<SendTrouble>,
    /// An error that means the socket itself is broken, found while committing.
    broken: Option<io::Error>,
    /// The next sends fail so; for tests.
    #[cfg(test)]
    inject: std::collections::VecDeque<Errno>,
}

impl UdpPort {
    /// Opens the UDP port `cfg.port` of `addr`, one address of this machine.
    ///
    /// # Errors
    /// [`UdpError`]: wildcard address, not an address of this machine, port in use, and the rest.
    pub fn bind(addr: IpAddr, cfg: &UdpConfig) -> Result<Self, UdpError> {
        let o = open::open(addr, cfg)?;
        let segments = if cfg.segmentation {
            o.state.max_gso_segments()
        } else {
            1
        };
        let offload = match (segments > 1, o.state.gro_segments() > 1) {
            (true, true) => "GSO, GRO",
            (true, false) => "GSO",
            (false, true) => "GRO",
            (false, false) => "no offload",
        };
        let caps = Caps {
            link: Link::Udp,
            mtu: o.mtu,
            max_frame: MAX_FRAME,
            name: format!("UDP {} {} ({offload})", o.ifname, o.addr),
        };
        Ok(Self {
            caps,
            gid: o.addr.ip().into(),
            trains: Trains::new(segments),
            blocked: false,
            full_in_a_row: 0,
            inbox: Inbox::new(),
            drops: Drops::new(o.addr),
            stats: PortStats::default(),
            icmp_errors: 0,
            trouble: None,
            broken: None,
            #[cfg(test)]
            inject: std::collections::VecDeque::new(),
            socket: o.socket,
            state: o.state,
            addr: o.addr,
            rcvbuf: o.rcvbuf,
            sndbuf: o.sndbuf,
        })
    }

    /// Own address as a GID.
    #[must_use]
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// UDP source port of everything sent here.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        self.addr.port()
    }

    /// Receive and send buffer in bytes, as the kernel counts: a packet takes more than its
    /// length. What is in flight towards a port beyond its receive buffer is lost.
    #[must_use]
    pub fn buffers(&self) -> (usize, usize) {
        (self.rcvbuf, self.sndbuf)
    }

    /// ICMP errors received.
    #[must_use]
    pub fn icmp_errors(&self) -> u64 {
        self.icmp_errors
    }

    /// The last thing that went wrong with sending, if any did.
    #[must_use]
    pub fn last_error(&self) -> Option<&SendTrouble> {
        self.trouble.as_ref()
    }

    /// Takes the last trouble, so that the next is noticed.
    pub fn take_last_error(&mut self) -> Option<SendTrouble> {
        self.trouble.take()
    }

    /// Sends the trains that are complete, or all. Errors of the socket itself only.
    fn send_trains(&mut self, all: bool) -> io::Result<()> {
        while let Some(train) = self.trains.next(all) {
            let gone = self.send_train(&train);
            self.blocked = matches!(gone, Ok(false));
            if !gone? {
                return Ok(());
            }
            self.full_in_a_row = 0;
        }
        Ok(())
    }

    /// Whether the train is gone, sent or given up; `false` keeps it for the next flush.
    fn send_train(&mut self, train: &Train) -> io::Result<bool> {
        let Some(to) = self.sock_addr(train.dst) else {
            let (src, dst) = (self.addr.ip(), train.dst.ip());
            self.give_up(train, SendTrouble::WrongFamily { src, dst });
            return Ok(true);
        };
        if train.single {
            return self.send_singly(train, &to);
        }
        match self.send_bytes(train, &to, train.end, train.count > 1) {
            Ok(()) => {
                self.trains.done();
                Ok(true)
            }
            Err(Errno::WOULDBLOCK) => Ok(false),
            // The device cannot cut (EIO), or something on the way refuses it (EINVAL).
            Err(Errno::IO | Errno::INVAL) if train.count > 1 => self.try_first(train, &to),
            Err(e) => self.after_error(train, e),
        }
    }

    /// A train was refused. Its first frame alone (which has identification 0 in any case) shows
    /// whether cutting is to blame, or the destination.
    fn try_first(&mut self, train: &Train, to: &SockAddr) -> io::Result<bool> {
        match self.send_bytes(train, to, train.start + train.segment, false) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(e) => return self.after_error(train, e),
        }
        tracing::info!(port = %self.caps.name, "kernel refuses UDP_SEGMENT, frames go singly");
        self.trains.give_up_segments();
        self.trains.done_first(train.segment);
        match self.trains.next(false) {
            Some(rest) => self.send_singly(&rest, to),
            None => Ok(true),
        }
    }

    fn send_singly(&mut self, train: &Train, to: &SockAddr) -> io::Result<bool> {
        let mut t = *train;
        while t.count > 0 {
            let len = t.segment.min(t.end - t.start);
            match self.send_bytes(&t, to, t.start + len, false) {
                Ok(()) => self.trains.done_first(len),
                Err(Errno::WOULDBLOCK) => return Ok(false),
                Err(e) => return self.after_error(&t, e),
            }
            t.start += len;
            t.count -= 1;
        }
        Ok(true)
    }

    /// What follows from an error that stayed: the train is given up, or kept (`false`).
    fn after_error(&mut self, train: &Train, e: Errno) -> io::Result<bool> {
        let dst = train.dst.ip();
        let trouble = match e {
            Errno::NOBUFS | Errno::NOMEM if self.full_in_a_row < FULL_MAX => {
                self.full_in_a_row += 1;
                return Ok(false);
            }
            Errno::BADF | Errno::NOTSOCK => {
                self.give_up(
                    train,
                    SendTrouble::Refused {
                        dst,
                        errno: e.raw_os_error(),
                    },
                );
                return Err(e.into());
            }
            Errno::MSGSIZE => {
                let headers = if dst.is_ipv4() { 28 } else { 48 };
                let limit = self.caps.mtu.saturating_sub(headers);
                SendTrouble::TooLong {
                    len: train.segment,
                    limit,
                    mtu: self.caps.mtu,
                }
            }
            _ => SendTrouble::Refused {
                dst,
                errno: e.raw_os_error(),
            },
        };
        self.give_up(train, trouble);
        Ok(true)
    }

    fn give_up(&mut self, train: &Train, trouble: SendTrouble) {
        self.stats.tx_dropped += train.count as u64;
        self.trouble = Some(trouble);
        self.trains.done();
    }

    /// One `sendmsg` of the train's bytes up to `end`, tried again after errors of others.
    fn send_bytes(&mut self, t: &Train, to: &SockAddr, end: usize, cut: bool) -> Result<(), Errno> {
        let segment = u16::try_from(t.segment).ok().filter(|_| cut);
        let control = Control::new(t.dst.v4().is_some(), t.tos, segment);
        let mut last = Errno::INTR;
        for _ in 0..TRIES {
            self.stats.syscalls += 1;
            let buffers = [IoSlice::new(self.trains.bytes(t.start, end))];
            let message = MsgHdr::new()
                .with_addr(to)
                .with_buffers(&buffers)
                .with_control(control.bytes());
            #[cfg(test)]
            let injected = self.inject.pop_front();
            #[cfg(not(test))]
            let injected: Option<Errno> = None;
            let sent = match injected {
                Some(e) => Err(e.into()),
                None => self.socket.sendmsg(&message, 0),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(e) => last = Errno::from_io_error(&e).unwrap_or(Errno::IO),
            }
            match last {
                Errno::WOULDBLOCK | Errno::NOBUFS | Errno::NOMEM | Errno::IO | Errno::INVAL => {
                    break;
                }
                _ => self.drain_errors(),
            }
        }
        Err(last)
    }

    /// Keeps an error for the next flush, which can return it.
    fn keep_error(&mut self, sent: io::Result<()>) {
        if let Err(e) = sent {
            self.broken.get_or_insert(e);
        }
    }

    /// Reads the ICMP errors that wait.
    fn drain_errors(&mut self) {
        for _ in 0..64 {
            self.stats.syscalls += 1;
            let Ok(Some(e)) = self
                .state
                .recv_transport_error(UdpSockRef::from(&self.socket))
            else {
                return;
            };
            let (from, errno) = (e.addr.map(|a| a.ip()), e.raw_errno);
            let trouble = match e.payload {
                TransportErrorPayload::TooBig { mtu } => SendTrouble::PathTooNarrow { from, mtu },
                TransportErrorPayload::Unreachable
                    if errno == Errno::CONNREFUSED.raw_os_error() =>
                {
                    SendTrouble::PortUnreachable {
                        from,
                        port: self.addr.port(),
                    }
                }
                TransportErrorPayload::Unreachable => SendTrouble::Unreachable { from, errno },
                // Of local origin (EMSGSIZE): the failing send itself reports it.
                _ => continue,
            };
            self.icmp_errors += 1;
            self.trouble = Some(trouble);
        }
    }

    /// `None` if the destination is of the other family.
    fn sock_addr(&self, dst: Gid) -> Option<SockAddr> {
        let port = self.addr.port();
        match (self.addr, dst.ip()) {
            (SocketAddr::V4(_), ip @ IpAddr::V4(_)) => Some(SocketAddr::new(ip, port).into()),
            (SocketAddr::V6(own), IpAddr::V6(v6)) => {
                // Link-local means: on the link of the own address.
                Some(SocketAddrV6::new(v6, port, 0, own.scope_id()).into())
            }
            _ => None,
        }
    }

    /// Receives into the empty inbox; whether there may be more behind it.
    fn receive(&mut self, messages: usize) -> io::Result<bool> {
        for _ in 0..TRIES {
            self.stats.syscalls += 1;
            match self.inbox.fill(&self.socket, &self.state, messages) {
                Ok(more) => return Ok(more),
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::WOULDBLOCK) => return Ok(false),
                    Some(Errno::BADF | Errno::NOTSOCK | Errno::FAULT) | None => return Err(e),
                    // An ICMP error is reported once, then what was received.
                    Some(_) => self.drain_errors(),
                },
            }
        }
        Ok(false)
    }
}

impl Datapath for UdpPort {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(Rx<'_>)) -> io::Result<usize> {
        let mut count = 0;
        let mut more = true;
        loop {
            let (n, bytes) = self.inbox.hand_out(self.gid, budget - count, each);
            count += n;
            self.stats.rx_frames += n as u64;
            self.stats.rx_bytes += bytes;
            if count >= budget || !more {
                return Ok(count);
            }
            more = self.receive(budget - count)?;
        }
    }

    /// A slice long enough for every RoCE packet up to path MTU 4096, whatever the link's MTU.
    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        if !self.blocked && !self.trains.has_room() {
            let sent = self.send_trains(true);
            self.keep_error(sent);
        }
        if self.blocked {
            self.stats.tx_full += 1;
            return None;
        }
        self.trains.room()
    }

    fn tx_commit(&mut self, meta: &TxMeta, len: usize) {
        debug_assert!(len <= MAX_FRAME, "{len} bytes in a frame of {MAX_FRAME}");
        let len = len.min(MAX_FRAME);
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
        if self.trains.commit(meta, len) {
            let sent = self.send_trains(false);
            self.keep_error(sent);
        }
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        let sent = self.send_trains(true);
        match self.broken.take() {
            Some(e) => Err(e),
            None => sent,
        }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.inbox.is_empty() {
            return Ok(());
        }
        let mut events = PollFlags::IN;
        // A full queue below (ENOBUFS) does not make the socket unwritable: poll would return at
        // once, for ever. Then the time-out, or what arrives, ends the wait.
        if self.blocked && self.full_in_a_row == 0 {
            events |= PollFlags::OUT;
        }
        let timeout = match timeout {
            t if self.full_in_a_row > 0 => Some(t.map_or(FULL_WAIT, |t| t.min(FULL_WAIT))),
            t => t,
        };
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        self.stats.syscalls += 1;
        let mut fds = [PollFd::new(&self.socket, events)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        // Unread errors keep the socket ready.
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            self.drain_errors();
        }
        Ok(())
    }

    fn stats(&mut self) -> PortStats {
        self.stats.rx_dropped = self.drops.read();
        self.stats
    }
}
