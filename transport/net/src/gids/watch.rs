//! Tells when addresses or interfaces may have changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR` (rtnetlink(7)).
const GROUPS: u32 = 1 | 1 << 4 | 1 << 8;

/// A socket the kernel writes to whenever an address or an interface comes, goes or changes, in
/// the network namespace in which it was made.
///
/// What happened is not parsed: [`GidTable::refresh`](super::GidTable::refresh) looks at the whole
/// again, which cannot miss anything, also when so much happened that messages were lost.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
}

impl Watch {
    /// Listens from now on. Make it before the table is first read.
    ///
    /// # Errors
    /// Of the system calls.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, GROUPS))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// Whether anything came since the last call. Never blocks.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn changed(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            match self.socket.recv_from_full() {
                Ok(_) => any = true,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // ENOBUFS: more happened than the socket holds.
                Err(e) if e.raw_os_error() == Some(105) => any = true,
                Err(e) => return Err(e),
            }
        }
    }
}

/// Readable when something changed.
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
