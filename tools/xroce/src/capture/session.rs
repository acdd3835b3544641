//! A capture of the daemon, as seen from this side.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use serde::de::DeserializeOwned;
use xroce_api::Request;
use xroce_api::message::{CaptureMade, CaptureSpec, CaptureStats};
use xroce_api::message::{Farewell, Opened, Refusal, Welcome};
use xroce_control::capture::{self, Header};
use xroce_control::socket::{self, Kind, Message};
use xroce_shm::{Consumer, PARK_AT, ParkWord, Piece, Region};

use super::odd;

/// Link types of the capture formats (LINKTYPE_ numbers).
const ETHERNET: u16 = 1;
const RAW_IP: u16 = 101;

/// A running capture. Dropped, it ends.
#[derive(Debug)]
pub(super) struct Session {
    socket: OwnedFd,
    /// Name of the device.
    pub(super) device: String,
    /// Name of its port.
    pub(super) port: String,
    /// Frames begin with an Ethernet header.
    pub(super) ethernet: bool,
    ring: Consumer,
    park: ParkWord,
    bell: OwnedFd,
}

impl Session {
    /// Attaches to the daemon and begins.
    ///
    /// # Errors
    /// Nobody listens there, or the daemon says no.
    pub(super) fn begin(path: &Path, device: Option<&str>, spec: &CaptureSpec) -> Result<Self> {
        let socket = socket::connect_to(path).with_context(|| {
            format!(
                "cannot attach to a daemon at {}: is it running, and is --socket right?",
                path.display()
            )
        })?;
        let program = "xroce capture".to_owned();
        let _: (Welcome, _) = ask(&socket, &Request::Hello { program })?;
        let device = device.map(str::to_owned);
        let (opened, _): (Opened, _) = ask(&socket, &Request::Open { device })?;
        let spec = *spec;
        let (made, fds): (CaptureMade, _) = ask(&socket, &Request::Capture { spec })?;
        let [file, bell] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| odd(format_args!("{} descriptors", fds.len())))?;
        let geometry = capture::ring(made.ring).map_err(odd)?;
        let piece = Piece {
            fd: file,
            offset: 0,
            len: geometry.bytes(),
        };
        let memory = Region::from_pieces(vec![piece]).map_err(odd)?;
        Ok(Self {
            socket,
            device: opened.device,
            port: opened.port,
            ethernet: made.ethernet,
            ring: Consumer::new(&memory, 0, geometry).map_err(odd)?,
            park: ParkWord::new(&memory, PARK_AT).map_err(odd)?,
            bell,
        })
    }

    /// Link type of the packets.
    pub(super) const fn link(&self) -> u16 {
        if self.ethernet { ETHERNET } else { RAW_IP }
    }

    /// The next frame, if there is one.
    ///
    /// # Errors
    /// The ring is of no more use.
    pub(super) fn next(&mut self, frame: &mut Vec<u8>) -> Result<Option<Header>> {
        capture::next(&mut self.ring, frame).map_err(odd)
    }

    /// Waits for a frame, up to `timeout`.
    ///
    /// # Errors
    /// The daemon has ended, or ended this session.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.park.park();
        if self.ring.available().map_err(odd)? != 0 {
            self.park.unpark();
            return Ok(());
        }
        let mut fds = [
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN),
        ];
        let timeout = Timespec::try_from(timeout).ok();
        let waited = poll(&mut fds, timeout.as_ref());
        let [rang, said] = fds.map(|fd| !fd.revents().is_empty());
        self.park.unpark();
        match waited {
            // A signal: whoever asked looks for it.
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error).context("waiting for packets"),
            Ok(_) => {}
        }
        if said {
            // It was asked nothing: this is the end.
            return Err(told(&socket::receive(&self.socket, RecvFlags::empty())?));
        }
        if rang {
            // Once for each time it is asked for, so that a few bytes are all there can be.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 256]);
        }
        Ok(())
    }

    /// Ends it. What is in the ring can still be taken.
    ///
    /// # Errors
    /// The daemon is gone.
    pub(super) fn end(&mut self) -> Result<CaptureStats> {
        Ok(ask(&self.socket, &Request::EndCapture)?.0)
    }
}

/// Asks the daemon.
fn ask<T: DeserializeOwned>(socket: &OwnedFd, request: &Request) -> Result<(T, Vec<OwnedFd>)> {
    socket::send(socket.as_fd(), Kind::Request, request, &[])?;
    let message = socket::receive(socket, RecvFlags::empty())?;
    match message.kind {
        Kind::Reply => Ok((message.body()?, message.fds)),
        _ => Err(told(&message)),
    }
}

/// What is said instead of an answer.
fn told(message: &Message) -> anyhow::Error {
    let text = match message.kind {
        Kind::Refusal => return said(message.body::<Refusal>().map(|r| r.text)),
        Kind::Farewell => message.body::<Farewell>().map(|f| f.text),
        other => return odd(format_args!("a message of kind {other:?}")),
    };
    said(text).context("the daemon ended the session")
}

fn said(text: Result<String, socket::MessageError>) -> anyhow::Error {
    text.map_or_else(odd, |text| anyhow!(text))
}
