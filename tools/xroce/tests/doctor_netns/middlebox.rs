//! A device between two hosts that forwards frames and has one fault.
//!
//! Raw sockets at both of its interfaces, one thread, and a random number generator with a fixed
//! seed: the same frames meet the same fate.

use std::collections::VecDeque;
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike, bind,
    recvfrom, send, socket,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use xroce_testnet::{Netns, Star};

/// `sll_pkttype` of a frame that this host sends.
const OUTGOING: u8 = 4;
/// Room for frames while the thread has no core: the path itself must not lose any.
const BUFFER: usize = 64 << 20;
/// Longest frame.
const FRAME_MAX: usize = 10_000;
/// Frames taken from one side before the other has its turn.
const TAKE: usize = 32;
/// A frame held back is overtaken by so many, or let go when nothing comes for [`IDLE`].
const OVERTAKEN: usize = 5;
const IDLE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 3_000_000,
};

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const UDP: u8 = 17;
const ROCE_PORT: u16 = 4791;

/// What is wrong with it. Directed faults befall frames from the first interface to the second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Longer IP packets vanish, in both directions.
    pub(crate) mtu: Option<usize>,
    /// UDP port 4791 is dropped.
    pub(crate) firewall: bool,
    /// Source addresses of UDP become this one.
    pub(crate) nat: Option<[u8; 4]>,
    /// The ECN field is cleared.
    pub(crate) bleach: bool,
    /// So many of a thousand RoCE packets are lost.
    pub(crate) loss: u64,
    /// So many of a thousand RoCE packets are overtaken.
    pub(crate) reorder: u64,
    /// So many of a thousand RoCE packets come twice.
    pub(crate) duplicate: u64,
}

/// The device; it stops when dropped.
pub(crate) struct Middlebox {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Middlebox {
    /// Between the first two leaves of the star.
    pub(crate) fn start(star: &Star, faults: Faults) -> Self {
        let sides = [0, 1].map(|i| Side::open(&star.middle, &Star::port(i)));
        let stop = Arc::new(AtomicBool::new(false));
        let mut works = Works {
            faults,
            sides,
            held: VecDeque::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        };
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                works.turn();
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Middlebox {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One interface.
struct Side {
    fd: OwnedFd,
}

impl Side {
    fn open(ns: &Netns, ifname: &str) -> Self {
        ns.run(|| {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let protocol = SockProtocol::EthAll;
            let fd = socket(AddressFamily::Packet, SockType::Raw, flags, protocol).unwrap();
            let address = link_address(ifname);
            bind(fd.as_raw_fd(), &address).unwrap();
            set_socket_recv_buffer_size_force(&fd, BUFFER).unwrap();
            Self { fd }
        })
    }

    /// The next frame from outside; `None` if there is none.
    fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            match recvfrom::<LinkAddr>(self.fd.as_raw_fd(), buffer) {
                Ok((_, Some(from))) if from.pkttype() == OUTGOING => {}
                Ok((len, _)) => return Some(len),
                Err(Errno::EAGAIN) => return None,
                Err(e) => panic!("receiving: {e}"),
            }
        }
    }

    fn send(&self, frame: &[u8]) {
        match send(self.fd.as_raw_fd(), frame, MsgFlags::empty()) {
            // The other end may be gone already when a test ends.
            Ok(_) | Err(Errno::ENETDOWN | Errno::ENXIO | Errno::ENOBUFS) => {}
            Err(e) => panic!("sending {} bytes: {e}", frame.len()),
        }
    }
}

/// The address of an interface as raw sockets have it, in the namespace of the calling thread.
fn link_address(ifname: &str) -> LinkAddr {
    let all = getifaddrs().unwrap();
    let ours = all.filter(|a| a.interface_name == ifname);
    let addresses = ours.filter_map(|a| a.address);
    let mut link = addresses.filter_map(|a| a.as_link_addr().copied());
    let found = link.next().unwrap_or_else(|| panic!("no {ifname}"));
    assert!(found.len() > 0);
    found
}

struct Works {
    faults: Faults,
    sides: [Side; 2],
    /// Frames held back on the way from the first side to the second, each with the number of
    /// frames that have yet to overtake it.
    held: VecDeque<(usize, Vec<u8>)>,
    random: u64,
}

impl Works {
    fn turn(&mut self) {
        let mut fds = [0, 1]
            .map(|i: usize| PollFd::from_borrowed_fd(self.sides[i].fd.as_fd(), PollFlags::IN));
        let ready = poll(&mut fds, Some(&IDLE)).map_err(Error::from);
        if ready.is_ok_and(|n| n == 0) {
            while let Some((_, frame)) = self.held.pop_front() {
                self.sides[1].send(&frame);
            }
        }
        let mut buffer = [0; FRAME_MAX];
        for from in 0..2 {
            for _ in 0..TAKE {
                let Some(len) = self.sides[from].receive(&mut buffer) else {
                    break;
                };
                self.forward(from, &mut buffer[..len]);
            }
        }
    }

    fn forward(&mut self, from: usize, frame: &mut [u8]) {
        let Some(roce) = udp_is_roce(frame) else {
            return self.sides[1 - from].send(frame);
        };
        if self.faults.mtu.is_some_and(|mtu| frame.len() - 14 > mtu) {
            return;
        }
        if !roce {
            // The kernel left it to the device. 0: no checksum.
            frame[40..42].fill(0);
        }
        if from == 1 {
            return self.sides[0].send(frame);
        }
        if let Some(source) = self.faults.nat {
            frame[26..30].copy_from_slice(&source);
        }
        if self.faults.bleach {
            frame[15] &= !3;
        }
        checksum(&mut frame[14..34]);
        if roce {
            self.directed(frame);
        } else {
            self.sides[1].send(frame);
        }
    }

    fn directed(&mut self, frame: &[u8]) {
        if self.faults.firewall || self.chance(self.faults.loss) {
            return;
        }
        if self.chance(self.faults.reorder) {
            self.held.push_back((OVERTAKEN, frame.to_vec()));
            return;
        }
        self.sides[1].send(frame);
        if self.chance(self.faults.duplicate) {
            self.sides[1].send(frame);
        }
        for (left, _) in &mut self.held {
            *left -= 1;
        }
        while self.held.front().is_some_and(|(left, _)| *left == 0) {
            if let Some((_, frame)) = self.held.pop_front() {
                self.sides[1].send(&frame);
            }
        }
    }

    /// Happens to so many of a thousand (xorshift64).
    fn chance(&mut self, of_thousand: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 1000 < of_thousand
    }
}

/// Whether a frame is UDP over IPv4 without options, and then whether to the port of RoCE.
fn udp_is_roce(frame: &[u8]) -> Option<bool> {
    let is_udp = frame.len() >= 42
        && frame[12..14] == ETHERTYPE_IPV4
        && frame[14] == 0x45
        && frame[23] == UDP;
    is_udp.then(|| frame[36..38] == ROCE_PORT.to_be_bytes())
}

/// Makes the checksum of an IPv4 header right.
fn checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let words = header.chunks_exact(2);
    let mut sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).unwrap();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
