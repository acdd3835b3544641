//! A connection that only asks what the daemon has and does.
//!
//! Needs no device and no memory. Who is neither root nor the user of the daemon sees only their
//! own sessions.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::de::DeserializeOwned;
use thiserror::Error;
use xroce_wire::newtypes::Qpn;

use crate::socket::{self, Answer, Kind, MessageError};
use xroce_api::Request;
use xroce_api::message::{Page, QpReport, Refusal, Report, SessionReport, Welcome};

/// A daemon that does not answer by then is given up.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody listens, or it is not permitted.
    #[error("no daemon at {}: {cause}; is xroced running, and may this user open its socket?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// It said no.
    #[error("the daemon refuses: {0}")]
    Refused(#[from] Refusal),
    /// It hung up, and said why.
    #[error("the daemon hung up: {0}")]
    Farewell(String),
    /// It took too long.
    #[error("the daemon has not answered for {} s", PATIENCE.as_secs())]
    Silent,
    /// What came was no answer.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    welcome: Welcome,
}

impl Client {
    /// Connects to the daemon at `path` in the name of `program`.
    ///
    /// # Errors
    /// Nobody listens there, it is not permitted, or the daemon is of another release.
    pub fn connect(path: &Path, program: &str) -> Result<Self, ClientError> {
        let failed = |cause: io::Error| ClientError::Connect {
            path: path.to_owned(),
            cause,
        };
        let socket = socket::connect_to(path).map_err(failed)?;
        for kind in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, kind, Some(PATIENCE)).map_err(|e| failed(e.into()))?;
        }
        let hello = Request::Hello {
            program: program.to_owned(),
        };
        let welcome = ask(&socket, &hello)?;
        Ok(Self { socket, welcome })
    }

    /// Who answers; the number of this session is in it.
    #[must_use]
    pub const fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// What the daemon has and does.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn report(&self) -> Result<Report, ClientError> {
        ask(&self.socket, &Request::Report)
    }

    /// Processes that are attached, this one among them, by number.
    pub fn sessions(&self) -> impl Iterator<Item = Result<SessionReport, ClientError>> {
        let page = |last: Option<&SessionReport>| Request::Sessions {
            after: last.map(|s| s.session),
        };
        Pages::new(&self.socket, page)
    }

    /// Queue pairs, by session and number.
    pub fn qps(&self) -> impl Iterator<Item = Result<QpReport, ClientError>> {
        let page = |last: Option<&QpReport>| Request::Qps {
            after: last.map(|qp| -> (u32, Qpn) { (qp.session, qp.qpn) }),
        };
        Pages::new(&self.socket, page)
    }
}

/// One question and its answer.
fn ask<T: DeserializeOwned>(socket: &OwnedFd, request: &Request) -> Result<T, ClientError> {
    socket::send(socket, Kind::Request, request, &[]).or_else(|error| match error {
        // It hung up; why it did is there to be read.
        MessageError::Closed => Ok(()),
        other => Err(silence(other)),
    })?;
    let message = socket::receive(socket, RecvFlags::empty()).map_err(silence)?;
    match message.answer()? {
        Answer::Reply(answer, _) => Ok(answer),
        Answer::Refused(refusal) => Err(refusal.into()),
        Answer::Farewell(farewell) => Err(ClientError::Farewell(farewell.text)),
    }
}

/// A timeout, if it is one.
fn silence(error: MessageError) -> ClientError {
    match error {
        MessageError::System(e) if e.kind() == io::ErrorKind::WouldBlock => ClientError::Silent,
        other => other.into(),
    }
}

/// The items of all pages.
struct Pages<'a, T, F> {
    socket: &'a OwnedFd,
    page: F,
    items: std::vec::IntoIter<T>,
    /// What the next page begins behind is the last of this one.
    next: Option<Request>,
}

impl<'a, T, F: Fn(Option<&T>) -> Request> Pages<'a, T, F> {
    fn new(socket: &'a OwnedFd, page: F) -> Self {
        let next = Some(page(None));
        Self {
            socket,
            page,
            items: Vec::new().into_iter(),
            next,
        }
    }
}

impl<T: DeserializeOwned, F: Fn(Option<&T>) -> Request> Iterator for Pages<'_, T, F> {
    type Item = Result<T, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.items.next() {
                return Some(Ok(item));
            }
            let request = self.next.take()?;
            match ask::<Page<T>>(self.socket, &request) {
                Ok(page) => {
                    // A page without items has no end to go on from.
                    if page.more && !page.items.is_empty() {
                        self.next = Some((self.page)(page.items.last()));
                    }
                    self.items = page.items.into_iter();
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Answers `replies` to as many requests, and says what the requests were.
    fn served(
        replies: Vec<(Kind, serde_json::Value)>,
        talk: impl FnOnce(&Client),
    ) -> Vec<serde_json::Value> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let daemon = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for (kind, body) in replies {
                let request = socket::receive(&theirs, RecvFlags::empty()).unwrap();
                asked.push(request.body().unwrap());
                socket::send(&theirs, kind, &body, &[]).unwrap();
            }
            asked
        });
        let welcome = Welcome {
            release: String::new(),
            session: 1,
            devices: Vec::new(),
        };
        let socket = ours;
        talk(&Client { socket, welcome });
        daemon.join().unwrap()
    }

    fn session(number: u32) -> serde_json::Value {
        serde_json::json!({
            "session": number, "pid": 1, "uid": 0, "program": "x", "device": null,
            "objects": [0, 0, 0, 0, 0, 0], "bytes": 0, "posted": 0, "completed": 0, "stalled": 0,
        })
    }

    #[test]
    fn all_pages_are_read_and_no_more() {
        let page = |items: &[u32], more: bool| {
            let items: Vec<_> = items.iter().map(|n| session(*n)).collect();
            let body = serde_json::json!({"items": items, "more": more});
            (Kind::Reply, body)
        };
        let pages = vec![page(&[1, 4], true), page(&[5], true), page(&[], true)];
        let asked = served(pages, |client| {
            let all: Result<Vec<_>, _> = client.sessions().collect();
            let all: Vec<u32> = all.unwrap().iter().map(|s| s.session).collect();
            assert_eq!(all, [1, 4, 5]);
        });
        let after = |n| serde_json::json!({"sessions": {"after": n}});
        assert_eq!(asked[0], after(serde_json::Value::Null));
        assert_eq!(asked[1..], [after(4.into()), after(5.into())]);
    }

    #[test]
    fn a_refusal_and_a_farewell_are_told() {
        let no = serde_json::json!({"reason": "denied", "text": "not for you"});
        let end = serde_json::json!({"text": "it is late"});
        served(vec![(Kind::Refusal, no), (Kind::Farewell, end)], |client| {
            let refused = client.report().unwrap_err().to_string();
            assert_eq!(refused, "the daemon refuses: not for you");
            let mut qps = client.qps();
            let ended = qps.next().unwrap().unwrap_err().to_string();
            assert_eq!(ended, "the daemon hung up: it is late");
            assert!(qps.next().is_none());
        });
    }

    #[test]
    fn who_does_not_listen_is_named() {
        let error = Client::connect(Path::new("/nowhere/xroced.sock"), "x").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/xroced.sock"), "{text}");
    }
}
