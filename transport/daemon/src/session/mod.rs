//! The thread that talks to a process: its requests, its objects, its end.

mod captures;
mod dispatch;
mod memory;
mod objects;
mod queues;
mod refuse;
mod vitals;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::Serialize;
use xroce_api::Request;
use xroce_api::message::{Farewell, Opened, Reason, Refusal, Welcome};
use xroce_control::layout;
use xroce_control::socket::{self, Kind, Message, MessageError};
use xroce_net::datapath::Datapath;
use xroce_shm::Region;

use crate::bell::{self, Bell};
use crate::device::Device;
use crate::listener::Common;
use crate::mailbox::Gone;
use crate::report;
use crate::serve::client::{Client, ClientId, Link};
use objects::Objects;
pub(crate) use vitals::Vitals;

/// A process that has not said who it is by then is not waited for.
const GREETING: Duration = Duration::from_secs(10);
/// A process that does not take its answers is given up after so long.
const SENDING: Duration = Duration::from_secs(5);
/// Longest name of a program kept.
const NAME_MAX: usize = 64;

/// An answer: what to say, and what to give.
#[derive(Debug)]
pub(crate) struct Answer {
    body: serde_json::Value,
    fds: Vec<OwnedFd>,
}

impl Answer {
    pub(crate) fn of<T: Serialize>(value: &T) -> Result<Self, Refusal> {
        Self::with(value, Vec::new())
    }

    pub(crate) fn with<T: Serialize>(value: &T, fds: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let body = serde_json::to_value(value);
        let body = body.map_err(|e| Refusal::new(Reason::Device, e))?;
        Ok(Self { body, fds })
    }
}

/// An answer, and the descriptors that go with it.
#[derive(Debug)]
pub(super) struct Carried<T> {
    answer: T,
    fds: Vec<OwnedFd>,
}

impl<T> Carried<T> {
    fn with(answer: T, fds: Vec<OwnedFd>) -> Self {
        Self { answer, fds }
    }
}

impl<T> From<T> for Carried<T> {
    fn from(answer: T) -> Self {
        let fds = Vec::new();
        Self { answer, fds }
    }
}

/// A process that has said who it is and wants a device.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) common: Arc<Common>,
    pub(crate) socket: OwnedFd,
    pub(crate) vitals: Arc<Vitals>,
}

/// Talks to a process until it hangs up or is closed.
pub(crate) fn greet(common: &Arc<Common>, socket: OwnedFd, vitals: &Arc<Vitals>) {
    let _ = set_socket_timeout(&socket, Timeout::Send, Some(SENDING));
    let _ = set_socket_timeout(&socket, Timeout::Recv, Some(GREETING));
    let hello = receive(&socket).and_then(|received| match received {
        Ok((Request::Hello { program }, _)) => Ok(program),
        _ => Err("the first request has to be hello".to_owned()),
    });
    let program = match hello {
        Ok(program) => program,
        Err(text) => return farewell(&socket, vitals, text),
    };
    vitals.call(program.chars().take(NAME_MAX).collect());
    let welcome = Welcome {
        release: env!("CARGO_PKG_VERSION").to_owned(),
        session: vitals.session,
        devices: common.devices.iter().map(|d| d.name().to_owned()).collect(),
    };
    if reply(&socket, Answer::of(&welcome)).is_err() {
        return;
    }
    let _ = set_socket_timeout(&socket, Timeout::Recv, None);
    loop {
        let answer = match receive(&socket) {
            Ok(Ok((Request::Open { device }, _))) => {
                let wanted = device.as_deref();
                let mut devices = common.devices.iter();
                let found = devices.find(|d| wanted.is_none_or(|name| name == d.name()));
                match found {
                    Some(device) => {
                        let common = Arc::clone(common);
                        let vitals = Arc::clone(vitals);
                        return Arc::clone(device).serve(Greeted {
                            common,
                            socket,
                            vitals,
                        });
                    }
                    None => Err(no_device(common, wanted.unwrap_or(""))),
                }
            }
            Ok(Err(unknown)) => Err(unknown),
            Ok(Ok((request, _))) => report::answer(common, vitals, &request).unwrap_or_else(|| {
                let text = "open a device first";
                Err(Refusal::new(Reason::Invalid, text))
            }),
            Err(text) => return farewell(&socket, vitals, text),
        };
        if reply(&socket, answer).is_err() {
            return;
        }
    }
}

fn no_device(common: &Common, wanted: &str) -> Refusal {
    let have: Vec<&str> = common.devices.iter().map(|d| d.name()).collect();
    let have = have.join(", ");
    Refusal::new(
        Reason::NotFound,
        format!("there is no device {wanted:?}; there are: {have}"),
    )
}

/// What came: a request with its descriptors, or one that this daemon is too old to know.
type Received = Result<(Request, Vec<OwnedFd>), Refusal>;

/// What comes next; in words why nothing does. No words: it hung up.
fn receive(socket: &OwnedFd) -> Result<Received, String> {
    let message: Message = match socket::receive(socket, RecvFlags::empty()) {
        Ok(message) => message,
        Err(MessageError::Closed) => return Err(String::new()),
        Err(error) => return Err(error.to_string()),
    };
    if message.kind != Kind::Request {
        return Err(MessageError::Kind(message.kind as u16).to_string());
    }
    match message.body::<Request>() {
        Ok(request) => Ok(Ok((request, message.fds))),
        Err(error) => {
            let text = error.to_string();
            match message.body::<serde_json::Value>() {
                Ok(_) if text.contains(UNKNOWN) => {
                    let text = format!("this daemon does not know the request: {text}");
                    Ok(Err(Refusal::new(Reason::Unsupported, text)))
                }
                _ => Err(text),
            }
        }
    }
}

/// How serde begins what it says of a request that is not in the table.
const UNKNOWN: &str = "unknown variant";

fn reply(socket: &OwnedFd, answer: Result<Answer, Refusal>) -> Result<(), MessageError> {
    match answer {
        Ok(answer) => {
            let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
            socket::send(socket, Kind::Reply, &answer.body, &fds)
        }
        Err(refusal) => socket::send(socket, Kind::Refusal, &refusal, &[]),
    }
}

/// Says why, if there is somebody to say it to.
fn farewell(socket: &OwnedFd, vitals: &Vitals, text: String) {
    if text.is_empty() {
        return;
    }
    tracing::warn!(
        session = vitals.session,
        pid = vitals.pid,
        text,
        "session closed"
    );
    // The process may be gone.
    let _ = socket::send(socket, Kind::Farewell, &Farewell { text }, &[]);
}

/// A process that uses a device.
#[derive(Debug)]
pub(crate) struct Attached<D: Datapath> {
    common: Arc<Common>,
    device: Arc<Device<D>>,
    link: Arc<Link>,
    vitals: Arc<Vitals>,
    id: ClientId,
    objects: Objects,
}

impl<D: Datapath + Send + 'static> Attached<D> {
    /// Serves the process until it hangs up or is closed, then destroys what it had.
    pub(crate) fn run(device: Arc<Device<D>>, who: Greeted) {
        let vitals = Arc::clone(&who.vitals);
        let link = Arc::new(Link::new(who.socket));
        let (mut attached, answer) = match Self::attach(device, &link, who.common, &vitals) {
            Ok(attached) => attached,
            Err(refusal) => return farewell(link.socket(), &vitals, refusal.text),
        };
        tracing::info!(
            session = vitals.session,
            pid = vitals.pid,
            uid = vitals.uid,
            program = vitals.program(),
            device = attached.device.name,
            "attached"
        );
        let mut said = reply(link.socket(), Ok(answer)).map_err(|e| e.to_string());
        while said.is_ok() {
            said = attached.serve_one();
        }
        attached.destroy_all();
        tracing::info!(session = vitals.session, pid = vitals.pid, "detached");
        let reason = match (link.expelled(), said) {
            (Some(reason), _) => reason.to_owned(),
            (None, Err(text)) => text,
            (None, Ok(())) => String::new(),
        };
        farewell(link.socket(), &vitals, reason);
    }

    /// Makes the memory of the session and has the engine's thread look at it.
    fn attach(
        device: Arc<Device<D>>,
        link: &Arc<Link>,
        common: Arc<Common>,
        vitals: &Arc<Vitals>,
    ) -> Result<(Self, Answer), Refusal> {
        let limits = common.config().limits;
        let no = |e: &dyn std::fmt::Display| Refusal::new(Reason::Limit, e);
        let bytes = layout::session_bytes().map_err(|e| no(&e))?;
        let bytes = usize::try_from(bytes).map_err(|e| no(&e))?;
        let (memory, file) = Region::with_file(bytes).map_err(|e| no(&e))?;
        let (event_bell, events) = Bell::new().map_err(|e| no(&e))?;
        let kick = bell::kick().map_err(|e| no(&e))?;
        let theirs = kick.try_clone().map_err(|e| no(&e))?;
        let budget = limits.wqes_per_poll;
        let client = Client::new(
            Arc::clone(link),
            &memory,
            event_bell,
            kick,
            budget,
            Arc::clone(vitals),
        );
        let client = client.map_err(|e| no(&e))?;
        let added = device.mailbox.run(move |server| match &server.broken {
            Some(reason) => Err(Refusal::new(Reason::Device, reason)),
            None => {
                let added = server.add_client(client);
                added.map_err(|e| Refusal::new(Reason::Limit, e))
            }
        });
        let id = added.map_err(|Gone| gone())??;
        vitals.opened(&device.name);
        let opened = Opened {
            device: device.name.clone(),
            port: device.port.clone(),
            ethernet: device.ethernet,
            link_mtu: device.link_mtu,
            path_mtu: device.path_mtu,
            limits,
        };
        let attached = Self {
            common,
            device,
            link: Arc::clone(link),
            vitals: Arc::clone(vitals),
            id,
            objects: Objects::new(limits),
        };
        let answer = Answer::with(&opened, vec![file, theirs, events])?;
        Ok((attached, answer))
    }

    /// One request and its answer; in words why there is no other.
    fn serve_one(&mut self) -> Result<(), String> {
        let answer = match receive(self.link.socket())? {
            Ok((request, fds)) => self.answer(request, fds),
            Err(unknown) => Err(unknown),
        };
        self.vitals.count(&self.objects);
        reply(self.link.socket(), answer).map_err(|e| e.to_string())
    }
}

/// The engine's thread has ended: so does everything else.
fn gone() -> Refusal {
    Refusal::new(Reason::Device, "the daemon ends")
}
