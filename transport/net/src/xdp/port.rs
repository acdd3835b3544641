//! [`XdpPort`]: four rings and a piece of memory as a [`Datapath`].

use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size_force, socket_error, xdp_options};
use rustix::net::xdp::XdpOptionsFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use xroce_api::PortStats;
use xroce_wire::newtypes::Gid;
use xroce_xdp_prog::Counters;

use super::assembly::Assembly;
use super::attach::Claim;
use super::memory::{CHUNK, Memory};
use super::open::{self, L2_HEADER};
use super::rx::{BATCH, Rx};
use super::tx::Tx;
use super::{XdpConfig, XdpError};
use crate::datapath::{Caps, Datapath, Link, Rx as RxFrame, TxMeta};
use crate::membership::Memberships;
use crate::neigh;

/// Empty receive bursts between two looks at whether the device is still there: one system call
/// in about 100 µs of polling.
const IDLE_CHECK: u32 = 4096;
/// Milliseconds to wait for frames to come back before a raw measurement.
const SETTLE_ATTEMPTS: u32 = 200;
/// Longest sleep while committed frames wait for the kernel to take them.
const STUCK_SLEEP: Duration = Duration::from_millis(1);
/// Longest sleep without a look at whether the device is still there.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// One queue of a network interface, through AF_XDP.
///
/// Frames lent for sending start on a 64-byte boundary less 54, so that the payload behind
/// Ethernet, IPv4, UDP and BTH is aligned; received frames of one chunk likewise.
///
/// A port may be opened in one thread (in the network namespace of the interface) and used in
/// another. Dropping it detaches the program if it was the last of the interface; so does the
/// end of the process, however it ends.
#[derive(Debug)]
pub struct XdpPort {
    // Dropped in this order: no more frames from the program, then the rings and with them the
    // socket, then the memory.
    claim: Claim,
    rx: Rx,
    tx: Tx,
    memory: Memory,
    assembly: Assembly,
    memberships: Memberships,
    /// The addresses the port was opened for; `None`: all the interface has.
    wanted: Option<Vec<Gid>>,
    caps: Caps,
    /// What the rings cannot tell.
    stats: PortStats,
    /// What the program had seen when the port was opened.
    before: Counters,
    /// The kernel did not take all of the transmit ring last time.
    stuck: bool,
    idle: u32,
}

impl XdpPort {
    /// Opens a queue: memory, socket, program.
    ///
    /// # Errors
    /// All of [`XdpError`]; nothing is left behind.
    pub fn open(config: &XdpConfig) -> Result<Self, XdpError> {
        let interface = neigh::interface(&config.ifname)?;
        let addresses = open::check(&interface, config)?;
        let (parts, plan) = open::make_patiently(config, &interface)?;
        let (rx_descs, tx_descs) = parts.descs.split_at(plan.rx_chunks as usize);
        let full = interface.mtu as usize + L2_HEADER;
        let max_frame = full.min(Tx::capacity(plan.chunks));
        let rx = Rx::new(parts.rx, parts.fill, rx_descs)
            .ok_or_else(|| XdpError::Config("the fill ring takes no chunks".to_owned()))?;
        let tx = Tx::new(
            parts.tx,
            parts.comp,
            plan.tx_ring,
            tx_descs,
            plan.chunks,
            max_frame,
        );
        let fd = fd_of(&rx);
        // Packet buffers in flight count against it; the default stalls at a few dozen.
        let _ = set_socket_send_buffer_size_force(fd, plan.tx_frames as usize * 4 * CHUNK);
        let zero_copy =
            xdp_options(fd).is_ok_and(|o| o.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let claim = Claim::new(&interface, config.mode, config.queue, &addresses, fd)?;
        let before = claim.counters().unwrap_or_default();
        let mtu = (interface.mtu as usize).min(max_frame - L2_HEADER);
        let name = format!(
            "AF_XDP {} queue {} ({}, {})",
            interface.name,
            config.queue,
            if claim.is_generic() {
                "generic"
            } else {
                "native"
            },
            if zero_copy { "zero-copy" } else { "copy" }
        );
        Ok(Self {
            claim,
            rx,
            tx,
            memory: parts.memory,
            assembly: Assembly::new(full),
            memberships: Memberships::new(interface.index),
            wanted: Some(config.addresses.clone()).filter(|given| !given.is_empty()),
            caps: Caps {
                link: Link::Ethernet,
                mtu,
                max_frame,
                name,
            },
            stats: PortStats::default(),
            before,
            stuck: false,
            idle: 0,
        })
    }

    /// What the program has seen on this interface, all ports of the process together.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn program_counters(&self) -> io::Result<Counters> {
        self.claim.counters()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        fd_of(&self.rx)
    }

    /// Asks the kernel to send.
    fn kick(&mut self) -> io::Result<Kick> {
        self.stats.syscalls += 1;
        match send(self.fd(), &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(Kick::Done),
            // Its budget for one call (32 packets) is used up, or the device or the limit on
            // packet buffers pushes back.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(Kick::Again),
            // The device refused a frame, which counts as sent; those behind it wait.
            Err(Errno::BUSY) => {
                self.stats.tx_dropped += 1;
                Ok(Kick::Again)
            }
            Err(errno) => {
                // Should the interface come up again, what is in the ring is sent then.
                self.stuck = true;
                Err(gone(errno, &self.caps.name))
            }
        }
    }

    /// Makes the kernel take all of the transmit ring, or as much as it will.
    fn drain(&mut self) -> io::Result<()> {
        let mut unsent = u32::MAX;
        loop {
            if self.kick()? == Kick::Done {
                self.stuck = false;
                return Ok(());
            }
            let left = self.tx.unsent();
            self.stuck = left != 0;
            // No headway: better come back than spin.
            if left == 0 || left >= unsent {
                return Ok(());
            }
            unsent = left;
        }
    }

    /// Puts the committed frames into the ring and tells the kernel if it wants to know.
    fn push_out(&mut self) -> io::Result<()> {
        // The second round is for what did not fit before the kernel read the ring.
        for _ in 0..2 {
            let new = self.tx.submit();
            if (new || self.stuck) && self.tx.needs_wakeup() {
                self.drain()?;
            }
            if !self.tx.is_queued() {
                return Ok(());
            }
        }
        self.stuck = true;
        Ok(())
    }

    /// Waits for all frames to come back from the device.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        for _ in 0..SETTLE_ATTEMPTS {
            self.push_out()?;
            self.tx.reap();
            if self.tx.is_idle() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "{}: frames do not come back from the device",
                self.caps.name
            ),
        ))
    }

    /// Writes `frame` into every frame of the pool; all must be back.
    pub(super) fn prepare(&mut self, frame: &[u8]) -> io::Result<()> {
        if frame.len() > self.caps.max_frame {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{}: a frame of {} bytes is longer than {}",
                    self.caps.name,
                    frame.len(),
                    self.caps.max_frame
                ),
            ));
        }
        self.tx.prepare(&self.memory, frame);
        Ok(())
    }

    /// Sends up to `n` frames as they are.
    pub(super) fn send_prepared(&mut self, n: usize) -> io::Result<usize> {
        let queued = self.tx.queue_prepared(n);
        self.stats.tx_frames += queued as u64;
        self.push_out()?;
        self.tx.reap();
        Ok(queued)
    }

    /// Takes up to `max` chunks and gives them back unread. Returns frames and bytes.
    pub(super) fn count_received(&mut self, max: usize) -> io::Result<(u64, u64)> {
        if self.rx.receive(max) == 0 {
            self.note_idle()?;
            return Ok((0, 0));
        }
        let (mut frames, mut bytes) = (0, 0);
        for chunk in self.rx.held() {
            frames += u64::from(!chunk.more);
            bytes += chunk.len as u64;
        }
        self.refill();
        self.stats.rx_frames += frames;
        self.stats.rx_bytes += bytes;
        Ok((frames, bytes))
    }

    /// Gives received chunks back.
    fn refill(&mut self) {
        if self.rx.refill() {
            self.wake_receive();
        }
    }

    /// Only zero-copy drivers that ran out of chunks ask for this.
    #[cold]
    fn wake_receive(&mut self) {
        self.stats.syscalls += 1;
        // Whatever it says, the next call that can fail says it too.
        let _ = recv(self.fd(), &mut [0u8; 0], RecvFlags::DONTWAIT);
    }

    /// Called when there was nothing to receive: finds out now and then if the device is gone.
    fn note_idle(&mut self) -> io::Result<()> {
        self.idle += 1;
        if self.idle < IDLE_CHECK {
            Ok(())
        } else {
            self.check_device()
        }
    }

    #[cold]
    fn check_device(&mut self) -> io::Result<()> {
        self.idle = 0;
        // Sending nothing asks the kernel, and drives what is stuck.
        self.drain()
    }

    /// Sleeps until something can be received; false: not for `timeout`.
    fn sleep(&mut self, timeout: Duration) -> io::Result<bool> {
        let timespec = Timespec::try_from(timeout).map_err(io::Error::other)?;
        self.stats.syscalls += 1;
        let mut fds = [PollFd::from_borrowed_fd(fd_of(&self.rx), PollFlags::IN)];
        let ready = match poll(&mut fds, Some(&timespec)) {
            Ok(n) => n != 0,
            // A signal: let the caller look.
            Err(Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        };
        let [polled] = fds;
        if polled
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
        {
            let errno = socket_error(self.fd()).ok().and_then(Result::err);
            return Err(gone(errno.unwrap_or(Errno::NETDOWN), &self.caps.name));
        }
        Ok(ready)
    }
}

/// What the kernel said to a request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kick {
    /// The ring is empty.
    Done,
    /// The ring may hold more.
    Again,
}

impl Datapath for XdpPort {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(&mut self, budget: usize, each: &mut impl FnMut(RxFrame<'_>)) -> io::Result<usize> {
        let mut frames = 0;
        while frames < budget {
            let want = (budget - frames).min(BATCH);
            let got = self.rx.receive(want);
            for chunk in self.rx.held() {
                // SAFETY: the chunk is in the batch held by `rx`, until the refill below.
                let frame = unsafe {
                    self.assembly
                        .push(&self.memory, chunk.addr, chunk.len, chunk.more)
                };
                if let Some(frame) = frame {
                    frames += 1;
                    self.stats.rx_bytes += frame.len() as u64;
                    each(RxFrame::Ethernet(frame));
                }
            }
            if got != 0 {
                self.refill();
            }
            if got < want {
                break;
            }
        }
        self.stats.rx_frames += frames as u64;
        if frames == 0 {
            self.note_idle()?;
        } else {
            self.idle = 0;
        }
        Ok(frames)
    }

    fn tx_begin(&mut self) -> Option<&mut [u8]> {
        if !self.tx.has_free() {
            self.tx.reap();
            if !self.tx.has_free() {
                // All in flight: let the kernel send what it has. Errors come back from flush.
                let _ = self.push_out();
                self.tx.reap();
            }
            if !self.tx.has_free() {
                self.stats.tx_full += 1;
                return None;
            }
        }
        self.tx.begin(&self.memory)
    }

    fn tx_commit(&mut self, _meta: &TxMeta, len: usize) {
        debug_assert!(len <= self.caps.max_frame, "frame of {len} bytes");
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += len as u64;
        self.tx.commit(&self.memory, len);
    }

    fn tx_flush(&mut self) -> io::Result<()> {
        self.push_out()?;
        if !self.tx.is_idle() {
            self.tx.reap();
        }
        Ok(())
    }

    /// Has the interface let the group's frames in and the program send them here: to the port
    /// of the queue they arrive on.
    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.memberships.join(group)?;
        let claimed = self.claim.add_address(group).map_err(io::Error::other);
        if claimed.is_err() {
            self.memberships.leave(group);
        }
        claimed
    }

    fn claim(&mut self, gid: Gid) {
        if self.wanted.as_ref().is_none_or(|only| only.contains(&gid))
            && let Err(error) = self.claim.add_address(gid)
        {
            tracing::warn!(%gid, %error, "frames to this address do not come here");
        }
    }

    fn release(&mut self, gid: Gid) {
        self.claim.remove_address(gid);
    }

    fn leave(&mut self, group: Gid) {
        self.claim.remove_address(group);
        self.memberships.leave(group);
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(fd_of(&self.rx))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.push_out()?;
        let mut left = timeout;
        loop {
            // The kernel wakes nobody when a device that pushed back is ready again, nor when the
            // interface goes away.
            let longest = if self.stuck {
                STUCK_SLEEP
            } else {
                LONGEST_SLEEP
            };
            let sleep = left.map_or(longest, |left| left.min(longest));
            if self.sleep(sleep)? {
                self.idle = 0;
                return Ok(());
            }
            left = left.map(|left| left - sleep);
            // A sleep in vain counts as much as many polls in vain.
            self.idle += IDLE_CHECK / 8;
            if sleep == longest || self.idle >= IDLE_CHECK {
                self.check_device()?;
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
        }
    }

    fn stats(&mut self) -> PortStats {
        let (rx_dropped, tx_invalid) = self.rx.kernel_drops();
        let seen = self.claim.counters().unwrap_or(self.before);
        PortStats {
            rx_fragmented: seen.fragments.wrapping_sub(self.before.fragments),
            rx_other_queue: seen.no_socket.wrapping_sub(self.before.no_socket),
            rx_dropped: rx_dropped + self.assembly.dropped,
            tx_dropped: self.stats.tx_dropped + tx_invalid,
            ..self.stats
        }
    }
}

fn fd_of(rx: &Rx) -> BorrowedFd<'_> {
    // SAFETY: the socket stays open as long as `rx` lives, and the result borrows it.
    unsafe { BorrowedFd::borrow_raw(rx.raw_fd()) }
}

/// ENETDOWN: the interface is down or removed; ENXIO: the socket was unbound on removal.
fn gone(errno: Errno, name: &str) -> io::Error {
    match errno {
        Errno::NETDOWN | Errno::NXIO | Errno::NODEV => io::Error::new(
            io::ErrorKind::NetworkDown,
            format!("{name}: the interface is down or was removed"),
        ),
        other => other.into(),
    }
}
