//! What the kernel's own UDP does with small datagrams: `sendmmsg` in one thread, `recvmmsg` in
//! another.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use xroce_engine::clock;
use xroce_proto::time::Duration;

use super::support::threads::two;

/// Datagrams per system call.
const BATCH: usize = 64;
const PAYLOAD: usize = 64;

/// Datagrams a second that arrive at `to`, which `from` is connected to.
pub(crate) fn flood(from: &UdpSocket, to: &UdpSocket, time: Duration) -> io::Result<f64> {
    let done = AtomicBool::new(false);
    let (sent, received) = two(
        || {
            let result = send(from, time);
            done.store(true, Ordering::Release);
            result
        },
        || receive(to, &done),
    );
    sent?;
    received
}

fn send(socket: &UdpSocket, time: Duration) -> io::Result<()> {
    let payload = [7u8; PAYLOAD];
    let slices = [[IoSlice::new(&payload)]; BATCH];
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let to = [None; BATCH];
    let start = clock::now();
    while clock::now().since(start) < time {
        let flags = MsgFlags::MSG_DONTWAIT;
        match sendmmsg(socket.as_raw_fd(), &mut headers, &slices, to, [], flags) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Counts until the sender is done, from the first burst to the last.
fn receive(socket: &UdpSocket, done: &AtomicBool) -> io::Result<f64> {
    let mut buffers = [[0u8; PAYLOAD]; BATCH];
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let (mut first, mut last, mut count) = (None, clock::now(), 0usize);
    loop {
        let over = done.load(Ordering::Acquire);
        let mut slices = buffers.each_mut().map(|b| [IoSliceMut::new(b)]);
        let flags = MsgFlags::MSG_DONTWAIT;
        let got = recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None);
        match got.map(Iterator::count) {
            Ok(n) if first.is_some() => {
                last = clock::now();
                count += n;
            }
            // The first burst only starts the clock.
            Ok(_) => first = Some(clock::now()),
            Err(Errno::EAGAIN) if over => break,
            Err(Errno::EAGAIN) => {}
            Err(e) => return Err(e.into()),
        }
    }
    match first {
        Some(first) if last > first => Ok(count as f64 * 1e9 / last.since(first).as_nanos() as f64),
        _ => Err(io::Error::new(ErrorKind::TimedOut, "no datagram arrived")),
    }
}
